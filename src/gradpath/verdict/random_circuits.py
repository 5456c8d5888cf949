"""Random circuits of the shape of another: connected, with as many edges into the heads and the MLP of each layer.

Edges that are drawn one by one hardly ever form a path, and any circuit is better than those. Here every edge is on a
path from ``input`` to ``logits``.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import torch
from jaxtyping import Bool
from torch import Tensor

from gradpath.graph import Graph
from gradpath.scores import Scores
from gradpath.selection import rank

ATTEMPTS = 30
Edges = set[tuple[int, int]]


def random_circuits_like(graph: Graph, mask: Tensor, n: int, dice: Random) -> list[Bool[Tensor, "source target"]]:
    """Random circuits with the size and shape of a connected one.

    Args:
        graph: The graph of the model.
        mask: The edges of the circuit.
        n: The number of random circuits.
        dice: The source of randomness.

    Returns:
        The circuits; where the shape leaves hardly any choice, circuits of random paths with as many edges. None of
        them is the circuit itself, unless there is no other.
    """
    circuits = []
    for _ in range(n):
        for attempt in range(ATTEMPTS):
            edges = _edges_like(graph, mask, dice) if attempt < ATTEMPTS // 2 else None
            drawn = _paths(graph, int(mask.sum()), dice) if edges is None else _mask(graph, edges)
            if not torch.equal(drawn, mask):
                break
        circuits.append(drawn)
    return circuits


def _paths(graph: Graph, n: int, dice: Random) -> Tensor:
    zeros = Scores(graph, torch.zeros(graph.mask.shape, device="cpu"))
    return rank(zeros, f"random-paths+seed={dice.randrange(2**31)}", sizes=[n])[:n].mask


def _mask(graph: Graph, edges: Edges) -> Tensor:
    mask = torch.zeros_like(graph.mask)
    mask[tuple(torch.tensor(sorted(edges), device="cpu").T)] = True
    return mask


def _edges_like(graph: Graph, mask: Tensor, dice: Random) -> Edges | None:
    """One attempt, from ``logits`` down; None if edges do not fit. Those that a stage has no room for go elsewhere.

    A stage is the heads of a layer, or its MLP: targets that read the same sources, and the nodes that they belong to.
    """
    before, nodes = graph.sources_before_target.tolist(), graph.node_of_target.tolist()
    quota = Counter(before[target] for _, target in mask.nonzero().tolist())
    targets_of, members, stage_of = dict[int, list[int]](), {0: [0]}, {0: 0}
    for target, node in enumerate(nodes):
        targets_of.setdefault(node, []).append(target)
        if node not in stage_of:
            stage_of[node] = before[target]
            members.setdefault(before[target], []).append(node)
    hosted = _hosted_stages(quota, dice)
    if hosted is None or before[-1] not in quota:
        return None
    chosen = {stage: set[int]() for stage in quota} | {before[-1]: {nodes[-1]}, 0: {0}}
    edges: Edges = set()
    for stage in sorted(quota, reverse=True):
        readers = dice.sample(sorted(chosen[stage]), len(chosen[stage]))  # each needs an edge into it
        every = [x for lower in members if lower < stage and lower in chosen for x in members[lower]]
        for i in range(quota[stage]):
            targets = targets_of[readers[i] if i < len(readers) else dice.choice(readers)]
            candidates = members[hosted[stage][i]] if i < len(hosted[stage]) else every
            for _ in range(ATTEMPTS):
                source = dice.choice(candidates)
                taken = chosen[stage_of[source]]
                if source not in taken and len(taken) >= quota[stage_of[source]]:
                    source = dice.choice(sorted(taken))  # another node would be one more than has an edge into it
                if (edge := (source, dice.choice(targets))) not in edges:
                    edges.add(edge)
                    taken.add(source)
                    break
    inside = set[int]().union(*chosen.values())
    other = [(u, v) for node in inside - {0} for v in targets_of[node] for u in inside if u < before[v]]
    other = sorted({*other} - edges)
    missing = quota.total() - len(edges)  # where a stage has no room, as the heads of the first layer
    circuit = edges.union(dice.sample(other, missing)) if missing <= len(other) else None
    connected = {nodes[target] for _, target in edges} >= inside - {0}
    return circuit if connected else None


def _hosted_stages(quota: Counter[int], dice: Random) -> dict[int, list[int]] | None:
    """For each stage the lower ones that it reads in any case, so that every stage with edges is read by another."""
    stages = sorted(quota, reverse=True)
    hosted: dict[int, list[int]] = {stage: [] for stage in stages}
    for at, stage in enumerate(stages[1:], 1):
        free = [upper for upper in stages[:at] if len(hosted[upper]) < quota[upper]]
        if not free:
            return None
        hosted[dice.choice(free)].append(stage)
    return hosted
