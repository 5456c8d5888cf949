r"""Mixture of experts: an MLP of many parts, of which a router picks a few for every token.

For the normalised input y of one token, with E experts, each a small MLP f_e,

    p_e = softmax(W_r y + b_r)_e             or the sigmoid of each
    S   = the k experts of largest p_e + c_e  c: a correction that only affects the choice
    w_e = p_e, or p_e / sum over S of p       for e in S, times a constant
    out = sum over e in S of w_e f_e(y)       plus what every token gets: the shared expert, if there is one

Some models choose groups of experts first, and S from these alone; some multiply inputs instead of outputs: f_e(w_e y).

The whole block is one node. The choice S is piecewise constant in y. So the gradient flows through the experts in S and
through their weights w_e, as if S were fixed; a derivative of the choice does not exist where it changes and is zero
everywhere else. In a patched run S is computed anew from what the node reads there.

Each expert runs on its own tokens alone: k / E of the work of running all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone knows it by)
from torch import Tensor

# Metadata of a field that was added when models had been recorded already (``architecture.known_fields``).
LATER = {"later": True}
# One MLP on rows (row, d_model), from its weights as in ``Layer``: w_in, b_in, w_out, b_out.
FeedForward = Callable[[Tensor, Tensor, Tensor | None, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Experts:
    """The router and the experts of one layer, with the norm before them folded in. A fingerprint contains these names.

    ``Layer.w_in`` and ``w_out`` are the shared expert of such a layer; without one, they are 0 wide.
    """

    router: Tensor  # (expert, d_model)
    w_in: Tensor  # (expert, d_mlp, d_model), the gate's rows above the values' rows
    w_out: Tensor  # (expert, d_model, d_mlp)
    per_token: int  # k, how many experts a token uses
    probabilities: Literal["softmax", "sigmoid"] = "softmax"
    sum_to_one: bool = True  # the weights of the chosen experts are divided by their sum
    scale: float = 1.0  # of the weights
    router_bias: Tensor | None = None  # (expert,)
    choice_bias: Tensor | None = None  # (expert,), added to the probabilities for the choice alone; always float32
    b_in: Tensor | None = None  # (expert, d_mlp)
    b_out: Tensor | None = None  # (expert, d_model)
    shared_gate: Tensor | None = None  # (1, d_model): the shared expert is multiplied by the sigmoid of this
    n_groups: int = field(default=1, metadata=LATER)  # of equally many experts, one after the other
    groups_per_token: int = field(default=1, metadata=LATER)  # how many of these groups a token chooses from
    group_best: int = field(default=1, metadata=LATER)  # how many of its best experts a group is judged by
    scale_input: bool = field(default=False, metadata=LATER)  # the weight of an expert multiplies its input
    float32_router: bool = field(default=False, metadata=LATER)  # logits in float32 in a model of half precision


def route(experts: Experts, y: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of the experts of each row of y (row, d_model), and which they are, both (row, chosen)."""
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


def run_experts(experts: Experts, y: Tensor, feed_forward: FeedForward, *, constant_weights: bool = False) -> Tensor:
    """The sum of the chosen experts' outputs for normalised inputs y, (..., d_model).

    Args:
        experts: Router and experts.
        y: The normalised residual stream.
        feed_forward: Runs the MLP of one expert.
        constant_weights: Whether the router's weights are constants of the backward pass.

    Returns:
        What the routed experts write, in the shape of y.
    """
    rows = y.reshape(-1, y.shape[-1])
    weights, _, outputs = expert_outputs(experts, rows, feed_forward, constant_weights=constant_weights)
    return torch.bmm(weights[:, None], outputs).view_as(y)


def expert_outputs(
    experts: Experts, rows: Tensor, feed_forward: FeedForward, *, constant_weights: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """For each row: the weights of its experts, which they are, both (row, chosen), and what each of them computes.

    The last is (row, chosen, d_model). Weights that have multiplied the inputs are 1.
    """
    weights, chosen = route(experts, rows)
    weights = weights.detach() if constant_weights else weights
    # Rows in the order of their experts, one after the other, and back: sums in a fixed order give the same numbers
    # on every device, unlike adding up in place.
    order = chosen.flatten().argsort(stable=True)
    sizes = chosen.flatten().bincount(minlength=len(experts.router)).tolist()
    inputs = rows[order // experts.per_token]
    if experts.scale_input:
        inputs, weights = inputs * weights.flatten()[order, None], torch.ones_like(weights)
    parts = [
        feed_forward(own, experts.w_in[e], _row(experts.b_in, e), experts.w_out[e], _row(experts.b_out, e))
        for e, own in enumerate(torch.split(inputs, sizes))
        if len(own)
    ]
    outputs = torch.cat(parts)[order.argsort()] if parts else inputs  # no rows, no parts
    return weights, chosen, outputs.view(*chosen.shape, rows.shape[1])


def _row(bias: Tensor | None, index: int) -> Tensor | None:
    return None if bias is None else bias[index]
