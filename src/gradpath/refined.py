r"""``refined``: a circuit found by taking edges away, each time asking the circuit itself which ones.

Scores say what an edge does in the whole model, one edge at a time. A circuit leaves out most of the model at
once, and then edges matter differently, and errors that are small one by one add up. So this starts from a
large circuit (a tenth of all edges, by |score|) and goes down a ladder of sizes. On every rung it runs the
circuit on the attribution examples and takes each edge's effect on each example there (``effects``). With

    r_i = m_i(circuit) - m_i(model)          how far off example i is
    a_ie                                     what example i loses without edge e

taking out the set R of edges leaves, to first order, r_i - sum over e in R of a_ie. Edges are taken one after
another so that the paper's objective, how far the examples are off, stays smallest:

    e = argmin  |r - a_e|^2 - |r|^2 + caution |a_e|^2  =  argmin  (1 + caution) |a_e|^2 - 2 r . a_e

That takes what has little effect, and what has an effect that the circuit has too much of. The caution is
there because a_e is only a first-order estimate, and made on these examples: without it the circuit fits them
and not others.

The order in which edges go is one nested sequence, so all sizes come from one descent. Cost, on n examples:
per rung one set-up, one run of the circuit and one backward pass through it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gradpath import ranks
from gradpath.look import Look, looking
from gradpath.model.transformer import Transformer
from gradpath.scores import Scores
from gradpath.selection import Order, pruned, top
from gradpath.tasks.task import Task

START = 0.1  # of all edges: where the descent begins
RUNG = 0.6  # of the edges that are left stay on the next rung
TRIM = 1.05  # times the edges asked for are measured once more, and trimmed
CAUTION = 1.0
# Edges are taken in groups, this many a rung where that makes no difference: one by one, each would cost a
# sweep over all effects.
GROUPS = 200


def refined(
    model: Transformer,
    task: Task,
    scores: Scores,
    counts: Sequence[int],
    *,
    batch_size: int = 20,
    memory: int | None = None,
) -> list[Order]:
    """Edges are taken from a tenth of all, by what they do in the circuit itself, until n are left.

    For each of several sizes, best first; ``task`` holds the examples of the scores.
    """
    look = looking(model, task, scores, beginning(scores), batch_size=batch_size, memory=memory)
    return descended(scores, counts, look)


def beginning(scores: Scores) -> int:
    """How many edges the circuit has that the descent begins with."""
    return max(1, round(START * scores.graph.n_edges))


def descended(scores: Scores, counts: Sequence[int], look: Look) -> list[Order]:
    """The same, for who looks at circuits already."""
    order = _descent(scores, min(counts), look)
    return [_trimmed(scores, order, n, look) for n in counts]


def _trimmed(scores: Scores, order: Tensor, n: int, look: Look) -> Order:
    """The first ``n`` edges, once the last few were taken from a circuit that was measured as it is."""
    graph = scores.graph
    if n >= beginning(scores):
        return order[:n]
    mask = torch.zeros(graph.n_sources * graph.n_targets, dtype=torch.bool, device="cpu")
    mask[order[: round(TRIM * n)]] = True
    mask = pruned(graph, mask.view(graph.n_sources, -1)).flatten()
    edges = mask.nonzero()[:, 0]
    if len(edges) > n:
        mask[edges[ranks.of_first(take_away(*look(edges, edges), len(edges) - n))]] = False
    alive = order[mask[order]]
    return torch.cat([alive, order[~mask[order]]])[:n]


def _descent(scores: Scores, n: int, look: Look) -> Order:
    """All edges, those that went last first, down to a circuit of at most ``n``.

    The rungs do not depend on ``n``, so neither does a circuit on the others that were asked for.
    """
    graph = scores.graph
    everything = top(scores, graph.n_edges)
    left = torch.zeros(graph.n_sources * graph.n_targets, dtype=torch.bool, device="cpu")
    left[everything[: beginning(scores)]] = True
    taken = [everything[~left[everything]].flip(0)]  # first to go first
    while True:
        dead = left & ~pruned(graph, left.view(graph.n_sources, -1)).flatten()
        taken.append(everything[dead[everything]].flip(0))
        left &= ~dead
        edges = left.nonzero()[:, 0]
        if len(edges) <= n:
            break
        going = edges[ranks.of_first(take_away(*look(edges, edges), len(edges) - int(RUNG * len(edges))))]
        taken.append(going)
        left[going] = False
    taken.append(everything[left[everything]].flip(0))
    return torch.cat(taken).flip(0)


def take_away(
    off: Float[Tensor, " example"],
    effects: Float[Tensor, "example edge"],
    n: int,
    *,
    caution: float = CAUTION,
) -> Int[Tensor, " taken"]:
    """Which ``n`` edges to take out of a circuit whose examples are ``off`` by so much, first to go first."""
    off, square = off.clone(), effects.square().sum(0)
    open_, taken = torch.ones_like(square, dtype=torch.bool), list[Tensor]()
    most = max(1, n // GROUPS)
    while n:
        gain = torch.where(open_, (1 + caution) * square - 2 * (off @ effects), torch.inf)
        ranked = gain.sort(stable=True)
        chosen = ranked.indices[: min(n, most)]
        # The group stands as far as each of it, behind those before it, still is better than what comes next.
        own = effects[:, chosen]
        before = off[:, None] - (own.cumsum(1) - own)
        then = (1 + caution) * square[chosen] - 2 * (before * own).sum(0)
        good = then <= ranked.values[min(len(chosen), len(gain) - 1)]
        good[0] = True
        chosen = chosen[: int(good.long().cumprod(0).sum())]
        taken.append(chosen)
        open_[chosen] = False
        off -= effects[:, chosen].sum(1)
        n -= len(chosen)
    return torch.cat(taken)
