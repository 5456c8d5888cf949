"""The smallest circuit that keeps a share of the behaviour, among the circuits of an order.

Sizes are measured from small to large on the attribution examples, two at a time, until one keeps the share. The gap
between it and the size below is then divided into three repeatedly, until neighbours differ by a few percent. A
circuit that exaggerates the behaviour is as far from the model as one that loses some of it, so a share of 0.85 means
a faithfulness from 0.85 to 1.15. The whole model has 1, so some size always passes.

Cost: one set-up, unless that of the selection is still in memory, and a run of each circuit, which is cheap because
small ones come first.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradpath.circuit import Circuit
from gradpath.errors import UsageError
from gradpath.evaluation import measure_circuits
from gradpath.prepared import PreparedBatches
from gradpath.runtime import distributed
from gradpath.runtime.progress import progress_bar
from gradpath.selection.ranking import Order
from gradpath.sweep import own_settings

RATIO = 1.6  # of neighbouring sizes on the way up
AT_ONCE = 2  # sizes that are measured together: two take hardly longer than one
FINE = 1.08  # the ratio of neighbouring sizes in the end


def check_share(share: float) -> float:
    """The share, if it is one that a circuit can keep."""
    if not 0 < share <= 1:
        raise UsageError(
            f"the faithfulness is the share of the behaviour to keep, above 0 and up to 1, as in 0.85: got {share}."
        )
    return share


def smallest_faithful(examples: PreparedBatches, order: Order, share: float) -> int:
    """The number of edges of the smallest circuit that keeps a share of the behaviour.

    Args:
        examples: The examples that were attributed, prepared.
        order: The circuits to choose from.
        share: The share of the behaviour to keep: the circuit's faithfulness is within 1 - share of 1.

    Returns:
        The number of edges to request.
    """

    def narrowed(below: int, n: int, sizes: list[int]) -> tuple[int, int]:
        """The gap between a size that does not pass and one that does, after measuring sizes between them."""
        distances = _distances(examples, [order.circuit(size) for size in sizes])
        for size, distance in zip(sizes, distances, strict=True):
            if _passes(distance, share):
                return below, size
            below = size
        return below, n

    below, n, way_up = order.smallest - 1, len(order.edges), [order.smallest]
    while way_up[-1] < n:
        way_up.append(max(way_up[-1] + 1, round(RATIO * way_up[-1])))
    way_up.pop()  # the largest size need not be measured
    with progress_bar(f"searching for the smallest circuit with faithfulness {share:.0%}", unit="circuit") as bar:
        while way_up:
            below, n = narrowed(below, n, way_up[:AT_ONCE])
            way_up = [size for size in way_up[AT_ONCE:] if size < n]  # none, once a size passes
            bar.update(AT_ONCE)
        while n > below + 1 and n > FINE * below:
            below, n = narrowed(below, n, log_spaced(below, n, AT_ONCE + 2)[1:-1])
            bar.update(AT_ONCE)
    return n


def _distances(examples: PreparedBatches, circuits: Sequence[Circuit]) -> list[float]:
    """How far the faithfulness of each circuit is from 1."""
    with own_settings(examples.model):
        results = measure_circuits(examples, circuits)
    return distributed.on_first_rank(lambda: [abs(1 - result.faithfulness) for result in results])


def _passes(distance: float, share: float) -> bool:
    return distance <= 1 - check_share(share) + 1e-6


def log_spaced(first: int, last: int, n: int) -> list[int]:
    """At most ``n`` different sizes from ``first`` to ``last``, evenly spread on a logarithmic scale."""
    ratio = last / first
    return sorted({round(first * ratio ** (i / (n - 1))) for i in range(n)}) if n > 1 else [last]
