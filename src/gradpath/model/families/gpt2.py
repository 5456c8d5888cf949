"""GPT-2: LayerNorm, learned positions, an MLP without gate. Small, medium, large, XL, DistilGPT-2."""

from __future__ import annotations

from torch import Tensor

from gradpath.model.architecture import Architecture, Layer, fold_norm
from gradpath.model.families import family
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.transformer import Transformer


# Published results for GPT-2 start prompts with <|endoftext|>, which its tokenizer does not add.
@family("gpt2", "GPT-2 small, medium, large, XL, DistilGPT-2", supports="learned positions", bos=True)
def from_gpt2(source: Checkpoint) -> Transformer:
    config = source.config
    source.only("add_cross_attention", [False])
    arch = Architecture(
        family="gpt2",
        n_layers=config.n_layer,
        n_heads=config.n_head,
        n_kv_heads=config.n_head,
        d_head=config.n_embd // config.n_head,
        d_model=config.n_embd,
        norm="layer",
        norm_eps=config.layer_norm_epsilon,
        activation=source.activation("activation_function"),
        gated=False,
    )
    return Transformer(
        arch=arch,
        layers=tuple(_layer(source, arch, index) for index in range(arch.n_layers)),
        embedding=source.need("transformer.wte.weight"),
        unembedding=source.need("lm_head.weight"),
        final_gain=source.need("transformer.ln_f.weight"),
        final_shift=source.need("transformer.ln_f.bias"),
        positions=source.need("transformer.wpe.weight"),
    )


def _layer(source: Checkpoint, arch: Architecture, index: int) -> Layer:
    def need(name: str) -> Tensor:
        return source.need(f"transformer.h.{index}.{name}")

    def after_norm(norm: str, linear: str) -> tuple[Tensor, Tensor | None]:
        # GPT-2 stores its matrices as (in, out), all other families as (out, in).
        weight, bias = need(f"{linear}.weight").T, need(f"{linear}.bias")
        return fold_norm(weight, bias, need(f"{norm}.weight"), need(f"{norm}.bias"), centre=True)

    w_qkv, b_qkv = after_norm("ln_1", "attn.c_attn")
    w_in, b_in = after_norm("ln_2", "mlp.c_fc")
    scale = arch.d_head**-0.5 if source.config.scale_attn_weights else 1.0
    return Layer(
        w_qkv=w_qkv,
        b_qkv=b_qkv,
        w_o=need("attn.c_proj.weight").T.contiguous(),
        b_o=need("attn.c_proj.bias"),
        w_in=w_in,
        b_in=b_in,
        w_out=need("mlp.c_proj.weight").T.contiguous(),
        b_out=need("mlp.c_proj.bias"),
        scale=scale / (index + 1) if source.config.scale_attn_by_inverse_layer_idx else scale,
        window=None,
    )
