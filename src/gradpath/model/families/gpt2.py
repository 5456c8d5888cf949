"""GPT-2: LayerNorm, learned positions, one plain MLP. Small, medium, large, XL, DistilGPT-2."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gradpath.model.families.refuse import only
from gradpath.model.transformer import ACTIVATIONS, Architecture, Layer, Transformer, folded


def from_gpt2(hf_model: Any) -> Transformer:
    config, weights = hf_model.config, hf_model.state_dict()
    only("gpt2", "add_cross_attention", config.add_cross_attention, [False])
    arch = Architecture(
        family="gpt2",
        n_layers=config.n_layer,
        n_heads=config.n_head,
        n_kv_heads=config.n_head,
        d_head=config.n_embd // config.n_head,
        d_model=config.n_embd,
        norm="layer",
        norm_eps=config.layer_norm_epsilon,
        activation=only("gpt2", "activation_function", config.activation_function, ACTIVATIONS),
    )
    return Transformer(
        arch=arch,
        layers=tuple(_layer(config, weights, arch, index) for index in range(arch.n_layers)),
        embedding=weights["transformer.wte.weight"],
        unembedding=weights["lm_head.weight"],
        final_gain=weights["transformer.ln_f.weight"],
        final_shift=weights["transformer.ln_f.bias"],
        positions=weights["transformer.wpe.weight"],
    )


def _layer(config: Any, weights: dict[str, Tensor], arch: Architecture, index: int) -> Layer:
    def get(name: str) -> Tensor:
        return weights[f"transformer.h.{index}.{name}"]

    def behind_norm(norm: str, linear: str) -> tuple[Tensor, Tensor | None]:
        # GPT-2 keeps its matrices as (in, out), everyone else as (out, in).
        return folded(
            get(f"{linear}.weight").T,
            get(f"{linear}.bias"),
            get(f"{norm}.weight"),
            get(f"{norm}.bias"),
            centre=True,
        )

    w_qkv, b_qkv = behind_norm("ln_1", "attn.c_attn")
    w_in, b_in = behind_norm("ln_2", "mlp.c_fc")
    scale = arch.d_head**-0.5 if config.scale_attn_weights else 1.0
    return Layer(
        w_qkv=w_qkv,
        b_qkv=b_qkv,
        w_o=get("attn.c_proj.weight").T.contiguous(),
        b_o=get("attn.c_proj.bias"),
        w_in=w_in,
        b_in=b_in,
        w_out=get("mlp.c_proj.weight").T.contiguous(),
        b_out=get("mlp.c_proj.bias"),
        scale=scale / (index + 1) if config.scale_attn_by_inverse_layer_idx else scale,
    )
