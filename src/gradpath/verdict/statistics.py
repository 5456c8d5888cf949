"""The p values of the tests of a circuit: exact or by resampling, so that nothing is assumed to be normal."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

FLIPS = 4096
LEVEL = 0.05


def p_value(own: float, others: Sequence[float]) -> float:
    """The share of random circuits that are at least as good, the circuit itself among them."""
    return (1 + sum(other <= own for other in others)) / (1 + len(others))


def sign_test(wins: int, losses: int) -> float:
    """The two-sided p value of as uneven a split of wins and losses, if both were as likely.

    >>> sign_test(0, 6), sign_test(3, 3)
    (0.03125, 1.0)
    """
    n, extreme = wins + losses, max(wins, losses)
    ways = sum(math.comb(n, k) for k in range(extreme, n + 1))
    return min(1.0, 2.0 * ways / 2.0**n)


def sign_flip_p(losses: Float[Tensor, "example edge"], dice: torch.Generator) -> Float[Tensor, " edge"]:
    """For each edge how often the mean loss is as large when the signs of the examples are random."""
    signs = 2.0 * torch.randint(2, (FLIPS, len(losses)), generator=dice, device="cpu") - 1
    observed, random = losses.double().mean(0), signs.double() @ losses.double() / len(losses)
    return (1 + (random >= observed - 1e-12).sum(0)) / (1 + FLIPS)


def holm(p: Float[Tensor, " edge"], level: float = LEVEL) -> Bool[Tensor, " edge"]:
    """Which hypotheses are rejected by Holm's step-down procedure.

    >>> holm(torch.tensor([0.01, 0.04, 0.03])).tolist()
    [True, False, False]
    """
    order = p.argsort()
    steps = p[order] <= level / torch.arange(len(p), 0, -1, device="cpu")
    rejected = torch.zeros_like(steps)
    rejected[order] = steps.cumprod(0).bool()
    return rejected
