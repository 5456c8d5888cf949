"""The bootstrap: 95% percentile intervals over examples, of one quantity or of the difference between two.

Two intervals that overlap say little when both were measured on the same examples: an example that is hard for
one circuit is hard for the other. So for a difference the same examples are drawn on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

RESAMPLES = 2000
DRAWN_AT_ONCE = 2**20  # numbers of examples, in bootstrap samples
Cell = Mapping[str, Any]  # of a circuit: see ``grid.jobs.measured``


def bootstrap(values: Float[Tensor, "*quantity example"], statistic: Callable[[Tensor], Tensor]) -> tuple[float, float]:
    """The 95% interval of a statistic over resampled examples.

    Args:
        values: The quantities of every example.
        statistic: A function of values (*quantity, sample, example) that reduces them to one number per sample.

    Returns:
        The 2.5% and the 97.5% quantile.
    """
    n = values.shape[-1]
    generator = torch.Generator(device="cpu").manual_seed(0)
    # A part at a time: for a hundred thousand examples, all samples at once would take gigabytes. The numbers
    # drawn are the same. The results are allocated first, or each would fragment the memory of the next part.
    resampled = torch.empty(RESAMPLES, dtype=values.dtype, device="cpu")
    size = max(1, DRAWN_AT_ONCE // n)
    for part in (resampled[at : at + size] for at in range(0, RESAMPLES, size)):
        draws = torch.randint(n, (len(part), n), generator=generator, device="cpu")
        part.copy_(statistic(values[..., draws]))
    ends = torch.tensor([0.025, 0.975], dtype=resampled.dtype, device="cpu")
    low, high = resampled.quantile(ends).tolist()
    return low, high


def mean_and_interval(values: Float[Tensor, " example"]) -> list[float]:
    """The mean over examples and its 95% interval."""
    return [float(values.double().mean()), *bootstrap(values.double(), lambda drawn: drawn.mean(-1))]


@dataclass(frozen=True)
class Difference:
    """A mean over circuit sizes minus that of another method or selection, with its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


def error_difference(ours: Sequence[Cell], theirs: Sequence[Cell]) -> Difference:
    """Our mean error over circuit sizes minus theirs: below zero is better."""
    return _difference(_error_parts(ours), _error_parts(theirs))


def distance_difference(ours: Sequence[Cell], theirs: Sequence[Cell]) -> Difference:
    """Our mean |1 - NFS| over circuit sizes minus theirs: below zero is better."""
    return _difference(_distance_parts(ours), _distance_parts(theirs))


def _difference(ours: Tensor, theirs: Tensor) -> Difference:
    """Of ratios of means, from their numerators and denominators, (size, 2, example)."""

    def mean_over_sizes(parts: Tensor) -> Tensor:
        numerator, denominator = parts.mean(-1).unbind(1)  # (size, ...)
        return (numerator / denominator).abs().mean(0)

    def difference(both: Tensor) -> Tensor:
        return mean_over_sizes(both[: len(ours)]) - mean_over_sizes(both[len(ours) :])

    both = torch.cat([ours, theirs])
    return Difference(float(difference(both)), *bootstrap(both, difference))


def _error_parts(cells: Sequence[Cell]) -> Tensor:
    return torch.stack(
        [
            torch.stack([(circuit - clean).abs(), (clean - corrupted).abs()])
            for circuit, clean, corrupted in map(_values, cells)
        ]
    )


def _distance_parts(cells: Sequence[Cell]) -> Tensor:
    parts = [(circuit - clean, clean - corrupted) for circuit, clean, corrupted in map(_values, cells)]
    return torch.stack([torch.stack(pair) for pair in parts])


def _values(cell: Cell) -> list[Tensor]:
    names = ("values", "clean_values", "corrupted_values")
    return [torch.tensor(cell[name], dtype=torch.float64, device="cpu") for name in names]
