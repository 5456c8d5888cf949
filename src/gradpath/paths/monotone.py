"""A path on which every coordinate goes straight from one prompt's value to the other's, in its own time."""

from __future__ import annotations

import torch

from gradpath.paths.descent import downhill
from gradpath.paths.registry import Look, Pair, Points, path


@path("eap-monotone")
def eap_monotone(pair: Pair, *, steps: int = 5) -> Points:
    r"""From x to x', the coordinates that change the output least first, a k-th of the way at a time.

    After guided integrated gradients (Kapishnikov et al. 2021). The way is the sum of |x - x'| over an
    example's coordinates. Each step sets those of smallest gradient to x' until another k-th of it is done.
    The gradient is that of the squared distance of the logits from the corrupted prompt's. The points are
    gamma_0 = x .. gamma_(k-1); gamma_k would be x'.
    """
    goal = [logits.detach() for logits in (yield Look(pair.corrupted)).outputs("last")]
    visit = yield pair.clean
    for step in range(1, steps):
        g = downhill(visit, goal, "last").abs()
        left = (visit.point - pair.corrupted).abs()
        ways = left.flatten(1)
        total = (pair.clean - pair.corrupted).abs().flatten(1).sum(1, keepdim=True)
        # What is done already has no way left and may come first in the order without moving anything.
        order = g.flatten(1).argsort(dim=1, stable=True)
        behind = ways.gather(1, order).cumsum(1) + total - ways.sum(1, keepdim=True)
        going = torch.zeros_like(ways, dtype=torch.bool)
        going.scatter_(1, order, behind <= total * (step / steps))
        visit = yield torch.where(going.view_as(left), pair.corrupted, visit.point)
