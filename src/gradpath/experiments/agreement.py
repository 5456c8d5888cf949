"""How far two lists of scores agree: rank correlation, and the overlap of their largest."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

Values = Float[Tensor, " edge"]


def ranks(values: Values) -> Values:
    """Places from the smallest to the largest; equal values share the mean of their places.

    >>> ranks(torch.tensor([3.0, 1.0, 3.0])).tolist()
    [1.5, 0.0, 1.5]
    """
    _, group, counts = torch.unique(values, return_inverse=True, return_counts=True)
    middle: Tensor = (counts.cumsum(0) - (counts + 1) / 2).double()
    return middle[group]


def spearman(a: Values, b: Values) -> float:
    """The rank correlation; 0 where one of the two does not vary, and so says nothing about order."""
    x, y = (places - places.mean() for places in (ranks(a), ranks(b)))
    size = float(x.norm() * y.norm())
    return float(x @ y) / size if size else 0.0


def correlation_interval(rho: float, n: int) -> tuple[float, float]:
    """The 95% interval of a rank correlation over n edges, by Fisher's z (Bonett and Wright 2000)."""
    if n < 4 or abs(rho) >= 1:
        return (rho, rho) if abs(rho) >= 1 else (-1.0, 1.0)
    spread = 1.96 * math.sqrt((1 + rho**2 / 2) / (n - 3))
    return math.tanh(math.atanh(rho) - spread), math.tanh(math.atanh(rho) + spread)


def overlap(a: Values, b: Values, n: int) -> float:
    """The share of the n largest |a| that are among the n largest |b|; ties go to the lower index."""
    best = [set(x.abs().sort(descending=True, stable=True).indices[:n].tolist()) for x in (a, b)]
    return len(best[0] & best[1]) / n
