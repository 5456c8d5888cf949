"""A model from the names of its weights: what almost all families share.

An adapter says which architecture a checkpoint has (``read_architecture``), under which names its weights are stored
(``Names``, Llama's by default), and how its layers differ (``read_layer``). ``read_model`` puts the layers together.

Two differences between families end here, because they only concern the order of rows in the projection of queries,
keys and values. Some store one fused matrix, group by group. Some rotate neighbouring dimensions of a head, 2 i and
2 i + 1, where others rotate i and i + n: reordering the rows of queries and keys alike turns one into the other, and
leaves the products of queries and keys as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradpath.model.architecture import Architecture, Layer, Rotary, fold_norm
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.transformer import Transformer


@dataclass(frozen=True)
class Names:
    """The names of a family's weights; None for norms that it does not have, or that have no weights.

    Those of a layer are relative to the layer, the others to the body of the model.
    """

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None
    qkv: Sequence[str] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    q_norm: str | None = None
    k_norm: str | None = None
    attention_out: str = "self_attn.o_proj"
    mlp_in: Sequence[str] = ("mlp.gate_proj", "mlp.up_proj")
    mlp_out: str | None = "mlp.down_proj"  # None: no MLP that every token uses; its weights are 0 wide
    layers: str = "layers"
    embedding: str = "embed_tokens"
    final_norm: str | None = "norm"
    grouped: bool = False  # ``qkv`` is one matrix with the queries, the key and the value of every group together
    gain: Callable[[Tensor], Tensor] = lambda weight: weight  # what the weight of a norm stands for


LLAMA = Names()
_EPS = {"rms": ("rms_norm_eps",), "layer": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "rms_norm_eps")}


def read_architecture(
    source: Checkpoint,
    *,
    norm: Literal["layer", "rms"] = "rms",
    eps: float | None = None,
    activation: str | None = None,
    gated: bool = True,
    n_kv_heads: int | None = None,
    parallel: bool = False,
) -> Architecture:
    """The architecture of a checkpoint, by the usual names of settings where no value is given.

    Args:
        source: The checkpoint.
        norm: The kind of its norms.
        eps: The constant in the norms; by default ``rms_norm_eps``, or ``layer_norm_eps`` and the like.
        activation: The activation of the MLP; by default ``hidden_act`` or ``activation_function``.
        gated: Whether the MLP has a gate.
        n_kv_heads: The number of heads with keys and values of their own; by default ``num_key_value_heads``, or all.
        parallel: Whether attention and MLP read the same residual stream.

    Returns:
        The architecture.
    """
    config = source.config
    if eps is None:
        eps = next(getattr(config, name) for name in _EPS[norm] if hasattr(config, name))
    if activation is None:
        activation = source.activation("hidden_act" if hasattr(config, "hidden_act") else "activation_function")
    return Architecture(
        family=source.family,
        n_layers=config.num_hidden_layers,
        n_heads=config.num_attention_heads,
        n_kv_heads=n_kv_heads or getattr(config, "num_key_value_heads", config.num_attention_heads),
        d_head=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        d_model=config.hidden_size,
        norm=norm,
        norm_eps=eps,
        activation=activation,
        gated=gated,
        parallel=parallel,
    )


def read_layer(
    source: Checkpoint,
    arch: Architecture,
    index: int,
    names: Names = LLAMA,
    *,
    window: int | None = None,
    scale: float | None = None,
    rotary: int | None = 0,
    interleaved: int = 0,
) -> Layer:
    """One layer of a checkpoint.

    Args:
        source: The checkpoint.
        arch: Its architecture.
        index: The number of the layer.
        names: The names of its weights.
        window: How many positions attention sees; None for all.
        scale: The scale of the attention logits; by default one over the root of d_head.
        rotary: The index of the layer's rotation, or None if it has none.
        interleaved: How many dimensions of a head are rotated as neighbours (2 i, 2 i + 1); 0 for pairs (i, i + n).

    Returns:
        The layer, with the norms before attention and MLP folded in.
    """
    prefix = f"{source.stem}.{names.layers}.{index}"

    def gain(norm: str | None) -> Tensor | None:
        return None if norm is None else names.gain(source.need(f"{prefix}.{norm}.weight"))

    def after_norm(norm: str | None, linears: Sequence[str]) -> tuple[Tensor, Tensor | None]:
        weight, bias = source.linear([f"{prefix}.{linear}" for linear in linears])
        if not arch.norm_before:
            return weight, bias
        shift = None if norm is None else source.get(f"{prefix}.{norm}.bias")
        norm_gain = gain(norm)
        norm_gain = torch.ones_like(weight[0]) if norm_gain is None else norm_gain
        return fold_norm(weight, bias, norm_gain, shift, centre=arch.norm == "layer")

    w_qkv, b_qkv = after_norm(names.before_attention, names.qkv)
    w_in, b_in, w_out, b_out = w_qkv.new_empty(0, arch.d_model), None, w_qkv.new_empty(arch.d_model, 0), None
    if names.mlp_out is not None:
        w_in, b_in = after_norm(names.before_mlp, names.mlp_in)
        w_out, b_out = source.need(f"{prefix}.{names.mlp_out}.weight"), source.get(f"{prefix}.{names.mlp_out}.bias")
    if names.grouped or interleaved:
        rows = _row_order(arch, grouped=names.grouped, interleaved=interleaved).to(w_qkv.device)
        w_qkv, b_qkv = w_qkv[rows], None if b_qkv is None else b_qkv[rows]
    return Layer(
        w_qkv=w_qkv,
        b_qkv=b_qkv,
        w_o=source.need(f"{prefix}.{names.attention_out}.weight"),
        b_o=source.get(f"{prefix}.{names.attention_out}.bias"),
        w_in=w_in,
        b_in=b_in,
        w_out=w_out,
        b_out=b_out,
        scale=arch.d_head**-0.5 if scale is None else scale,
        window=window,
        rotary=rotary,
        q_gain=_per_head(gain(names.q_norm), arch, interleaved),
        k_gain=_per_head(gain(names.k_norm), arch, interleaved),
        attn_gain=gain(names.after_attention),
        mlp_gain=gain(names.after_mlp),
    )


def read_model(
    source: Checkpoint,
    arch: Architecture,
    layers: Sequence[Layer] | None = None,
    names: Names = LLAMA,
    rotary: Sequence[Rotary] | None = None,
) -> Transformer:
    """The model with some layers.

    Args:
        source: The checkpoint.
        arch: Its architecture.
        layers: Its layers; by default those of ``read_layer`` without further options.
        names: The names of the weights.
        rotary: The rotations that its layers choose from; by default the one of the configuration.

    Returns:
        The model.
    """
    if layers is None:
        layers = [read_layer(source, arch, index, names) for index in range(arch.n_layers)]
    embedding, final = source.need(f"{source.stem}.{names.embedding}.weight"), f"{source.stem}.{names.final_norm}"
    ones = torch.ones_like(embedding[0])
    return Transformer(
        arch=arch,
        layers=tuple(layers),
        embedding=embedding,
        unembedding=source.need(f"{source.unembedding}.weight"),
        unembedding_bias=source.get(f"{source.unembedding}.bias"),
        final_gain=ones if names.final_norm is None else names.gain(source.need(f"{final}.weight")),
        final_shift=source.get(f"{final}.bias"),
        rotary=(source.rotary(),) if rotary is None else tuple(rotary),
    )


def _row_order(arch: Architecture, *, grouped: bool, interleaved: int) -> Tensor:
    """The rows of a checkpoint's queries, keys and values in the order of ``Layer.w_qkv``."""
    n_heads, n_kv, d_head = arch.n_heads, arch.n_kv_heads, arch.d_head
    rows = torch.arange((n_heads + 2 * n_kv) * d_head).view(-1, d_head)
    if grouped:
        group = rows.view(n_kv, n_heads // n_kv + 2, d_head)
        rows = torch.cat([group[:, :-2].flatten(0, 1), group[:, -2], group[:, -1]])
    rotated, values = rows[: n_heads + n_kv], rows[n_heads + n_kv :]
    return torch.cat([rotated[:, halves(d_head, interleaved)], values]).flatten()


def halves(d_head: int, interleaved: int) -> Tensor:
    """The dimensions of a head with the first ``interleaved`` of them reordered: even ones, then odd ones."""
    even = torch.arange(0, interleaved, 2)
    return torch.cat([even, even + 1, torch.arange(interleaved, d_head)])


def _per_head(gain: Tensor | None, arch: Architecture, interleaved: int) -> Tensor | None:
    """The gain of a norm of queries or keys: (d_head,) if all heads share it, else (head, d_head)."""
    if gain is None:
        return None
    order = halves(arch.d_head, interleaved).to(gain.device)
    if arch.qk_norm == "head" and gain.ndim == 1:
        return gain[order] if interleaved else gain  # of a wrong length, it is refused by name elsewhere
    own = gain.view(-1, arch.d_head)[:, order]
    return own.repeat_interleave(arch.n_heads // len(own), 0)
