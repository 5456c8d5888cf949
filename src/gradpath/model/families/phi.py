"""Phi-1 to Phi-2: LayerNorm, partial rotary embedding, parallel attention and MLP that share one norm."""

from __future__ import annotations

from gradpath.model.architecture import Architecture, Layer
from gradpath.model.families import family
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.transformer import Transformer


@family("phi", "Phi-1, Phi-1.5, Phi-2", supports="parallel attention and MLP, partial rotary, biased logits")
def from_phi(source: Checkpoint) -> Transformer:
    config = source.config
    source.only("qk_layernorm", [False])
    arch = Architecture(
        family="phi",
        n_layers=config.num_hidden_layers,
        n_heads=config.num_attention_heads,
        n_kv_heads=config.num_key_value_heads,
        d_head=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        d_model=config.hidden_size,
        norm="layer",
        norm_eps=config.layer_norm_eps,
        activation=source.activation(),
        gated=False,
        parallel=True,
    )
    return Transformer(
        arch=arch,
        layers=tuple(_layer(source, arch, f"model.layers.{i}") for i in range(arch.n_layers)),
        embedding=source.need("model.embed_tokens.weight"),
        unembedding=source.need("lm_head.weight"),
        unembedding_bias=source.need("lm_head.bias"),
        final_gain=source.need("model.final_layernorm.weight"),
        final_shift=source.need("model.final_layernorm.bias"),
        rotary=(source.rotary(),),
    )


def _layer(source: Checkpoint, arch: Architecture, prefix: str) -> Layer:
    # One norm for both: fold_norm into either, since either has a target of its own.
    norm = f"{prefix}.input_layernorm"
    w_qkv, b_qkv = source.after_layer_norm(norm, [f"{prefix}.self_attn.{x}_proj" for x in "qkv"])
    w_in, b_in = source.after_layer_norm(norm, [f"{prefix}.mlp.fc1"])
    return Layer(
        w_qkv=w_qkv,
        b_qkv=b_qkv,
        w_o=source.need(f"{prefix}.self_attn.dense.weight"),
        b_o=source.need(f"{prefix}.self_attn.dense.bias"),
        w_in=w_in,
        b_in=b_in,
        w_out=source.need(f"{prefix}.mlp.fc2.weight"),
        b_out=source.need(f"{prefix}.mlp.fc2.bias"),
        scale=arch.d_head**-0.5,
        window=None,
    )
