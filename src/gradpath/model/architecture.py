""""""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone knows it by)
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
}


def to_device_of(x: Tensor, other: Tensor) -> Tensor:
    """x on the device of ``other``: the one way across where a model's layers lie on several of them."""
    return x.to(other.device)


def same_device(x: Tensor, other: Tensor) -> bool:
    return x.device == other.device


@dataclass(frozen=True)
class Architecture:
    """The numbers and choices that tell one family and size from another."""

    family: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_model: int
    norm: Literal["layer", "rms"]
    norm_eps: float
    activation: str
    gated: bool
    parallel: bool = False  # attention and MLP read the same residual stream
    norm_before: bool = True  # attention and MLP normalise what they read
    qk_norm: Literal["head", "layer"] | None = None  # over one head's query or key, or over the whole layer's
    attention_cap: float | None = None  # attention logits x become cap tanh(x / cap)
    logit_cap: float | None = None  # and so do the logits

    def projection_row(self, qkv: int, head: int) -> int:
        """The place of a query head's q, k or v (0, 1, 2) in the fused projection: keys and values are shared."""
        if qkv == 0:
            return head
        return self.n_heads + (qkv - 1) * self.n_kv_heads + head // (self.n_heads // self.n_kv_heads)


@dataclass(frozen=True)
class Rules:
    """How a gradient goes back where the model is not linear: by calculus, or, where true, by another rule.

    The forward pass is the same under all of them. ``paths.relp`` has the reasons.
    """

    norm: bool = False  # what a norm divides by is constant
    attention: bool = False  # attention patterns are constant
    gate: bool = False  # each factor of a product of two gets half of its gradient
    activation: bool = False  # an activation f(x) is x times the constant f(x) / x


CALCULUS = Rules()


@dataclass(frozen=True)
class Layer:
    """One layer's weights, rows are outputs. Norm gains and shifts are folded in already."""

    w_qkv: Tensor  # (head d_head + 2 kv_head d_head, d_model)
    b_qkv: Tensor | None
    w_o: Tensor  # (d_model, head d_head)
    b_o: Tensor | None
    w_in: Tensor  # (d_mlp, d_model), or the gate's rows above the values' rows
    b_in: Tensor | None
    w_out: Tensor  # (d_model, d_mlp)
    b_out: Tensor | None
    scale: float  # of the attention logits
    window: int | None  # how many positions back attention sees, itself included
    rotary: int = 0  # which of the model's rotations turns queries and keys, if it has any
    q_gain: Tensor | None = None  # of the norm of queries, (d_head,) or (head, d_head)
    k_gain: Tensor | None = None  # of the norm of keys, the same
    attn_gain: Tensor | None = None  # of the norm after attention, (d_model,)
    mlp_gain: Tensor | None = None  # of the norm after the MLP, (d_model,)

    @property
    def w_write(self) -> Tensor:
        """What takes a head's ``written`` to the residual stream, (d_model, head d_head)."""
        return self.w_o if self.attn_gain is None else self.attn_gain[:, None] * self.w_o


@dataclass(frozen=True)
class Rotary:
    """Rotary positions: the first dimensions of a head turn by position x frequency, in pairs."""

    frequencies: Tensor  # (half of the dimensions that turn,)
    gain: float = 1.0


def at_least_float32(x: Tensor) -> Tensor:
    """x in float32, or in float64 if it is: what sums are accumulated in."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def folded(
    weight: Tensor, bias: Tensor | None, gain: Tensor, shift: Tensor | None, *, centre: bool
) -> tuple[Tensor, Tensor | None]:
    """A projection (out, in) with the gain and shift of the norm in front of it made part of it."""
    if shift is not None:
        moved = weight @ shift
        bias = moved if bias is None else bias + moved
    weight = weight * gain
    return (weight - weight.mean(1, keepdim=True) if centre else weight), bias
