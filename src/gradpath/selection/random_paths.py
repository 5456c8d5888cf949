"""``random-paths``: random circuits in which every edge lies on a path from ``input`` to ``logits``.

A few edges drawn one by one are a weak baseline: in a large model they hardly ever form a path, so nothing reaches
``logits`` and every circuit beats them. So these circuits grow by whole paths, like the random circuits of Shi et al.
(2024, arXiv 2410.13032). A path begins at a random target of the circuit and goes back, each time to a random source
that the target reads and to a random q, k or v of that head, until it meets the circuit or ``input``. Paths are added
until there are n edges. (In the code of Shi et al. paths go forward from the input, and the last one may exceed n.)
"""

from __future__ import annotations

from random import Random

import torch
from jaxtyping import Bool
from torch import Tensor

from gradpath.graph import Graph
from gradpath.scores import Scores
from gradpath.selection.ranking import Order, selection

TRIES = 50  # paths that do not fit, one after another, before single edges fill the circuit up


@selection("random-paths", nested=False)
def random_paths(scores: Scores, n: int, *, seed: int = 0) -> Order:
    """n edges of random paths from input to logits: a stronger baseline than random edges."""
    return random_circuit(scores.graph, n, Random(seed)).flatten().nonzero()[:, 0]


def random_circuit(graph: Graph, n: int, dice: Random) -> Bool[Tensor, "source target"]:
    """A circuit of n random edges, each on a path from ``input`` to ``logits``.

    Args:
        graph: The graph of the model.
        n: The number of edges.
        dice: The source of randomness.

    Returns:
        The edges; fewer than n only where no further edge fits.
    """
    edges, nodes, readers, failed = set[tuple[int, int]](), {0}, [graph.logits], 0
    before, targets_of = graph.sources_before_target.tolist(), _targets_of(graph)
    while len(edges) < n:
        path, target = list[tuple[int, int]](), dice.choice(readers)
        while not path or path[-1][0] not in nodes:
            source = dice.randrange(before[target])
            path.append((source, target))
            target = dice.choice(targets_of[source]) if source else target
        new = set(path) - edges
        if failed == TRIES:
            between = [(u, v) for v in readers for u in nodes if u < before[v] and (u, v) not in edges]
            new = set(dice.sample(sorted(between), min(len(between), n - len(edges))))
            failed = 0
            if not new and (len(nodes) == graph.n_sources or n - len(edges) < 2):
                break  # another node takes two edges
        if not new or len(edges) + len(new) > n:
            failed += 1
            continue
        failed = 0
        edges |= new
        for source in {source for source, _ in new} - nodes:
            nodes.add(source)
            readers += targets_of[source]
    mask = torch.zeros_like(graph.mask)
    for edge in edges:
        mask[edge] = True
    return mask


def _targets_of(graph: Graph) -> list[list[int]]:
    """For each source the targets of the same node; none for ``input``."""
    targets: list[list[int]] = [[] for _ in range(graph.n_sources + 1)]
    for target, node in enumerate(graph.node_of_target.tolist()):
        targets[node].append(target)
    return targets
