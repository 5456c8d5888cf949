"""Which of two ways to a circuit is better: differences on the same examples, with their interval.

Two intervals that overlap say little when both were measured on the same examples: an example that is hard
for one is hard for the other. So the difference itself is resampled, the same examples on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradpath.evaluation import RESAMPLES

Cell = Mapping[str, Any]  # of a circuit: see ``grid.measured``


@dataclass(frozen=True)
class Difference:
    """A mean over circuit sizes, less the same of another way; and its 95% interval over examples."""

    value: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves no doubt of the sign."""
        return self.low > 0 or self.high < 0


def error_difference(ours: Sequence[Cell], theirs: Sequence[Cell]) -> Difference:
    """Our mean error over circuit sizes less theirs: below zero is better."""
    return _resampled(_errors(ours), _errors(theirs))


def distance_difference(ours: Sequence[Cell], theirs: Sequence[Cell]) -> Difference:
    """Our mean |1 - NFS| over circuit sizes less theirs: below zero is better."""
    return _resampled(_distances(ours), _distances(theirs))


def _resampled(ours: Tensor, theirs: Tensor) -> Difference:
    """Of numerators over denominators, (way's size, 2, example), both taken as means over examples."""
    n = ours.shape[-1]
    generator = torch.Generator(device="cpu").manual_seed(0)
    draws = torch.randint(n, (RESAMPLES, n), generator=generator, device="cpu")
    every = torch.arange(n, device="cpu")[None]
    low, high = _difference(ours, theirs, draws).quantile(torch.tensor([0.025, 0.975]).double()).tolist()
    return Difference(float(_difference(ours, theirs, every)), low, high)


def _difference(ours: Tensor, theirs: Tensor, draws: Tensor) -> Tensor:
    def mean_over_sizes(parts: Tensor) -> Tensor:
        numerator, denominator = parts[..., draws].mean(-1).unbind(1)  # (size, draw)
        return (numerator / denominator).abs().mean(0)

    return mean_over_sizes(ours) - mean_over_sizes(theirs)


def _errors(cells: Sequence[Cell]) -> Tensor:
    return torch.stack(
        [
            torch.stack([(circuit - clean).abs(), (clean - corrupted).abs()])
            for circuit, clean, corrupted in _values(cells)
        ]
    )


def _distances(cells: Sequence[Cell]) -> Tensor:
    return torch.stack(
        [torch.stack([circuit - clean, clean - corrupted]) for circuit, clean, corrupted in _values(cells)]
    )


def _values(cells: Sequence[Cell]) -> list[tuple[Tensor, Tensor, Tensor]]:
    names = ("values", "clean_values", "corrupted_values")
    found = [
        [torch.tensor(cell[name], dtype=torch.float64, device="cpu") for name in names] for cell in cells
    ]
    return [(circuit, clean, corrupted) for circuit, clean, corrupted in found]
