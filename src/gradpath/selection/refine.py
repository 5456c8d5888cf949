r"""``refined``: remove edges from a large circuit, measured in the circuit itself, until n are left; a consensus.

Scores say what an edge does in the whole model, one edge at a time. A circuit leaves out most of the model at
once; then edges matter differently, and errors that are small one by one add up. So a *descent* starts from
the top 10% of edges by |score| and goes down a ladder of sizes. On every rung it runs a circuit on attribution
examples and takes each edge's effect on each example there (``evaluation.circuit_gradients``). With

    r_i = m_i(circuit) - m_i(model)          the deviation of example i
    a_ie                                     what example i loses without edge e

removing the set R of edges leaves, to first order, the deviations r_i - sum over e in R of a_ie. Edges are
removed one after another so that the paper's objective, the size of the deviations, stays smallest:

    e = argmin  |r - a_e|^2 - |r|^2 + caution |a_e|^2  =  argmin  (1 + caution) |a_e|^2 - 2 r . a_e

This removes edges with little effect, and edges with an effect that the circuit has too much of. The caution is
needed because a_e is a first-order estimate, made on these examples: without it the circuit fits them and no
others. It is larger above ``SHARED``, where there are so many edges that some would fit any deviation by chance. An
edge that is on no path from ``input`` to ``logits`` any more is removed at once. The order in which edges are removed
is one nested sequence, so the circuits of all sizes come from one descent.

Effects change during the descent. So a rung is measured in its middle, in the circuit that the rung above predicts
there, and not at its upper end. The deviations are extrapolated from that circuit to the upper end. Edges are then
removed down to the middle of the next rung; those above the lower end are gone for good.

One descent is one of many that are about as good: other examples, or only another rounding, exchange half of the edges
of a small circuit. So the order of edges is a *consensus* over resamples of the examples. The examples are cut into
``PARTS`` parts, and every resample has half of the parts. Large circuits take most of the time and differ less between
resamples: down to a *fork* at ``SHARED`` of all edges there is a single descent, which measures one half of the
examples and then the other, in turn. From there every resample goes down by itself. Edges are ordered by the mean
logarithm of their ranks in all resamples. Below the fork, the frequency of an edge in the circuit of n edges is the
share of resamples in whose first n edges it is.

Cost: one set-up of the examples; per rung, one run of the circuit and one backward pass through it on half of the
examples, once above the fork and for each resample below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, cycle, repeat
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gradpath.graph import Graph, pruned
from gradpath.runtime import distributed
from gradpath.runtime.progress import progress_bar
from gradpath.scores import Scores
from gradpath.selection.probe import CircuitProbe, start_size
from gradpath.selection.ranking import Context, Edges, Order, Sample, consensus, selection, top
from gradpath.sweep import return_memory

RUNG = 0.6  # the share of a rung's edges that are left at its lower end
SHARED, FORK = 0.005, 100  # down to this share of all edges, or so many if that is more, there is a single descent
SMALLEST = 5  # edges of the circuit that a descent ends with
CAUTION = 2.0
SHARED_CAUTION = 8.0
GROUPS = 200  # sweeps over all effects on a rung; between them edges are taken from the best of the last sweep
FEW = 512  # edges up to this number are compared all with all, in one sweep


@selection("refined")
def refined(scores: Scores, context: Context) -> Order:
    """Start from the top 10% of edges and repeatedly remove those that matter least in the circuit itself."""
    probe = CircuitProbe.of(context.examples("refined", scores), scores)
    halves, start = resampled(len(probe.parts), context.resamples), Descent.of(probe)
    fork = fork_size(scores.n_edges) if len(halves) > 1 else SMALLEST
    in_turn = cycle(resampled(len(probe.parts), 2))
    n_rungs = _rungs(start.n_left, fork) + len(halves) * _rungs(min(fork, start.n_left), SMALLEST)
    with progress_bar("selecting edges by refined", n_rungs, unit="rung") as bar:
        shared = start.down_to(fork, in_turn, bar)
        ends = [shared.down_to(SMALLEST, repeat(half), bar) for half in halves]
    return_memory()
    above = torch.cat(shared.removed).flip(0)
    samples = tuple(
        Sample(end.order[: shared.n_left], probe.examples_of(half)) for end, half in zip(ends, halves, strict=True)
    )
    edges = torch.cat([consensus(samples), above])
    return Order(scores, edges, samples=samples if len(samples) > 1 and shared.n_left else ())


def fork_size(n_edges: int) -> int:
    """The number of edges from which resamples have descents of their own, of so many in the model."""
    return max(FORK, round(SHARED * n_edges))


def resampled(n_parts: int, n: int) -> list[tuple[int, ...]]:
    """At most ``n`` different halves of the parts, each followed by its complement, so that all parts count alike.

    >>> resampled(4, 6)
    [(0, 1), (2, 3), (0, 2), (1, 3), (0, 3), (1, 2)]
    """
    first_halves = [half for half in combinations(range(n_parts), n_parts // 2) if 0 in half]
    halves = [x for half in first_halves for x in (half, tuple(i for i in range(n_parts) if i not in half))]
    return halves[:n] if n_parts > 1 else [(0,)]


def _rungs(n: int, smallest: int) -> int:
    """How many rungs a descent takes at most."""
    return math.ceil(math.log(max(1.0, n / smallest), 1 / RUNG))


@dataclass(frozen=True)
class Descent:
    """How far a descent is: the edges that are left, and those that were removed, first removed first."""

    probe: CircuitProbe
    ranked: Edges  # all edges, by |score|
    left: Bool[Tensor, " flat"]
    middle: Bool[Tensor, " flat"]  # the circuit that is measured next
    removed: tuple[Tensor, ...]  # edges

    @classmethod
    def of(cls, probe: CircuitProbe) -> Descent:
        """The largest circuit of a descent."""
        graph = probe.scores.graph
        ranked, n = top(probe.scores).edges, start_size(graph.n_edges)
        left, middle = (_connected(graph, graph.mask_of(ranked[: round(x * n)])) for x in (1, RUNG**0.5))
        return cls(probe, ranked, left, middle, (ranked[~left[ranked]].flip(0),))

    @property
    def n_left(self) -> int:
        return int(self.left.sum())

    @property
    def order(self) -> Edges:
        """All edges, those removed last first."""
        return torch.cat([*self.removed, self.ranked[self.left[self.ranked]].flip(0)]).flip(0)

    def down_to(self, smallest: int, parts: Iterator[tuple[int, ...]], bar: Any) -> Descent:
        """Go down to a circuit of at most ``smallest`` edges, every rung on the next parts of the examples."""
        descent = self
        while descent.n_left > smallest:
            descent = descent.next_rung(next(parts))
            bar.update()
        return descent

    def next_rung(self, parts: tuple[int, ...]) -> Descent:
        """Measure one rung on some parts of the examples, and remove its edges."""
        graph, edges = self.probe.scores.graph, self.left.nonzero()[:, 0]
        deviations, effects = self.probe.measure(self.middle.nonzero()[:, 0], edges, parts)
        # From the middle, where the circuit was measured, up to the upper end; then down.
        deviations = deviations + effects[:, ~self.middle[edges]].sum(1)
        n_left, n_next = (int(RUNG**power * len(edges)) for power in (1, 1.5))
        caution = SHARED_CAUTION if len(edges) > fork_size(graph.n_edges) else CAUTION
        removal = edges[to_remove(deviations, effects, len(edges) - n_next, Paths(graph, edges).remove, caution)]
        removal = distributed.broadcast_first(removal)
        for_good = removal[: len(edges) - n_left]
        left, middle = self.left.clone(), self.left.clone()
        left[for_good], middle[removal] = False, False
        connected = _connected(graph, left)
        unconnected = self.ranked[(left & ~connected)[self.ranked]].flip(0)
        removed = (*self.removed, for_good, unconnected)
        return Descent(self.probe, self.ranked, connected, middle & connected, removed)


def _connected(graph: Graph, edges: Bool[Tensor, " flat"]) -> Bool[Tensor, " flat"]:
    """The edges that are on a path from ``input`` to ``logits``."""
    return pruned(graph, edges.view(graph.n_sources, -1)).flatten()


class Paths:
    """Which edges are on a path from ``input`` to ``logits``, while edges are removed one after another."""

    def __init__(self, graph: Graph, edges: Int[Tensor, " edge"]) -> None:
        """``edges`` are positions in the flattened matrix; each has to be on a path."""
        sources, targets = graph.unflattened(edges).unbind(1)
        self.source, self.target = sources.tolist(), graph.node_of_target[targets].tolist()
        self.out_of: list[list[int]] = [[] for _ in range(graph.n_sources + 1)]
        self.into: list[list[int]] = [[] for _ in range(graph.n_sources + 1)]
        for edge, (source, target) in enumerate(zip(self.source, self.target, strict=True)):
            self.out_of[source].append(edge)
            self.into[target].append(edge)
        self.n_out, self.n_in = ([len(edges_of_node) for edges_of_node in x] for x in (self.out_of, self.into))
        self.is_removed = [False] * len(edges)

    def remove(self, edge: int) -> list[int]:
        """Remove an edge and all that are then on no path; return them, itself first, or nothing if it was removed."""
        removed, todo = list[int](), [edge]
        while todo:
            edge = todo.pop()
            if self.is_removed[edge]:
                continue
            self.is_removed[edge] = True
            removed.append(edge)
            source, target = self.source[edge], self.target[edge]
            self.n_out[source] -= 1
            self.n_in[target] -= 1
            if not self.n_out[source]:
                todo += self.into[source]
            if not self.n_in[target]:
                todo += self.out_of[target]
        return removed


def to_remove(
    deviations: Float[Tensor, " example"],
    effects: Float[Tensor, "example edge"],
    n: int,
    remove: Callable[[int], list[int]],
    caution: float = CAUTION,
) -> Int[Tensor, " removed"]:
    """Choose edges to remove from a circuit.

    Args:
        deviations: The deviation of each example.
        effects: What each example loses without each edge.
        n: The number of edges to remove.
        remove: Removes an edge; returns it and the edges that are removed with it, or nothing if it was removed before.
            Edges that are removed with another acted through it alone, so their effects are a part of its effect.
        caution: The weight of the edges' own effects.

    Returns:
        The edges in order, ``n`` and those removed with the last of them.
    """
    left, effects = deviations.clone(), effects.T.contiguous()  # (edge, example)
    cost, removed = (1 + caution) * effects.square().sum(1), list[int]()
    group = n if len(cost) <= FEW else max(1, n // GROUPS)
    while len(removed) < n:
        # Sweep all edges for the best few, and take from these until one outside may be better.
        gain = torch.addmv(cost, effects, left, alpha=-2)
        best = gain.topk(min(4 * group, len(cost)), largest=False).indices.sort().values
        edges, before, chosen = best.tolist(), len(removed), list[int]()
        # When one of them is removed, the gain of another changes by twice the product of their effects. NumPy takes
        # less time than PyTorch for so few numbers.
        gains, best_effects = gain[best].numpy(), effects[best].numpy()
        most = gains.max()
        for _ in range(group):
            at = int(gains.argmin())
            if gains[at] > most or len(removed) >= n:
                break
            gains[at] = torch.inf
            if now := remove(edges[at]):
                gains += 2 * (best_effects @ best_effects[at])
                chosen.append(at)
                removed += now
        left -= effects[best[chosen]].sum(0)
        cost[removed[before:]] = torch.inf
    return torch.tensor(removed, dtype=torch.long, device="cpu")
