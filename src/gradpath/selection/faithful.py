"""The smallest circuit that keeps a share of the behaviour, among the circuits of an order.

Sizes are those of a fixed grid. A circuit that exaggerates the behaviour is as far from the model as one that loses
some of it, so a share of 0.85 means a faithfulness from 0.85 to 1.15. Of a consensus, a circuit is judged on examples
that it was not selected on: for every example, the consensus of those resamples that left it out is run.

A faithfulness is noisy, and the first size that reaches the share would often be one that reached it by chance. On a
plateau, where more edges hardly help, the size would then be arbitrary. So a size is judged together with its
neighbours, and it passes if the examples do not show at the 5% level (one-sided) that their mean distance from 1 is
larger than requested. The whole model has a faithfulness of 1, so some size always passes. With fewer than ten examples
the distance itself decides.

Cost: one run of each circuit, from small to large, two at a time, until a size passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradpath.errors import UsageError
from gradpath.evaluation import check_behaviour, metric_values
from gradpath.prepared import PreparedBatches
from gradpath.runtime import distributed
from gradpath.runtime.progress import progress_bar
from gradpath.selection.ranking import Order, consensus
from gradpath.sweep import own_settings
from gradpath.tasks.task import Pairs

GRID = 1.25  # the ratio of neighbouring sizes
TOGETHER = 3  # neighbouring sizes that are judged together
FEWEST = 10  # examples for a standard error
ONE_SIDED = 1.645  # standard errors: the 95% quantile of a normal distribution
AT_ONCE = 2  # sizes that are measured together: two take hardly longer than one


def check_share(share: float) -> float:
    """The share, if it is one that a circuit can keep."""
    if not 0 < share <= 1:
        raise UsageError(
            f"the faithfulness is the share of the behaviour to keep, above 0 and up to 1, as in 0.85: got {share}."
        )
    return share


def smallest_faithful(examples: PreparedBatches, order: Order, share: float) -> int:
    """The number of edges of the smallest circuit that does not clearly keep less than a share of the behaviour.

    Args:
        examples: The examples that were attributed, prepared.
        order: The circuits to choose from.
        share: The share of the behaviour to keep: the circuit's faithfulness is within 1 - share of 1.

    Returns:
        The number of edges to request.
    """
    most, grid, distances = 1 - check_share(share) + 1e-6, grid_sizes(order.smallest, len(order)), list[float]()
    with progress_bar(f"searching for the smallest circuit with faithfulness {share:.0%}", unit="circuit") as bar:
        for at in range(0, len(grid), AT_ONCE):
            sizes = [n for n in grid[at : at + AT_ONCE] if n < grid[-1]]
            distances += _distances(examples, order, sizes) if sizes else []
            bar.update(len(sizes))
            if len(distances) == len(grid) - 1:  # the largest circuit counts as the whole model
                distances += [0.0] * TOGETHER
            for first in range(max(0, at - TOGETHER + 1), len(distances) - TOGETHER + 1):
                if sum(distances[first : first + TOGETHER]) / TOGETHER <= most:
                    return grid[min(first + TOGETHER // 2, len(grid) - 1)]
    return grid[-1]


def grid_sizes(smallest: int, largest: int) -> list[int]:
    """The sizes from which circuits are chosen: those of a fixed grid, and the largest."""
    powers, n = [1], 1.0
    while powers[-1] < largest:
        n *= GRID
        powers.append(round(n))
    return [*sorted({size for size in powers if smallest <= size < largest}), largest]


def _distances(examples: PreparedBatches, order: Order, sizes: Sequence[int]) -> list[float]:
    """A lower bound of how far the faithfulness of the circuit of each size is from 1."""
    values = torch.zeros(2 + len(sizes), len(examples.task), device="cpu")  # clean, corrupted, and each circuit
    with own_settings(examples.model):
        for out, batches in _by_left_out(examples, order):
            judged = order
            if out:  # the edges that none of the samples has come last
                edges = consensus([order.samples[i] for i in out])
                judged = replace(order, edges=torch.cat([edges, order.edges[len(edges) :]]))
            values += metric_values(examples, [judged.circuit(n) for n in sizes], batches=batches)
    return distributed.on_first_rank(lambda: _distances_from_one(examples, values))


def _distances_from_one(examples: PreparedBatches, values: Tensor) -> list[float]:
    clean, corrupted = values[0].double(), values[1].double()
    check_behaviour(examples.task, clean, corrupted)
    behaviour, distances = clean - corrupted, []
    for x in values[2:].double():
        off = float((x - clean).mean() / behaviour.mean())
        error = 0.0
        if len(x) >= FEWEST:
            error = float((x - clean - off * behaviour).std() / behaviour.mean().abs()) / len(x) ** 0.5
        distances.append(max(0.0, abs(off) - ONE_SIDED * error))
    return distances


def _by_left_out(examples: PreparedBatches, order: Order) -> list[tuple[tuple[int, ...], list[Pairs] | None]]:
    """The batches, by the numbers of the samples of the order that have none of their examples."""
    if not order.samples or examples.batches is None:
        return [((), examples.batches)]
    groups = dict[tuple[int, ...], list[Pairs]]()
    for batch in examples.batches:
        left_out = (i for i, x in enumerate(order.samples) if not torch.isin(batch.index.cpu(), x.examples).any())
        groups.setdefault(tuple(left_out), []).append(batch)
    return list(groups.items())


def log_spaced(first: int, last: int, n: int) -> list[int]:
    """At most ``n`` different sizes from ``first`` to ``last``, evenly spread on a logarithmic scale."""
    ratio = last / first
    return sorted({round(first * ratio ** (i / (n - 1))) for i in range(n)}) if n > 1 else [last]
