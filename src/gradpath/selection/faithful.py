"""The smallest circuit that keeps a share of the behaviour, among the circuits of a nested order.

Sizes are measured from small to large on the attribution examples, a few at a time, until one keeps the share;
then sizes between it and the one below. A circuit that exaggerates the behaviour is as far from the model as one that
loses some of it, so a share of 0.85 asks for a faithfulness from 0.85 to 1.15. The whole model has 1, so some size
always passes.

Cost: one set-up, unless that of the selection is still held, and a run of each circuit, which is cheap because small
ones come first.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradpath.circuit import Circuit
from gradpath.errors import UsageError
from gradpath.evaluation import measure_circuits
from gradpath.evaluation.prepared import SetUps
from gradpath.limits import Limits
from gradpath.model.transformer import Transformer
from gradpath.runtime import distributed
from gradpath.selection.ranking import NestedOrder
from gradpath.sweep import own_settings
from gradpath.tasks.task import Task

RATIO = 1.5  # of neighbouring sizes on the way up
SIZES = 6  # on each part of the way
AT_ONCE = 2  # sizes measured before it is known whether the next ones are needed


def check_share(share: float) -> float:
    """The share, if it is one that a circuit can keep."""
    if not 0 < share <= 1:
        raise UsageError(
            f"the faithfulness is the share of the behaviour to keep, above 0 and up to 1, as in 0.85: got {share}."
        )
    return share


def smallest_faithful(
    model: Transformer, task: Task, order: NestedOrder, share: float, limits: Limits = Limits()
) -> int:
    """The number of edges of the smallest circuit that keeps a share of the behaviour.

    Args:
        model: The model.
        task: The examples that were attributed.
        order: The circuits to choose from.
        share: The share of the behaviour to keep; at 1 - share from the model's behaviour in either direction.
        limits: The batch size and memory.

    Returns:
        The number of edges to request.
    """
    used = order.scores.provenance.ablation
    with own_settings(model):
        set_ups = SetUps.of(model, task, used, limits)

    def passes(sizes: Sequence[int]) -> list[bool]:
        with own_settings(model):
            results = measure_circuits(set_ups, [order.circuit(n) for n in sizes], task, used, limits)
        away = distributed.on_first_rank(lambda: [abs(1 - result.faithfulness) for result in results])
        return [distance <= 1 - check_share(share) + 1e-6 for distance in away]

    def first_passing(sizes: Sequence[int]) -> int | None:
        for at in range(0, len(sizes), AT_ONCE):
            some = sizes[at : at + AT_ONCE]
            for n, is_enough in zip(some, passes(some), strict=True):
                if is_enough:
                    return n
        return None

    below, last = order.smallest - 1, len(order.edges)
    while True:
        sizes = log_spaced(below + 1, round(min(last, (below + 1) * RATIO**SIZES)), SIZES)
        if (n := first_passing(sizes)) is not None:
            break
        if sizes[-1] == last:
            return last
        below = sizes[-1]
    below = max([size for size in sizes if size < n], default=below)
    between = [size for size in log_spaced(below + 1, n, SIZES + 1) if size < n]
    return first_passing(between) or n


def smallest_of(
    model: Transformer, task: Task, circuits: Sequence[Circuit], share: float, limits: Limits = Limits()
) -> int:
    """Which of some circuits is the smallest that keeps a share of the behaviour; the nearest to it if none does."""
    used = circuits[0].provenance.ablation
    with own_settings(model):
        set_ups = SetUps.of(model, task, used, limits)
        results = measure_circuits(set_ups, circuits, task, used, limits)
    away = distributed.on_first_rank(lambda: [abs(1 - result.faithfulness) for result in results])
    passing = [i for i, distance in enumerate(away) if distance <= 1 - check_share(share) + 1e-6]
    if not passing:
        return min(range(len(away)), key=lambda i: away[i])
    return min(passing, key=lambda i: len(circuits[i]))


def log_spaced(first: int, last: int, n: int) -> list[int]:
    """At most ``n`` different sizes from ``first`` to ``last``, evenly spread on a logarithmic scale."""
    ratio = last / first
    return sorted({round(first * ratio ** (i / (n - 1))) for i in range(n)}) if n > 1 else [last]
