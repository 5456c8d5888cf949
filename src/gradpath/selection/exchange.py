"""``exchanged``: go on from ``refined`` and swap edges for others that bring the circuit nearer to the model.

An edge that was removed early does not come back in ``refined``, though the smaller circuit may need it. So the
circuit is measured once more, together with the edges around it: those that are not in it, between nodes that are. With
the deviations r and the effects a of ``refine``, a swap that removes e and adds f leaves r - a_e + a_f. The best pair

    e = argmin  (1 + caution) |a_e|^2 - 2 r . a_e        f = argmin  (1 + caution) |a_f|^2 + 2 r . a_f

is swapped as long as it brings the examples nearer to the model. Then the circuit is measured again, and this
repeats until the error stops falling; the best circuit that was measured is kept.

Cost: that of ``refined``; per round of swaps, one run of the circuit and one backward pass through it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gradpath.graph import pruned
from gradpath.limits import Limits
from gradpath.model.transformer import Transformer
from gradpath.runtime import distributed
from gradpath.scores import Scores
from gradpath.selection.probe import CircuitProbe, start_size
from gradpath.selection.ranking import Order, Orders, selection
from gradpath.selection.refine import CAUTION, descent
from gradpath.tasks.task import Task

SWAP_ROUNDS = 4
SWAPPED = 0.1  # the largest share of edges swapped in one round: beyond it the measured effects go stale


@selection("exchanged", measures=True, nested=False)
def exchanged(
    model: Transformer, task: Task, scores: Scores, counts: Sequence[int], limits: Limits = Limits()
) -> Orders:
    """Like refined, then swap edges for others that bring the circuit nearer to the model.

    One order for each size, best first; ``task`` holds the examples of the scores.
    """
    probe = CircuitProbe.of(model, task, scores, limits)
    order = descent(probe, min(counts))
    return [_swapped(probe, order[:n]) for n in counts]


def _swapped(probe: CircuitProbe, order: Int[Tensor, " before"]) -> Order:
    """At most as many edges as these, after swaps; those that stay keep their order."""
    n, graph = len(order), probe.scores.graph
    if n >= start_size(graph.n_edges):
        return order
    circuit = graph.mask_of(order)
    best, least = circuit, torch.inf
    for _ in range(SWAP_ROUNDS + 1):
        circuit = pruned(graph, circuit.view(graph.n_sources, -1)).flatten()
        around = _around(probe.scores, circuit)
        deviations, effects = probe.measure(circuit.nonzero()[:, 0], around)
        error = float(deviations.abs().mean())
        if error >= least:
            break
        best, least = circuit.clone(), error
        circuit[around] = distributed.broadcast_first(swap(deviations, effects, circuit[around], n))
    added = best.clone()
    added[order] = False
    return torch.cat([order[best[order]], added.nonzero()[:, 0]])


def _around(scores: Scores, circuit: Bool[Tensor, " flat"]) -> Order:
    """The circuit's edges and those between its nodes, at most as many as ``refined`` starts from.

    Effects of the others are zero; and what bounds the memory of the descent bounds it here.
    """
    graph = scores.graph
    mask = circuit.view(graph.n_sources, -1)
    between = graph.mask & mask.any(1)[:, None] & mask.any(0)
    most = max(int(circuit.sum()), start_size(graph.n_edges))
    size = torch.where(between, scores.values.abs(), -1.0).masked_fill(mask, torch.inf).flatten()
    chosen = size.sort(descending=True, stable=True).indices[:most]
    return chosen[size[chosen] >= 0].sort().values


def swap(
    deviations: Float[Tensor, " example"],
    effects: Float[Tensor, "example edge"],
    inside: Bool[Tensor, " edge"],
    n: int,
    *,
    caution: float = CAUTION,
) -> Bool[Tensor, " edge"]:
    """Which edges are inside after swaps, at most ``n``; ``deviations`` are those before.

    Where fewer than ``n`` are inside, edges are first added without another being removed. None moves twice.
    """
    deviations, inside, movable = deviations.clone(), inside.clone(), torch.ones_like(inside)
    square = (1 + caution) * effects.square().sum(0)
    free = n - int(inside.sum())
    for swaps in range(free + max(1, int(SWAPPED * n))):
        after, gain, out = deviations, 0.0, None
        if swaps >= free:
            removing = torch.where(inside & movable, square - 2 * (deviations @ effects), torch.inf)
            out = int(removing.argmin())
            after, gain = deviations - effects[:, out], float(removing[out])
        adding = torch.where(~inside & movable, square + 2 * (after @ effects), torch.inf)
        into = int(adding.argmin())
        if gain + float(adding[into]) >= 0:
            break
        deviations = after + effects[:, into]
        inside[into], movable[into] = True, False
        if out is not None:
            inside[out] = movable[out] = False
    return inside
