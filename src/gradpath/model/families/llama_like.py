"""What Llama's kin have in common: RMSNorm, rotary positions, grouped heads, a gated MLP, and their names.

Llama, the pattern of its kin; Mistral adds a sliding window.

Qwen: Llama with biases on queries, keys and values (2, 2.5), or with norms of queries and keys (3).

OLMo-2: Llama with its norms behind attention and MLP, not before, and norms over all queries or keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gradpath.model.architecture import Architecture, Layer, folded
from gradpath.model.families import family
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.transformer import Transformer


@dataclass(frozen=True)
class Norms:
    """Where a family keeps its norms, None for one that it has not, and what its norms' weights stand for."""

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None
    gain: Callable[[Tensor], Tensor] = lambda weight: weight


LLAMA = Norms()


def llama_architecture(source: Checkpoint, *, activation: str = "hidden_act", **more: Any) -> Architecture:
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
        **more,
    )


def llama_model(
    source: Checkpoint, arch: Architecture, layers: tuple[Layer, ...], norms: Norms = LLAMA, **more: Any
) -> Transformer:
    return Transformer(
        arch=arch,
        layers=layers,
        embedding=source.need(f"{source.stem}.embed_tokens.weight"),
        unembedding=source.need("lm_head.weight"),
        final_gain=norms.gain(source.need(f"{source.stem}.norm.weight")),
        **more,
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
    at = f"{source.stem}.layers.{index}"

    def gain(name: str | None) -> Tensor | None:
        return None if name is None else norms.gain(source.need(f"{at}.{name}.weight"))

    def behind(norm: str | None, linears: list[str]) -> tuple[Tensor, Tensor | None]:
        weight, bias = source.linear([f"{at}.{linear}" for linear in linears])
        own = gain(norm)
        return (weight, bias) if own is None else folded(weight, bias, own, None, centre=False)

    w_qkv, b_qkv = behind(norms.before_attention, [f"self_attn.{x}_proj" for x in "qkv"])
    w_in, b_in = behind(norms.before_mlp, ["mlp.gate_proj", "mlp.up_proj"])
    q_gain, k_gain = (gain(f"self_attn.{x}_norm") if arch.qk_norm else None for x in "qk")
    if arch.qk_norm == "layer":
        assert q_gain is not None
        assert k_gain is not None
        q_gain, k_gain = q_gain.view(-1, arch.d_head), k_gain.view(-1, arch.d_head)
        k_gain = k_gain.repeat_interleave(arch.n_heads // arch.n_kv_heads, 0)
    return Layer(
        w_qkv=w_qkv,
        b_qkv=b_qkv,
        w_o=source.need(f"{at}.self_attn.o_proj.weight"),
        b_o=source.get(f"{at}.self_attn.o_proj.bias"),
        w_in=w_in,
        b_in=b_in,
        w_out=source.need(f"{at}.mlp.down_proj.weight"),
        b_out=source.get(f"{at}.mlp.down_proj.bias"),
        scale=arch.d_head**-0.5 if scale is None else scale,
        window=window,
        rotary=rotary,
        q_gain=q_gain,
        k_gain=k_gain,
        attn_gain=gain(norms.after_attention),
        mlp_gain=gain(norms.after_mlp),
    )


@family("llama", "SmolLM2, Llama 2 and 3, TinyLlama and others of the kind", supports="rope scaling, biases")
@family("mistral", "Mistral 7B", supports="sliding windows")
def from_llama(source: Checkpoint) -> Transformer:
    arch = llama_architecture(source)
    window = source.config.sliding_window if source.family == "mistral" else None
    layers = tuple(llama_layer(source, arch, index, window=window) for index in range(arch.n_layers))
    return llama_model(source, arch, layers, rotary=(source.rotary(),))


@family("qwen2", "Qwen 2 and 2.5", supports="biases, sliding windows, rope scaling")
@family("qwen3", "Qwen 3", supports="norms of queries and keys, sliding windows, rope scaling")
def from_qwen(source: Checkpoint) -> Transformer:
    arch = llama_architecture(source, qk_norm="head" if source.family == "qwen3" else None)
    windows = source.windows()
    layers = tuple(llama_layer(source, arch, index, window=window) for index, window in enumerate(windows))
    return llama_model(source, arch, layers, rotary=(source.rotary(),))


OLMO2_NORMS = Norms(
    before_attention=None,
    after_attention="post_attention_layernorm",
    before_mlp=None,
    after_mlp="post_feedforward_layernorm",
)


@family("olmo2", "OLMo-2", supports="norms after attention and MLP, norms over all queries and keys of a layer")
def from_olmo2(source: Checkpoint) -> Transformer:
    # A bias inside the norm after attention would be no node's and yet differ between the runs.
    source.only("attention_bias", [False])
    arch = llama_architecture(source, norm_before=False, qk_norm="layer")
    layers = tuple(llama_layer(source, arch, index, OLMO2_NORMS) for index in range(arch.n_layers))
    return llama_model(source, arch, layers, OLMO2_NORMS, rotary=(source.rotary(),))
