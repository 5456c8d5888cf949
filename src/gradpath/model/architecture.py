"""What describes a model besides the code that runs it: sizes, weights, rotations, and rules for gradients.

``Architecture`` and ``Layer`` contain everything in which models differ. Two exact changes are made to the weights when
a model is loaded (``fold_norm``). The gain and shift of a norm become part of the projection that follows it, so norms
have no parameters. After a LayerNorm, the rows of that projection are centred: the output of the norm has mean zero, so
the result is the same, and a gradient that comes back through the projection has mean zero too. Both kinds of norm then
have the same Jacobian, ``(I - y y^T / d_model) / sigma``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone knows it by)
from torch import Tensor

# Metadata of a field that was added after digests of models had been recorded (``known_fields``).
LATER = {"later": True}
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
# One MLP on rows (row, d_model), from its weights as in ``Layer``: w_in, b_in, w_out, b_out.
FeedForward = Callable[[Tensor, Tensor, Tensor | None, Tensor, Tensor | None], Tensor]
# ``Transformer.norm`` of latents x (..., rank), given the constant in it.
Norm = Callable[[Tensor, float], tuple[Tensor, Tensor]]


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
        """The fields of ``known_fields`` as text."""
        return f"Architecture({', '.join(f'{name}={x!r}' for name, x in known_fields(self).items())})"

    @property
    def d_qkv(self) -> int:
        """The width of a head's projections to q, k and v: ``d_head``, or the width of latents."""
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
    """Backward rules for the nonlinear parts of the model. By default each has its derivative.

    The forward pass does not change. ``attribution.methods`` explains the rules (``relp``, ``gim``).
    """

    norm: bool = False  # the denominator of a norm is a constant
    attention: bool = False  # attention patterns are constants, and the weights of chosen experts
    gate: bool = False  # each factor of a gated product gets half of its gradient
    products: bool = False  # so does each factor of the two products in attention: queries keys, and patterns values
    temperature: float = 1.0  # of the softmax in attention, whose slope is taken there
    activation: bool = False  # an activation f(x) is x times the constant f(x) / x


CALCULUS = Rules()


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: queries, keys and values are computed from short vectors, which all heads share.

    For the normalised input y of one position and head h, where latents have a norm of their own,

        c     = W_c y                                    the latent of keys and values
        k_h   = [rotated W_r y;  U_h norm(c)]            all heads share the rotated part, too
        v_h   = V_h norm(c)
        q_h   = Q_h norm(W_q y),  or  W_qh y             with a latent of queries, or without

    The targets ``<q>``, ``<k>`` and ``<v>`` of a head read the residual stream as in every other model. So each target
    has a copy of its latent, computed from its input, and ``<k>`` also of the rotated part. ``Layer.w_qkv`` projects to
    these, padded to one width. The maps of this class are applied afterwards, head by head.

    The fields are the maps from latents, with the gains of their norms. A fingerprint contains their names.
    """

    k_up: Tensor  # (head, d_key - n_rotated, rank)
    v_up: Tensor  # (head, d_head, rank)
    q_up: Tensor | None  # (head, d_key, rank of queries); None: queries have no latent
    n_rotated: int
    eps: float  # in the norms of latents

    def of_heads(self, heads: Sequence[int]) -> Latent:
        """The maps of these heads."""
        q_up = None if self.q_up is None else self.q_up[heads]
        return replace(self, k_up=self.k_up[heads], v_up=self.v_up[heads], q_up=q_up)

    def queries(self, x: Tensor, norm: Norm) -> Tensor:
        """Queries (batch, pos, head, d_key) from projections (batch, pos, head, d_qkv)."""
        if self.q_up is None:
            return x[..., : self.n_rotated + self.k_up.shape[1]]
        return self._up(self.q_up, x, norm)

    def keys(self, x: Tensor, norm: Norm) -> Tensor:
        """Keys (batch, pos, head, d_key) from projections."""
        rank = self.k_up.shape[2]
        return torch.cat([x[..., rank : rank + self.n_rotated], self._up(self.k_up, x, norm)], -1)

    def values(self, x: Tensor, norm: Norm) -> Tensor:
        """Values (batch, pos, head, d_head) from projections."""
        return self._up(self.v_up, x, norm)

    def _up(self, weights: Tensor, x: Tensor, norm: Norm) -> Tensor:
        return torch.einsum("bphr,hdr->bphd", norm(x[..., : weights.shape[2]], self.eps)[0], weights)


@dataclass(frozen=True)
class Experts:
    """Mixture of experts: the router and the experts of one layer, with the norm before them folded in.

    A router chooses a few of the E experts for every token. For the normalised input y of one token, where each expert
    is a small MLP f_e,

        p_e = softmax(W_r y + b_r)_e             or the sigmoid of each
        S   = the k experts of largest p_e + c_e  c: a correction that only affects the choice
        w_e = p_e, or p_e / sum over S of p       for e in S, times a constant
        out = sum over e in S of w_e f_e(y)       plus the shared expert of all tokens, if there is one

    Some models first choose groups of experts, and then S from these groups. Some multiply inputs, f_e(w_e y).

    The whole block is one node. The choice S is piecewise constant in y. So the gradient flows through the experts in S
    and through their weights w_e, as if S were fixed; a derivative of the choice does not exist where it changes and is
    zero everywhere else. In a patched run S is computed anew from the node's input.

    Each expert runs only on the tokens that chose it: k / E of the work of running all. ``Layer.w_in`` and ``w_out``
    are the shared expert of such a layer; without one, they are 0 wide. A fingerprint contains these field names.
    """

    router: Tensor  # (expert, d_model)
    w_in: Tensor  # (expert, d_mlp, d_model), the gate's rows above the values' rows
    w_out: Tensor  # (expert, d_model, d_mlp)
    per_token: int  # k, how many experts a token uses
    probabilities: Literal["softmax", "sigmoid"] = "softmax"
    sum_to_one: bool = True  # the weights of the chosen experts are divided by their sum
    scale: float = 1.0  # of the weights
    router_bias: Tensor | None = None  # (expert,)
    choice_bias: Tensor | None = None  # (expert,), added to the probabilities for the choice only; always float32
    b_in: Tensor | None = None  # (expert, d_mlp)
    b_out: Tensor | None = None  # (expert, d_model)
    shared_gate: Tensor | None = None  # (1, d_model): the shared expert is multiplied by the sigmoid of this
    n_groups: int = field(default=1, metadata=LATER)  # of equally many experts, one after the other
    groups_per_token: int = field(default=1, metadata=LATER)  # how many of these groups a token chooses from
    group_best: int = field(default=1, metadata=LATER)  # the sum of this many of its best experts ranks a group
    scale_input: bool = field(default=False, metadata=LATER)  # the weight of an expert multiplies its input
    float32_router: bool = field(default=False, metadata=LATER)  # logits in float32 in a model of half precision


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
    sinks: Tensor | None = field(default=None, metadata=LATER)  # (head,): an extra logit, without a value

    @property
    def w_write(self) -> Tensor:
        """The map from ``LayerRun.written`` to the residual stream, (d_model, head d_head)."""
        return self.w_o if self.attn_gain is None else self.attn_gain[:, None] * self.w_o

    def of_heads(self, heads: Sequence[int]) -> Layer:
        """The layer with the gains, sinks and latents of these heads; projections keep all heads."""
        q_gain, k_gain = (x[heads] if x is not None and x.ndim == 2 else x for x in (self.q_gain, self.k_gain))
        sinks = None if self.sinks is None else self.sinks[heads]
        latent = None if self.latent is None else self.latent.of_heads(heads)
        return replace(self, q_gain=q_gain, k_gain=k_gain, sinks=sinks, latent=latent)

    @property
    def d_hidden(self) -> int:
        """How many values the MLP of one token has before its activation, in the experts that it chooses."""
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
    weight: Tensor, bias: Tensor | None, gain: Tensor | None, shift: Tensor | None, *, centre: bool
) -> tuple[Tensor, Tensor | None]:
    """A projection, weight (out, in) and bias, with the gain and shift of the norm before it folded in."""
    if shift is not None:
        moved = weight @ shift
        bias = moved if bias is None else bias + moved
    weight = weight.clone() if gain is None else weight * gain
    return (weight - weight.mean(1, keepdim=True) if centre else weight), bias


def known_fields(instance: Any) -> dict[str, Any]:
    """The fields of a dataclass, without those that were added later and have their default.

    A digest of a model hashes the names and values of the fields of its architecture and its layers. A field that is
    added later is marked with ``LATER``, so that digests from before it existed remain valid.
    """
    values = {}
    for x in fields(instance):
        value = getattr(instance, x.name)
        if x.metadata != LATER or isinstance(value, Tensor) or value != x.default:
            values[x.name] = value
    return values


def fields_of(weights: Any) -> dict[str, Any]:
    """The fields of a dataclass of weights; fields of parts are named ``experts.router`` and so on."""
    values = known_fields(weights)
    for part in PARTS:
        if (inner := values.pop(part, None)) is not None:
            values |= {f"{part}.{name}": x for name, x in known_fields(inner).items()}
    return values


def run_experts(experts: Experts, y: Tensor, feed_forward: FeedForward, *, constant_weights: bool = False) -> Tensor:
    """The sum of the chosen experts' outputs for normalised inputs y, (..., d_model).

    Args:
        experts: Router and experts.
        y: The normalised residual stream.
        feed_forward: Runs the MLP of one expert.
        constant_weights: Whether the router's weights are constants of the backward pass.

    Returns:
        The sum, in the shape of y.
    """
    rows = y.reshape(-1, y.shape[-1])
    weights, chosen = route(experts, rows)
    weights = weights.detach() if constant_weights else weights
    # Rows are sorted by expert, and sorted back. Sums in a fixed order give the same numbers on every device, unlike
    # adding in place.
    order = chosen.flatten().argsort(stable=True)
    sizes = chosen.flatten().bincount(minlength=len(experts.router)).tolist()
    inputs = rows[order // experts.per_token]
    if experts.scale_input:
        inputs, weights = inputs * weights.flatten()[order, None], torch.ones_like(weights)
    parts = [inputs[:0]]
    for e, rows_of_expert in enumerate(torch.split(inputs, sizes)):
        if len(rows_of_expert):
            b_in, b_out = (None if bias is None else bias[e] for bias in (experts.b_in, experts.b_out))
            parts.append(feed_forward(rows_of_expert, experts.w_in[e], b_in, experts.w_out[e], b_out))
    outputs = torch.cat(parts)[order.argsort()].view(*chosen.shape, y.shape[-1])
    return torch.bmm(weights[:, None], outputs).view_as(y)


def route(experts: Experts, y: Tensor) -> tuple[Tensor, Tensor]:
    """The weights and the indices of the experts of each row of y (row, d_model), both (row, chosen)."""
    wide = torch.promote_types(y.dtype, torch.float32)
    at = wide if experts.float32_router else y.dtype
    bias = None if experts.router_bias is None else experts.router_bias.to(at)
    logits = F.linear(y.to(at), experts.router.to(at), bias).to(wide)
    p = logits.sigmoid() if experts.probabilities == "sigmoid" else logits.softmax(-1)
    preferred = p.detach() if experts.choice_bias is None else p.detach() + experts.choice_bias
    if experts.n_groups > 1:
        groups = preferred.view(len(preferred), experts.n_groups, -1)
        of_group = groups.topk(experts.group_best, dim=-1).values.sum(-1)  # (row, group)
        best = of_group.topk(experts.groups_per_token, dim=-1).indices
        outside = torch.ones_like(of_group, dtype=torch.bool).scatter(-1, best, False)
        preferred = groups.masked_fill(outside[..., None], -torch.inf).flatten(-2)
    chosen = preferred.topk(experts.per_token, dim=-1).indices
    weights = p.gather(-1, chosen)
    if experts.sum_to_one:
        weights = weights / weights.sum(-1, keepdim=True)
    return (weights * experts.scale).to(y.dtype), chosen
