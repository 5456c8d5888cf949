r"""MIB's two areas for a ranking of edges: how much circuits of all sizes keep, and how far off they are.

With f(p) the faithfulness of the circuit of the share p of all edges, as MIB's benchmark (Mueller et al.,
2025) defines them::

    CPR = area under f(p)           (integrated circuit performance ratio)
    CMD = area under |1 - f(p)|     (integrated circuit-model distance: 0 is the model's behaviour)

by the trapezoid rule over p = .001 .002 .005 .01 .02 .05 .1 .2 .5 1, on a linear scale. A circuit has int(p n) of the n
edges, the first of a ranking by |score| (``top``) or by the score with its sign (``signed``), and is pruned. f is the
normalized faithfulness of ``evaluate``. CMD is the number to read. CPR rewards circuits that are too strong: a ranking
whose circuits match the model has 0.999 (the areas begin at .001), and a larger value is not better.

All edges are the model itself, so f(1) = 1 by definition and is not run. The other nine circuits cost one set-up of an
evaluation and nine runs. Intervals are 95% percentile bootstraps over examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradpath.evaluation.result import Result, bootstrap
from gradpath.graph import Graph

FRACTIONS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True)
class Areas:
    """CPR and CMD of one ranking, with their intervals, and the faithfulness at every fraction."""

    faithfulness: tuple[float, ...]
    cpr: float
    cpr_interval: tuple[float, float]
    cmd: float
    cmd_interval: tuple[float, float]


def edges_at(graph: Graph, fraction: float) -> int:
    """How many edges MIB takes: rounded down. At least one, where a model has fewer than a thousand."""
    return max(1, int(fraction * graph.n_edges))


def areas(clean: Tensor, corrupted: Tensor, circuits: Sequence[Tensor]) -> Areas:
    """CPR and CMD from every example's metric: at both ends, and in the circuits of the fractions below 1."""
    values = torch.stack([clean, corrupted, *circuits]).double().cpu()  # (2 + fraction, example)
    numbers = [float(area(values)) for area in (_cpr, _cmd)]
    intervals = [bootstrap(values, area) for area in (_cpr, _cmd)]
    return Areas(tuple(_faithfulness(values).tolist()), numbers[0], intervals[0], numbers[1], intervals[1])


def areas_of(results: Sequence[Result]) -> Areas:
    """CPR and CMD of the circuits of all fractions below 1, in that order."""
    first = results[0]
    return areas(first.clean_values, first.corrupted_values, [result.circuit_values for result in results])


def _cpr(values: Tensor) -> Tensor:
    return _area(_faithfulness(values))


def _cmd(values: Tensor) -> Tensor:
    return _area((1 - _faithfulness(values)).abs())


def _faithfulness(values: Tensor) -> Tensor:
    """At every fraction, 1 at the last, (fraction, ...)."""
    clean, corrupted, *circuits = values.mean(-1).unbind(0)
    return torch.stack([(x - corrupted) / (clean - corrupted) for x in circuits] + [torch.ones_like(clean)])


def _area(values: Tensor) -> Tensor:
    """Of values at every fraction, (fraction, ...)."""
    return torch.trapezoid(values, torch.tensor(FRACTIONS, dtype=values.dtype, device="cpu"), dim=0)
