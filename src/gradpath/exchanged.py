r"""``exchanged``: a refined circuit, some of whose edges then change places with better ones.

``refined`` only ever takes edges away, and an edge that went early does not come back, though the circuit
that is left may need it. So this goes on where it ends. It looks at the circuit once more, this time also at
the edges around it: those that are not in it, between nodes that are. With r_i how far example i is off and
a_ie the effect of edge e (``look``), a trade that takes e out and f in leaves, to first order, r - a_e + a_f.
Trades are made one after another, each the best of the edge to go and the edge to come,

    e = argmin  (1 + caution) |a_e|^2 - 2 r . a_e        f = argmin  (1 + caution) |a_f|^2 + 2 r . a_f

as long as the two together bring the examples nearer. Then the circuit is looked at as it now is, and traded
again, until it is no nearer than before: what is kept was measured.

Cost, on n examples, beyond that of ``refined``: for each size a few more looks, each one set-up, one run of
the circuit and one backward pass through it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gradpath import ranks
from gradpath.look import Look, looking
from gradpath.model.transformer import Transformer
from gradpath.refined import CAUTION, beginning, descended
from gradpath.scores import Scores
from gradpath.selection import Order, pruned
from gradpath.tasks.task import Task

ROUNDS = 4  # of trading, at most
TRADED = 0.1  # of the edges, at most, in one round: further on the effects are not what they were


def exchanged(
    model: Transformer,
    task: Task,
    scores: Scores,
    counts: Sequence[int],
    *,
    batch_size: int = 20,
    memory: int | None = None,
) -> list[Order]:
    """As refined, and then edges change places with others that bring the circuit nearer to the model.

    For each of several sizes, best first; ``task`` holds the examples of the scores.
    """
    look = looking(model, task, scores, beginning(scores), batch_size=batch_size, memory=memory)
    return [_traded(scores, order, look) for order in descended(scores, counts, look)]


def _traded(scores: Scores, order: Int[Tensor, " before"], look: Look) -> Order:
    """At most as many edges as these, after trades; of those that stay, in the order that they had."""
    n, graph = len(order), scores.graph
    if n >= beginning(scores):
        return order
    circuit = torch.zeros(graph.n_sources * graph.n_targets, dtype=torch.bool, device="cpu")
    circuit[order] = True
    best, least = circuit, torch.inf
    for _ in range(ROUNDS + 1):
        circuit = pruned(graph, circuit.view(graph.n_sources, -1)).flatten()
        around = _around(scores, circuit)
        off, effects = look(circuit.nonzero()[:, 0], around)
        error = float(off.abs().mean())
        if error >= least:
            break
        best, least = circuit.clone(), error
        circuit[around] = ranks.of_first(trade(off, effects, circuit[around], n))
    came = best.clone()
    came[order] = False
    return torch.cat([order[best[order]], came.nonzero()[:, 0]])


def _around(scores: Scores, circuit: Bool[Tensor, " flat"]) -> Order:
    """The circuit's edges and those between its nodes, no more of them than ``refined`` begins with.

    Effects of the others are zero; and what bounds the memory of the descent bounds it here.
    """
    graph = scores.graph
    mask = circuit.view(graph.n_sources, -1)
    between = graph.mask & mask.any(1)[:, None] & mask.any(0)
    most = max(int(circuit.sum()), beginning(scores))
    size = torch.where(between, scores.values.abs(), -1.0).masked_fill(mask, torch.inf).flatten()
    chosen = size.sort(descending=True, stable=True).indices[:most]
    return chosen[size[chosen] >= 0].sort().values


def trade(
    off: Float[Tensor, " example"],
    effects: Float[Tensor, "example edge"],
    inside: Bool[Tensor, " edge"],
    n: int,
    *,
    caution: float = CAUTION,
) -> Bool[Tensor, " edge"]:
    """Which edges are inside after trades, ``n`` at most; ``off`` is how far the examples are off before.

    Where fewer than ``n`` are inside, edges first come without another going. None moves twice.
    """
    off, inside, open_ = off.clone(), inside.clone(), torch.ones_like(inside)
    square = (1 + caution) * effects.square().sum(0)
    free = n - int(inside.sum())
    for trades in range(free + max(1, int(TRADED * n))):
        after, gain, goes = off, 0.0, None
        if trades >= free:
            leaving = torch.where(inside & open_, square - 2 * (off @ effects), torch.inf)
            goes = int(leaving.argmin())
            after, gain = off - effects[:, goes], float(leaving[goes])
        coming = torch.where(~inside & open_, square + 2 * (after @ effects), torch.inf)
        comes = int(coming.argmin())
        if gain + float(coming[comes]) >= 0:
            break
        off = after + effects[:, comes]
        inside[comes], open_[comes] = True, False
        if goes is not None:
            inside[goes] = open_[goes] = False
    return inside
