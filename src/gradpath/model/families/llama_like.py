"""Llama and the families that share its design: RMSNorm, rotary embeddings, grouped heads and a gated MLP.

Mistral adds a sliding window. Qwen 2 has biases on queries, keys and values; Qwen 3 normalises queries and keys.
OLMo-2 has its norms after attention and MLP instead of before, and one norm over all queries, or keys, of a layer.
``gemma`` builds on the three functions here too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from gradpath.model.architecture import Architecture, Layer, Rotary, fold_norm
from gradpath.model.families import family
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.transformer import Transformer


@dataclass(frozen=True)
class Norms:
    """The names of a family's norms, None for those that it does not have, and the gain that a weight stands for."""

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None
    gain: Callable[[Tensor], Tensor] = lambda weight: weight


LLAMA = Norms()
OLMO2 = Norms(None, "post_attention_layernorm", None, "post_feedforward_layernorm")


@family("llama", "SmolLM2, Llama 2 and 3, TinyLlama and others of the kind", supports="rope scaling, biases")
@family("mistral", "Mistral 7B", supports="sliding windows")
def from_llama(source: Checkpoint) -> Transformer:
    arch = llama_architecture(source)
    window = source.config.sliding_window if source.family == "mistral" else None
    layers = [llama_layer(source, arch, index, window=window) for index in range(arch.n_layers)]
    return llama_model(source, arch, layers)


@family("qwen2", "Qwen 2 and 2.5", supports="biases, sliding windows, rope scaling")
@family("qwen3", "Qwen 3", supports="norms of queries and keys, sliding windows, rope scaling")
def from_qwen(source: Checkpoint) -> Transformer:
    arch = replace(llama_architecture(source), qk_norm="head" if source.family == "qwen3" else None)
    layers = [llama_layer(source, arch, index, window=window) for index, window in enumerate(source.windows())]
    return llama_model(source, arch, layers)


@family("olmo2", "OLMo-2", supports="norms after attention and MLP, norms over all queries and keys of a layer")
def from_olmo2(source: Checkpoint) -> Transformer:
    source.only("attention_bias", [False])  # a bias before the norm after attention would belong to no node
    arch = replace(llama_architecture(source), norm_before=False, qk_norm="layer")
    layers = [llama_layer(source, arch, index, OLMO2) for index in range(arch.n_layers)]
    return llama_model(source, arch, layers, OLMO2)


def llama_architecture(source: Checkpoint, *, activation: str = "hidden_act") -> Architecture:
    """The architecture of a Llama-like model; ``activation`` names the setting that holds the activation."""
    config = source.config
    return Architecture(
        family=source.family,
        n_layers=config.num_hidden_layers,
        n_heads=config.num_attention_heads,
        n_kv_heads=config.num_key_value_heads,
        d_head=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        d_model=config.hidden_size,
        norm="rms",
        norm_eps=config.rms_norm_eps,
        activation=source.activation(activation),
        gated=True,
    )


def llama_model(
    source: Checkpoint,
    arch: Architecture,
    layers: Sequence[Layer],
    norms: Norms = LLAMA,
    rotary: tuple[Rotary, ...] | None = None,
) -> Transformer:
    """The model with these layers; without ``rotary``, all of them share the rotation of the configuration."""
    return Transformer(
        arch=arch,
        layers=tuple(layers),
        embedding=source.need(f"{source.stem}.embed_tokens.weight"),
        unembedding=source.need("lm_head.weight"),
        final_gain=norms.gain(source.need(f"{source.stem}.norm.weight")),
        rotary=(source.rotary(),) if rotary is None else rotary,
    )


def llama_layer(
    source: Checkpoint,
    arch: Architecture,
    index: int,
    norms: Norms = LLAMA,
    *,
    window: int | None = None,
    scale: float | None = None,
    rotary: int = 0,
) -> Layer:
    """One layer; without ``scale``, attention logits are divided by the root of d_head."""
    prefix = f"{source.stem}.layers.{index}"

    def gain(norm: str | None) -> Tensor | None:
        return None if norm is None else norms.gain(source.need(f"{prefix}.{norm}.weight"))

    def projection(norm: str | None, linears: list[str]) -> tuple[Tensor, Tensor | None]:
        weight, bias = source.linear([f"{prefix}.{linear}" for linear in linears])
        norm_gain = gain(norm)
        return (weight, bias) if norm_gain is None else fold_norm(weight, bias, norm_gain, None, centre=False)

    w_qkv, b_qkv = projection(norms.before_attention, [f"self_attn.{x}_proj" for x in "qkv"])
    w_in, b_in = projection(norms.before_mlp, ["mlp.gate_proj", "mlp.up_proj"])
    q_gain, k_gain = (gain(f"self_attn.{x}_norm") if arch.qk_norm else None for x in "qk")
    if arch.qk_norm == "layer" and q_gain is not None and k_gain is not None:
        q_gain, k_gain = q_gain.view(-1, arch.d_head), k_gain.view(-1, arch.d_head)
        k_gain = k_gain.repeat_interleave(arch.n_heads // arch.n_kv_heads, 0)
    return Layer(
        w_qkv=w_qkv,
        b_qkv=b_qkv,
        w_o=source.need(f"{prefix}.self_attn.o_proj.weight"),
        b_o=source.get(f"{prefix}.self_attn.o_proj.bias"),
        w_in=w_in,
        b_in=b_in,
        w_out=source.need(f"{prefix}.mlp.down_proj.weight"),
        b_out=source.get(f"{prefix}.mlp.down_proj.bias"),
        scale=arch.d_head**-0.5 if scale is None else scale,
        window=window,
        rotary=rotary,
        q_gain=q_gain,
        k_gain=k_gain,
        attn_gain=gain(norms.after_attention),
        mlp_gain=gain(norms.after_mlp),
    )
