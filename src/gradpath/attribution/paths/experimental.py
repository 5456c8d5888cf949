"""Paths that were tried and did not win: see docs/results for what they measured."""

from __future__ import annotations

import torch
from torch import Tensor

from gradpath.attribution.methods import Pair, Points, PointView, Unscored, path
from gradpath.attribution.paths.gradpath import downhill, eap_gp
from gradpath.attribution.paths.line import eap_ig, stacks


@path("eap-moves")
def eap_moves(pair: Pair, *, steps: int = 5) -> Points:
    r"""The straight line, sampled where the output moves: at equal shares of the distance the logits travel.

    Where the logits hardly change along the line, gradients say little, and equal distances waste points there.
    So 2 k forward passes along the line measure how far the logits travel between them, and the k points lie at
    the shares (j - 1/2) / k of that distance, for each example separately.
    """
    probes = 2 * steps
    line = pair.clean - pair.corrupted
    before = (yield Unscored(pair.corrupted)).outputs("last")[0].detach()
    legs = []
    for i in range(1, probes + 1):
        at = pair.clean if i == probes else pair.corrupted + i / probes * line
        here = (yield Unscored(at)).outputs("last")[0].detach()
        legs.append((here - before).norm(dim=-1))
        before = here
    way = torch.stack(legs).cumsum(0)  # (probe, batch)
    fractions = [_where(way, (j + 0.5) / steps) for j in range(steps)]
    yield from stacks(pair, [f[:, None, None].to(line.dtype) for f in fractions])


def _where(way: Tensor, share: float) -> Tensor:
    """The fraction of the line at which the logits have travelled this share of ``way`` (probe, batch), (batch,)."""
    goal = share * way[-1]
    leg = (way < goal).sum(0).clamp(max=len(way) - 1)[None]
    end = way.gather(0, leg)[0]
    begin = torch.where(leg[0] > 0, way.gather(0, (leg - 1).clamp(min=0))[0], 0)
    # Where the output does not move at all, the middle is as good as any.
    part = torch.where(end > begin, (goal - begin) / (end - begin), 0.5)
    return torch.where(way[-1] > 0, (leg[0] + part) / len(way), share)


@path("eap-boxed")
def eap_boxed(pair: Pair, *, steps: int = 5) -> Points:
    """GradPath that stays between the prompts: steps of ||x - x'|| / k, clipped to the box of x and x'.

    Each coordinate stays in the interval between its two ends.
    """
    goal = [logits.detach() for logits in (yield Unscored(pair.corrupted)).outputs("last")]
    low, high = torch.minimum(pair.clean, pair.corrupted), torch.maximum(pair.clean, pair.corrupted)
    length = (high - low).norm(dim=(-2, -1), keepdim=True) / steps

    def descended(here: PointView) -> Tensor:
        g = downhill(here, goal, "last")
        # Coordinates that are the same in both prompts, or that would leave the box at once, have no say.
        g = torch.where(g > 0, g * (here.point > low), g * (here.point < high))
        tiny = torch.finfo(g.dtype).tiny
        moved = here.point - length * g / g.norm(dim=(-2, -1), keepdim=True).clamp_min(tiny)
        return torch.minimum(torch.maximum(moved, low), high)

    point: Tensor | Unscored = Unscored(pair.clean)
    for _ in range(steps):
        point = descended((yield point))
    yield point


@path("eap-monotone")
def eap_monotone(pair: Pair, *, steps: int = 5) -> Points:
    r"""From x to x', moving the coordinates that change the output least first, 1/k of the distance at a time.

    After guided integrated gradients (Kapishnikov et al. 2021). The distance is the sum of |x - x'| over an
    example's coordinates. Each step sets those of smallest gradient to x' until another 1/k of it is done.
    The gradient is that of the squared distance of the logits from the corrupted prompt's. The points are
    gamma_0 = x .. gamma_(k-1); gamma_k would be x'.
    """
    goal = [logits.detach() for logits in (yield Unscored(pair.corrupted)).outputs("last")]
    total = (pair.clean - pair.corrupted).abs().flatten(1).sum(1, keepdim=True)

    def moved(here: PointView, behind: float) -> Tensor:
        order = downhill(here, goal, "last").abs().flatten(1).argsort(dim=1, stable=True)
        left = (here.point - pair.corrupted).abs().flatten(1)
        # What is there already has no way left: it may come first in the order, and moves nothing.
        after = left.gather(1, order).cumsum(1) + total - left.sum(1, keepdim=True)
        going = torch.zeros_like(left, dtype=torch.bool)
        going.scatter_(1, order, after <= total * behind)
        return torch.where(going.view_as(here.point), pair.corrupted, here.point)

    point = pair.clean
    for step in range(1, steps):
        point = moved((yield point), step / steps)
    yield point


@path("eap-average")
def eap_average(pair: Pair, *, steps: int = 5) -> Points:
    """The mean of three paths of k points: eap-ig, eap-moves and eap-gp.

    All three have the same number of points, so this is the mean of their scores.
    """
    yield from eap_ig(pair, steps=steps)
    yield from eap_moves(pair, steps=steps)
    yield from eap_gp(pair, steps=steps)


@path("eap-integral", increments=True)
def eap_integral(pair: Pair, *, steps: int = 5) -> Points:
    """The path integral along the straight line: gradients times the change of the nodes' own writes."""
    yield pair.clean
    for j in range(1, steps):
        yield pair.clean + j / steps * (pair.corrupted - pair.clean)
    yield pair.corrupted
