"""What describes a model besides the code that runs it: sizes, weights, rotations, and rules for gradients.

``Architecture`` and ``Layer`` hold everything in which models of one family, or two families, differ. Two exact
changes are made to the weights when a model is loaded (``fold_norm``). The gain and shift of a norm become part of
the projection that follows it, so norms have no parameters. Behind a LayerNorm, the rows of that projection are
centred: the output of the norm has mean zero, so the result is the same, and a gradient that comes back through the
projection has mean zero too. Both kinds of norm then have the same Jacobian, ``(I - y y^T / d_model) / sigma``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone knows it by)
from torch import Tensor

from gradpath.model.experts import LATER, Experts

PARTS = ("experts", "latent")  # fields of a layer that are dataclasses of weights themselves
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": lambda x: x * (1.702 * x).sigmoid(),
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
}


@dataclass(frozen=True)
class Architecture:
    """The sizes and choices in which models differ. A fingerprint of the model contains these field names."""

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
    norm_before: bool = True  # attention and MLP normalise their inputs
    qk_norm: Literal["head", "layer"] | None = None  # over each head's query or key, or over all heads of a layer
    attention_cap: float | None = None  # attention logits x become cap * tanh(x / cap)
    logit_cap: float | None = None  # the same for the logits
    qkv_clip: float | None = field(default=None, metadata=LATER)  # queries, keys, values are clamped to +-clip
    max_tokens: int | None = field(default=None, metadata=LATER)  # longer prompts are computed differently
    # Gates x become at most clamp, and values within +-clamp, plus one.
    gate_clamp: float | None = field(default=None, metadata=LATER)
    # Latent attention: the width of what a head projects, and whether its queries share one latent (``Latent``).
    d_latent: int | None = field(default=None, metadata=LATER)
    latent_queries: bool = field(default=False, metadata=LATER)

    @property
    def fingerprint(self) -> str:
        """All choices as text, without those that were added later and have their default."""
        return f"Architecture({', '.join(f'{name}={x!r}' for name, x in known_fields(self).items())})"

    @property
    def d_qkv(self) -> int:
        """The width of a head's projections to q, k and v: that of the head, or of latents."""
        return self.d_head if self.d_latent is None else self.d_latent

    @property
    def qkv_blocks(self) -> list[int]:
        """How many blocks of ``d_qkv`` rows ``Layer.w_qkv`` has for q, k and v; query heads share them in groups."""
        return [1 if self.latent_queries else self.n_heads, self.n_kv_heads, self.n_kv_heads]

    def projection_row(self, qkv: int, head: int) -> int:
        """The row of blocks of ``Layer.w_qkv`` that computes q, k or v (0, 1, 2) of a query head."""
        blocks = self.qkv_blocks
        return sum(blocks[:qkv]) + head // (self.n_heads // blocks[qkv])


@dataclass(frozen=True)
class Rules:
    """Backward rules for the nonlinear parts of the model: the derivative, or, where true, another rule.

    The forward pass is the same under all of them. ``attribution.paths`` explains them (``relp``, ``gim``).
    """

    norm: bool = False  # the denominator of a norm is a constant
    attention: bool = False  # attention patterns are constants, and the weights of chosen experts
    gate: bool = False  # each factor of a gated product gets half of its gradient
    products: bool = False  # so does each factor of the two products in attention: queries keys, and patterns values
    temperature: float = 1.0  # of the softmax in attention, whose slope is taken there
    activation: bool = False  # an activation f(x) is x times the constant f(x) / x


CALCULUS = Rules()


# The norm of latents x (..., rank), given the constant in it.
Norm = Callable[[Tensor, float], Tensor]


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: queries, keys and values are made from short vectors, which all heads share.

    For the normalised input y of one position and head h, with a norm of the latents themselves,

        c     = W_c y                                    the latent of keys and values
        k_h   = [rotated W_r y;  U_h norm(c)]            the rotated part is shared by all heads, too
        v_h   = V_h norm(c)
        q_h   = Q_h norm(W_q y),  or  W_qh y             with a latent of its own, or without

    The targets ``<q>``, ``<k>`` and ``<v>`` of a head read the residual stream as in every other model. So each has a
    copy of its latent, computed from what it reads, and of the rotated part of the key: ``Layer.w_qkv`` projects to
    these, padded to one width, and what this class does comes after, head by head, like a norm of queries and keys.

    Its fields are the maps from latents, with the gains of their norms. A fingerprint contains these names.
    """

    k_up: Tensor  # (head, d_key - n_rotated, rank)
    v_up: Tensor  # (head, d_head, rank)
    q_up: Tensor | None  # (head, d_key, rank of queries); None: queries have no latent
    n_rotated: int
    eps: float  # in the norms of latents

    def of_heads(self, heads: Sequence[int]) -> Latent:
        """The maps of some heads."""
        q_up = None if self.q_up is None else self.q_up[heads]
        return replace(self, k_up=self.k_up[heads], v_up=self.v_up[heads], q_up=q_up)

    def queries(self, x: Tensor, norm: Norm) -> Tensor:
        """Queries (batch, pos, head, d_key) of what heads have projected, (batch, pos, head, d_qkv)."""
        if self.q_up is None:
            return x[..., : self.n_rotated + self.k_up.shape[1]]
        return self._up(self.q_up, x, norm)

    def keys(self, x: Tensor, norm: Norm) -> Tensor:
        """Keys, the same."""
        rank = self.k_up.shape[2]
        return torch.cat([x[..., rank : rank + self.n_rotated], self._up(self.k_up, x, norm)], -1)

    def values(self, x: Tensor, norm: Norm) -> Tensor:
        """Values, (batch, pos, head, d_head)."""
        return self._up(self.v_up, x, norm)

    def _up(self, weights: Tensor, x: Tensor, norm: Norm) -> Tensor:
        return torch.einsum("bphr,hdr->bphd", norm(x[..., : weights.shape[2]], self.eps), weights)


@dataclass(frozen=True)
class Layer:
    """The weights of one layer, (out, in), with norms folded in. A fingerprint contains these field names."""

    w_qkv: Tensor  # (head d_head + 2 kv_head d_head, d_model), or as ``Latent`` says
    b_qkv: Tensor | None
    w_o: Tensor  # (d_model, head d_head)
    b_o: Tensor | None
    w_in: Tensor  # (d_mlp, d_model), or the gate's rows above the values' rows
    b_in: Tensor | None
    w_out: Tensor  # (d_model, d_mlp)
    b_out: Tensor | None
    scale: float  # of the attention logits
    window: int | None  # how many positions attention sees, the current one included
    rotary: int | None = 0  # index into ``Transformer.rotary``, if that has any; None: no rotation in this layer
    q_gain: Tensor | None = None  # of the norm of queries, (d_head,) or (head, d_head)
    k_gain: Tensor | None = None  # of the norm of keys, the same
    attn_gain: Tensor | None = None  # of the norm after attention, (d_model,)
    mlp_gain: Tensor | None = None  # of the norm after the MLP, (d_model,)
    experts: Experts | None = None  # that the MLP chooses from, besides the weights above
    latent: Latent | None = field(default=None, metadata=LATER)
    sinks: Tensor | None = field(default=None, metadata=LATER)  # (head,): a logit beside those of the keys, of no value

    @property
    def w_write(self) -> Tensor:
        """The map from ``LayerRun.written`` to the residual stream, (d_model, head d_head)."""
        return self.w_o if self.attn_gain is None else self.attn_gain[:, None] * self.w_o

    def of_heads(self, heads: Sequence[int]) -> Layer:
        """The layer with what some of its heads have of their own besides projections."""
        q_gain, k_gain = (x[heads] if x is not None and x.ndim == 2 else x for x in (self.q_gain, self.k_gain))
        sinks = None if self.sinks is None else self.sinks[heads]
        latent = None if self.latent is None else self.latent.of_heads(heads)
        return replace(self, q_gain=q_gain, k_gain=k_gain, sinks=sinks, latent=latent)

    @property
    def d_hidden(self) -> int:
        """How many values the MLP of one token has before its activation: those of the experts that it uses count."""
        return len(self.w_in) + (0 if self.experts is None else self.experts.per_token * self.experts.w_in.shape[1])

    @property
    def mlp_weights(self) -> int:
        """How many weights the MLP of one token uses."""
        shared = self.w_in.numel() + self.w_out.numel()
        if self.experts is None:
            return shared
        return shared + self.experts.per_token * (self.experts.w_in[0].numel() + self.experts.w_out[0].numel())


@dataclass(frozen=True)
class Rotary:
    """Rotary embedding: pairs of the first dimensions of a head turn by position x frequency."""

    frequencies: Tensor  # (half of the rotated dimensions,)
    gain: float = 1.0


def fold_norm(
    weight: Tensor, bias: Tensor | None, gain: Tensor, shift: Tensor | None, *, centre: bool
) -> tuple[Tensor, Tensor | None]:
    """A projection, weight (out, in) and bias, with the gain and shift of the norm before it folded in."""
    if shift is not None:
        moved = weight @ shift
        bias = moved if bias is None else bias + moved
    weight = weight * gain
    return (weight - weight.mean(1, keepdim=True) if centre else weight), bias


def known_fields(instance: Any) -> dict[str, Any]:
    """The fields of a dataclass, without those that were added later and have their default.

    A digest of a model hashes the names and values of the fields of its architecture and its layers. So that digests
    which were recorded before a field existed remain valid, a field that is added later is marked with ``LATER``.
    """
    values = {x.name: getattr(instance, x.name) for x in fields(instance)}
    later = {x.name: x.default for x in fields(instance) if x.metadata == LATER}
    at_default = {name for name, x in later.items() if not isinstance(values[name], Tensor) and values[name] == x}
    return {name: x for name, x in values.items() if name not in at_default}


def fields_of(weights: Any) -> dict[str, Any]:
    """The fields of a dataclass of weights, with those of a layer's experts as ``experts.router`` and so on."""
    own = known_fields(weights)
    for part in PARTS:
        if (inner := own.pop(part, None)) is not None:
            own |= {f"{part}.{name}": x for name, x in known_fields(inner).items()}
    return own
