"""GPT-2, GPT-NeoX (Pythia) and Phi: LayerNorm, and an MLP without gate.

GPT-2 has learned positions. GPT-NeoX and Phi have partial rotary embeddings, and attention and MLP in parallel, with a
norm each in GPT-NeoX and one shared norm in Phi.
"""

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
        layers=tuple(_gpt2_layer(source, arch, index) for index in range(arch.n_layers)),
        embedding=source.need("transformer.wte.weight"),
        unembedding=source.need("lm_head.weight"),
        final_gain=source.need("transformer.ln_f.weight"),
        final_shift=source.need("transformer.ln_f.bias"),
        positions=source.need("transformer.wpe.weight"),
    )


def _gpt2_layer(source: Checkpoint, arch: Architecture, index: int) -> Layer:
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


@family("gpt_neox", "Pythia, GPT-NeoX-20B", supports="parallel attention and MLP or not, partial rotary")
def from_gpt_neox(source: Checkpoint) -> Transformer:
    arch = _architecture(source, source.config.num_attention_heads, parallel=bool(source.config.use_parallel_residual))

    def queries_first(x: Tensor) -> Tensor:
        """Reorder rows from (head, q k v) to (q k v, head)."""
        return x.view(arch.n_heads, 3, arch.d_head, -1).transpose(0, 1).reshape(x.shape)

    def layer(prefix: str) -> Layer:
        w_qkv, b_qkv = source.after_layer_norm(f"{prefix}.input_layernorm", [f"{prefix}.attention.query_key_value"])
        mlp = source.after_layer_norm(f"{prefix}.post_attention_layernorm", [f"{prefix}.mlp.dense_h_to_4h"])
        qkv = queries_first(w_qkv), None if b_qkv is None else queries_first(b_qkv)
        return _layer(source, arch, qkv, mlp, f"{prefix}.attention.dense", f"{prefix}.mlp.dense_4h_to_h")

    return Transformer(
        arch=arch,
        layers=tuple(layer(f"gpt_neox.layers.{index}") for index in range(arch.n_layers)),
        embedding=source.need("gpt_neox.embed_in.weight"),
        unembedding=source.need("lm_head.weight"),
        final_gain=source.need("gpt_neox.final_layer_norm.weight"),
        final_shift=source.need("gpt_neox.final_layer_norm.bias"),
        rotary=(source.rotary(),),
    )


@family("phi", "Phi-1, Phi-1.5, Phi-2", supports="parallel attention and MLP, partial rotary, biased logits")
def from_phi(source: Checkpoint) -> Transformer:
    source.only("qk_layernorm", [False])
    arch = _architecture(source, source.config.num_key_value_heads, parallel=True)

    def layer(prefix: str) -> Layer:
        # The shared norm is folded into both projections, because each is a separate target.
        norm = f"{prefix}.input_layernorm"
        qkv = source.after_layer_norm(norm, [f"{prefix}.self_attn.{x}_proj" for x in "qkv"])
        mlp = source.after_layer_norm(norm, [f"{prefix}.mlp.fc1"])
        return _layer(source, arch, qkv, mlp, f"{prefix}.self_attn.dense", f"{prefix}.mlp.fc2")

    return Transformer(
        arch=arch,
        layers=tuple(layer(f"model.layers.{index}") for index in range(arch.n_layers)),
        embedding=source.need("model.embed_tokens.weight"),
        unembedding=source.need("lm_head.weight"),
        unembedding_bias=source.need("lm_head.bias"),
        final_gain=source.need("model.final_layernorm.weight"),
        final_shift=source.need("model.final_layernorm.bias"),
        rotary=(source.rotary(),),
    )


def _architecture(source: Checkpoint, n_kv_heads: int, *, parallel: bool) -> Architecture:
    """The architecture of GPT-NeoX and Phi."""
    config = source.config
    return Architecture(
        family=source.family,
        n_layers=config.num_hidden_layers,
        n_heads=config.num_attention_heads,
        n_kv_heads=n_kv_heads,
        d_head=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        d_model=config.hidden_size,
        norm="layer",
        norm_eps=config.layer_norm_eps,
        activation=source.activation(),
        gated=False,
        parallel=parallel,
    )


def _layer(
    source: Checkpoint,
    arch: Architecture,
    qkv: tuple[Tensor, Tensor | None],
    mlp: tuple[Tensor, Tensor | None],
    attention_out: str,
    mlp_out: str,
) -> Layer:
    """A layer of GPT-NeoX or Phi from its two projections, and the names of its output layers."""
    return Layer(
        w_qkv=qkv[0],
        b_qkv=qkv[1],
        w_o=source.need(f"{attention_out}.weight"),
        b_o=source.get(f"{attention_out}.bias"),
        w_in=mlp[0],
        b_in=mlp[1],
        w_out=source.need(f"{mlp_out}.weight"),
        b_out=source.need(f"{mlp_out}.bias"),
        scale=arch.d_head**-0.5,
        window=None,
    )
