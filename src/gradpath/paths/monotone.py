"""A path on which every coordinate goes straight from one prompt's value to the other's, in its own time."""

from __future__ import annotations

import torch
from torch import Tensor

from gradpath.paths.descent import downhill
from gradpath.paths.registry import Look, Pair, Points, Visit, path


@path("eap-monotone")
def eap_monotone(pair: Pair, *, steps: int = 5) -> Points:
    r"""From x to x', the coordinates that change the output least first, a k-th of the way at a time.

    After guided integrated gradients (Kapishnikov et al. 2021). The way is the sum of |x - x'| over an
    example's coordinates. Each step sets those of smallest gradient to x' until another k-th of it is done.
    The gradient is that of the squared distance of the logits from the corrupted prompt's. The points are
    gamma_0 = x .. gamma_(k-1); gamma_k would be x'.
    """
    goal = [logits.detach() for logits in (yield Look(pair.corrupted)).outputs("last")]
    total = (pair.clean - pair.corrupted).abs().flatten(1).sum(1, keepdim=True)

    def moved(visit: Visit, behind: float) -> Tensor:
        order = downhill(visit, goal, "last").abs().flatten(1).argsort(dim=1, stable=True)
        left = (visit.point - pair.corrupted).abs().flatten(1)
        # What is there already has no way left: it may come first in the order, and moves nothing.
        after = left.gather(1, order).cumsum(1) + total - left.sum(1, keepdim=True)
        going = torch.zeros_like(left, dtype=torch.bool)
        going.scatter_(1, order, after <= total * behind)
        return torch.where(going.view_as(visit.point), pair.corrupted, visit.point)

    point = pair.clean
    for step in range(1, steps):
        point = moved((yield point), step / steps)
    yield point
