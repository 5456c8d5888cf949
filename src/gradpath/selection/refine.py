r"""``refined``: remove edges from a large circuit, measured in the circuit itself, until n are left.

Scores say what an edge does in the whole model, one edge at a time. A circuit leaves out most of the model at
once; then edges matter differently, and errors that are small one by one add up. So ``refined`` starts from
the top 10% of edges by |score| and goes down a ladder of sizes. On every rung it runs a circuit on attribution
examples and takes each edge's effect on each example there (``evaluation.circuit_gradients``). With

    r_i = m_i(circuit) - m_i(model)          the deviation of example i
    a_ie                                     what example i loses without edge e

removing the set R of edges leaves, to first order, the deviations r_i - sum over e in R of a_ie. Edges are
removed one after another so that the paper's objective, the size of the deviations, stays smallest:

    e = argmin  |r - a_e|^2 - |r|^2 + caution |a_e|^2  =  argmin  (1 + caution) |a_e|^2 - 2 r . a_e

This removes edges with little effect, and edges with an effect that the circuit has too much of. The caution is
needed because a_e is a first-order estimate, made on these examples: without it the circuit fits them and no
others. An edge that is on no path from ``input`` to ``logits`` any more is removed at once. The order in which edges
are removed is one nested sequence, so the circuits of all sizes come from one descent.

Effects change during the descent. So a rung is measured in its middle, in the circuit that the rung above predicts
there, and not at its upper end. The deviations are extrapolated from that circuit to the upper end. Edges are then
removed down to the middle of the next rung; those above the lower end are gone for good. The next measurement differs
from this prediction, mostly in one direction, because many effects near zero add up. Half of the difference is added
to the drift that is assumed on the next rung.

A rung measures one quarter of the examples, and the next rung the next quarter. The other examples keep the effects
that were last measured. Their deviations follow from the edges removed since, corrected by what the measured quarter
shows. They count less the longer ago they were measured (``KEPT``). So every decision uses all examples at a quarter
of the cost, as in stochastic average gradients (Schmidt, Le Roux and Bach, 2017). Two kinds of rungs measure one half
of the examples: the first one, which removes most edges and has no earlier effects, and those of ``SMALL`` circuits, in
which effects change faster and a run takes less time. An edge may matter to other examples than those of a rung. Its
score s_e, a mean over all n of them, shows this: ``PRIOR`` n s_e^2 is added to its cost on a rung that does not measure
all examples.

Cost: one set-up of the examples; per rung, one run of the circuit and one backward pass through it on a quarter or a
half of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import cycle, islice

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gradpath.graph import Graph, pruned
from gradpath.runtime import distributed
from gradpath.runtime.machine import return_memory
from gradpath.runtime.progress import progress_bar
from gradpath.scores import Scores
from gradpath.selection.probe import CircuitProbe, start_size
from gradpath.selection.ranking import Context, Edges, Order, selection, top

RUNG = 0.6  # the share of a rung's edges that are left at its lower end
CAUTION = 1.0
PRIOR = 1.0  # the weight of an edge's squared score in its cost, for each example
GROUPS = 200  # sweeps over all effects on a rung; between them edges are taken from the best of the last sweep
FEW = 512  # edges up to this number are compared all with all, in one sweep
SMALL = 0.003  # circuits of at most this share of all edges are measured on two parts at a time
KEPT = 0.7  # what the weight of an example is multiplied by on every rung that does not measure it


@selection("refined")
def refined(scores: Scores, context: Context) -> Order:
    """Start from the top 10% of edges and repeatedly remove those that matter least in the circuit itself."""
    return Order(scores, descent(CircuitProbe.of(context.examples("refined", scores), scores), context.smallest))


def descent(probe: CircuitProbe, smallest: int) -> Edges:
    """All edges, those removed last first, down to a circuit of at most ``smallest``.

    The rungs do not depend on ``smallest``, so a circuit does not depend on the other requested sizes.
    """
    graph = probe.scores.graph
    ranked, n_start = top(probe.scores).edges, start_size(graph.n_edges)
    left = _connected(graph, graph.mask_of(ranked[:n_start]))
    middle = _connected(graph, graph.mask_of(ranked[: round(RUNG**0.5 * n_start)]))
    removed = [ranked[~left[ranked]].flip(0)]  # first removed first
    examples, drift, turn = _Examples(len(probe.pairs), left.nonzero()[:, 0]), 0.0, cycle(range(len(probe.parts)))
    # At most so many rungs: edges that are on no path any more are removed in addition.
    n_rungs = math.ceil(math.log(max(1.0, n_start / smallest), 1 / RUNG))
    with progress_bar("selecting edges by refined", n_rungs, unit="rung") as bar:
        while int(left.sum()) > smallest:
            edges = left.nonzero()[:, 0]
            is_first = len(removed) == 1
            n_parts = min(2 if is_first or len(edges) <= SMALL * graph.n_edges else 1, len(probe.parts))
            parts = list(islice(turn, n_parts))
            measured = probe.measure(middle.nonzero()[:, 0], edges, parts)
            drift += examples.update(torch.cat([probe.parts[part][0] for part in parts]), edges, *measured) / 2
            # From the middle, where the circuit was measured, up to the upper end; then down.
            effects = examples.effects
            deviations = examples.deviations + effects[:, ~middle[edges]].sum(1)
            n_left, n_next = (int(RUNG**power * len(edges)) for power in (1, 1.5))
            removal, predicted = to_remove(
                deviations,
                effects,
                len(edges) - n_next,
                Paths(graph, edges).remove,
                drift=drift,
                weights=examples.weights,
                prior=None if n_parts == len(probe.parts) else PRIOR * probe.scores.values.flatten()[edges].square(),
            )
            examples.predict(predicted)
            removal = edges[distributed.broadcast_first(removal)]
            for_good = removal[: len(edges) - n_left]
            middle = left.clone()
            middle[removal] = False
            left[for_good] = False
            connected = _connected(graph, left)
            removed += [for_good, ranked[(left & ~connected)[ranked]].flip(0)]
            left, middle = connected, middle & connected
            bar.update()
        bar.total = bar.n
    removed.append(ranked[left[ranked]].flip(0))
    return_memory()
    return torch.cat(removed).flip(0)


class _Examples:
    """What is known of the examples during the descent: those that were measured, however long ago."""

    def __init__(self, n: int, edges: Int[Tensor, " edge"]) -> None:
        """Nothing yet of ``n`` examples; ``edges`` are those that the descent begins with."""
        self._edges = edges
        self._deviations = torch.zeros(n, device="cpu")  # in the circuit that is measured next, as predicted
        self._effects = torch.zeros(n, len(edges), device="cpu")  # when they were last measured
        self._age = torch.full_like(self._deviations, torch.inf)  # the rungs since then

    def update(
        self,
        rows: Int[Tensor, " row"],
        edges: Int[Tensor, " edge"],
        deviations: Float[Tensor, " row"],
        effects: Float[Tensor, "row edge"],
    ) -> float:
        """Take in the measurements of a rung, of some examples and the edges that are left.

        Returns by how much the predictions were off in the mean. Examples that are not measured now are corrected by
        this; where no measured one has a prediction, it is the difference between different examples.
        """
        off, known = 0.0, self._is_measured[rows]
        if known.any():
            off = float((deviations - self._deviations[rows])[known].mean())
            self._deviations += off
        elif self._is_measured.any():
            off = float(deviations.mean() - self._deviations[self._is_measured].mean())
        self._effects = self._effects[:, torch.searchsorted(self._edges, edges)]
        self._edges, self._age = edges, self._age + 1
        self._deviations[rows], self._effects[rows], self._age[rows] = deviations, effects, 0
        return off

    @property
    def _is_measured(self) -> Bool[Tensor, " example"]:
        return self._age.isfinite()

    @property
    def deviations(self) -> Float[Tensor, " seen"]:
        return self._deviations[self._is_measured]

    @property
    def effects(self) -> Float[Tensor, "seen edge"]:
        return self._effects[self._is_measured]

    @property
    def weights(self) -> Float[Tensor, " seen"]:
        """How much they count: less the longer ago they were measured."""
        return KEPT ** self._age[self._is_measured]

    def predict(self, deviations: Float[Tensor, " seen"]) -> None:
        """Take in what the deviations are expected to be in the circuit that is measured next."""
        self._deviations[self._is_measured] = deviations


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
    *,
    caution: float = CAUTION,
    drift: float = 0.0,
    weights: Float[Tensor, " example"] | None = None,
    prior: Float[Tensor, " edge"] | None = None,
) -> tuple[Int[Tensor, " removed"], Float[Tensor, " example"]]:
    """Choose edges to remove from a circuit.

    Args:
        deviations: The deviation of each example.
        effects: What each example loses without each edge.
        n: The number of edges to remove.
        remove: Removes an edge; returns it and the edges that are removed with it, or nothing if it was removed before.
            Edges that are removed with another acted through it alone, so their effects are a part of its effect.
        caution: The weight of the edges' own effects.
        drift: By how much every deviation will change in addition, until all ``n`` are removed.
        weights: How much each example counts; by default all the same.
        prior: What each edge costs in addition, for each example; by default nothing.

    Returns:
        The edges in order, ``n`` and those removed with the last of them, and the deviations without them.
    """
    root = torch.ones_like(deviations) if weights is None else weights.sqrt()
    left, effects = deviations * root, (effects * root[:, None]).T.contiguous()  # (edge, example)
    cost, removed = (1 + caution) * effects.square().sum(1), list[int]()
    if prior is not None:
        cost += prior * root.square().sum()
    group = n if len(cost) <= FEW else max(1, n // GROUPS)
    while len(removed) < n:
        # Sweep all edges for the best few, and take from these until one outside may be better.
        gain = torch.addmv(cost, effects, left, alpha=-2)
        best = gain.topk(min(4 * group, len(cost)), largest=False).indices.sort().values
        edges, before, chosen = best.tolist(), len(removed), list[int]()
        # When one of them is removed, the gain of another changes by twice the product of their effects. NumPy takes
        # less time than PyTorch for so few numbers.
        gains, best_effects = gain[best].numpy(), effects[best].numpy()
        most, drifts = gains.max(), 2 * drift / n * (best_effects @ root.numpy())
        for _ in range(group):
            at = int(gains.argmin())
            if gains[at] > most or len(removed) >= n:
                break
            gains[at] = torch.inf
            if now := remove(edges[at]):
                gains += 2 * (best_effects @ best_effects[at]) - len(now) * drifts
                chosen.append(at)
                removed += now
        left += drift * (len(removed) - before) / n * root - effects[best[chosen]].sum(0)
        cost[removed[before:]] = torch.inf
    return torch.tensor(removed, dtype=torch.long, device="cpu"), left / root
