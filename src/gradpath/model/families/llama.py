"""Llama and its kin: RMSNorm, rotary positions, grouped-query attention, a gated MLP.

SmolLM2, Llama 2 and 3, TinyLlama; Mistral adds a sliding window.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradpath.model.families.refuse import only
from gradpath.model.transformer import ACTIVATIONS, Architecture, Layer, Transformer, folded

# Their frequencies do not depend on the prompt, so the ones that transformers computed can be taken.
STATIC_ROPE = ("default", "linear", "llama3")


def from_llama(hf_model: Any) -> Transformer:
    config, weights = hf_model.config, hf_model.state_dict()
    family, rotary = config.model_type, hf_model.model.rotary_emb
    only(family, "rope_type", rotary.rope_type, STATIC_ROPE)
    arch = Architecture(
        family=family,
        n_layers=config.num_hidden_layers,
        n_heads=config.num_attention_heads,
        n_kv_heads=config.num_key_value_heads,
        d_head=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        d_model=config.hidden_size,
        norm="rms",
        norm_eps=config.rms_norm_eps,
        activation=only(family, "hidden_act", config.hidden_act, ACTIVATIONS),
        gated=True,
    )
    window = getattr(config, "sliding_window", None)
    return Transformer(
        arch=arch,
        layers=tuple(_layer(weights, arch, index, window) for index in range(arch.n_layers)),
        embedding=weights["model.embed_tokens.weight"],
        unembedding=weights["lm_head.weight"],
        final_gain=weights["model.norm.weight"],
        rotary=rotary.inv_freq,
        rotary_gain=float(rotary.attention_scaling),
    )


def _layer(weights: dict[str, Tensor], arch: Architecture, index: int, window: int | None) -> Layer:
    def get(name: str) -> Tensor | None:
        return weights.get(f"model.layers.{index}.{name}")

    def need(name: str) -> Tensor:
        return weights[f"model.layers.{index}.{name}"]

    def behind_norm(norm: str, linears: list[str]) -> tuple[Tensor, Tensor | None]:
        weight = torch.cat([need(f"{linear}.weight") for linear in linears])
        biases = [bias for linear in linears if (bias := get(f"{linear}.bias")) is not None]
        bias = torch.cat(biases) if biases else None
        return folded(weight, bias, need(f"{norm}.weight"), None, centre=False)

    qkv = [f"self_attn.{x}_proj" for x in "qkv"]
    w_qkv, b_qkv = behind_norm("input_layernorm", qkv)
    w_in, b_in = behind_norm("post_attention_layernorm", ["mlp.gate_proj", "mlp.up_proj"])
    return Layer(
        w_qkv=w_qkv,
        b_qkv=b_qkv,
        w_o=need("self_attn.o_proj.weight"),
        b_o=get("self_attn.o_proj.bias"),
        w_in=w_in,
        b_in=b_in,
        w_out=need("mlp.down_proj.weight"),
        b_out=get("mlp.down_proj.bias"),
        scale=arch.d_head**-0.5,
        window=window,
    )
