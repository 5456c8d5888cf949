"""GPT-NeoX and Pythia: LayerNorm, partial rotary embedding, parallel attention and MLP with a norm each."""

from __future__ import annotations

from torch import Tensor

from gradpath.model.architecture import Architecture, Layer
from gradpath.model.families import family
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.transformer import Transformer


@family("gpt_neox", "Pythia, GPT-NeoX-20B", supports="parallel attention and MLP or not, partial rotary")
def from_gpt_neox(source: Checkpoint) -> Transformer:
    config = source.config
    arch = Architecture(
        family="gpt_neox",
        n_layers=config.num_hidden_layers,
        n_heads=config.num_attention_heads,
        n_kv_heads=config.num_attention_heads,
        d_head=config.hidden_size // config.num_attention_heads,
        d_model=config.hidden_size,
        norm="layer",
        norm_eps=config.layer_norm_eps,
        activation=source.activation(),
        gated=False,
        parallel=bool(config.use_parallel_residual),
    )
    return Transformer(
        arch=arch,
        layers=tuple(_layer(source, arch, f"gpt_neox.layers.{i}") for i in range(arch.n_layers)),
        embedding=source.need("gpt_neox.embed_in.weight"),
        unembedding=source.need("lm_head.weight"),
        final_gain=source.need("gpt_neox.final_layer_norm.weight"),
        final_shift=source.need("gpt_neox.final_layer_norm.bias"),
        rotary=(source.rotary(),),
    )


def _layer(source: Checkpoint, arch: Architecture, prefix: str) -> Layer:
    w_qkv, b_qkv = source.after_layer_norm(f"{prefix}.input_layernorm", [f"{prefix}.attention.query_key_value"])
    w_in, b_in = source.after_layer_norm(f"{prefix}.post_attention_layernorm", [f"{prefix}.mlp.dense_h_to_4h"])

    def queries_first(x: Tensor) -> Tensor:
        """Reorder rows from (head, q k v) to (q k v, head)."""
        return x.view(arch.n_heads, 3, arch.d_head, -1).transpose(0, 1).reshape(x.shape)

    return Layer(
        w_qkv=queries_first(w_qkv),
        b_qkv=None if b_qkv is None else queries_first(b_qkv),
        w_o=source.need(f"{prefix}.attention.dense.weight"),
        b_o=source.get(f"{prefix}.attention.dense.bias"),
        w_in=w_in,
        b_in=b_in,
        w_out=source.need(f"{prefix}.mlp.dense_4h_to_h.weight"),
        b_out=source.need(f"{prefix}.mlp.dense_4h_to_h.bias"),
        scale=arch.d_head**-0.5,
        window=None,
    )
