"""The true edges of a model that computes exactly, derived from interventions alone.

An edge is true, for a model and its pairs of prompts, if corrupting it changes the metric of some example, either by
itself or while one other edge is corrupted. The second case is needed because edges can hide each other: where either
of two edges is enough (OR), corrupting one of them does nothing. Each true edge is of one kind:

``redundant``  corrupting it by itself does nothing, on any example
``saturated``  it does something, but the gradient at the clean prompt is 0 on every example
``open``       it does something, and has a gradient

A change counts from a thousandth of the mean difference between clean and corrupted prompts on. Compiled models
compute with errors of a hundredth of that.

Cost: one run for each edge and for each pair of edges of which at least one does nothing by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import torch
from torch import Tensor

from gradpath.attribution.attribute import attribute
from gradpath.circuit import Circuit
from gradpath.evaluation import evaluate
from gradpath.graph import Graph
from gradpath.model.transformer import Transformer
from gradpath.tasks.task import Task

CHANGE = 1e-3
TOGETHER = 512  # circuits measured after one set-up
Edges = tuple[int, ...]  # positions in the list of all edges


def true_edges(model: Transformer, task: Task) -> dict[str, str]:
    """The true edges of a model on a task, and the kind of each.

    Args:
        model: A small model that computes exactly.
        task: The pairs of prompts. An edge that matters for none of them is not found.

    Returns:
        The kind of each true edge, by its name: ``open``, ``saturated`` or ``redundant``.
    """
    graph = model.graph
    edges = graph.mask.nonzero()  # (edge, 2)
    alone = _values(model, task, [(), *((e,) for e in range(len(edges)))])  # (1 + edge, example)
    whole, alone = alone[0], alone[1:]
    changed = (alone - whole).abs().amax(1) > CHANGE
    hidden = torch.zeros(len(edges), dtype=torch.bool, device="cpu")
    pairs = [(a, b) for a, b in combinations(range(len(edges)), 2) if not (changed[a] and changed[b])]
    for at in range(0, len(pairs), TOGETHER):
        some = pairs[at : at + TOGETHER]
        first, second = torch.tensor(some, device="cpu").unbind(1)
        both = _values(model, task, some)
        for one, other in ((first, second), (second, first)):
            hidden[one[(both - alone[other]).abs().amax(1) > CHANGE]] = True
    steep = _has_gradient(model, task)
    kinds = {}
    for i, (source, target) in enumerate(edges.tolist()):
        if changed[i] or hidden[i]:
            kind = "redundant" if not changed[i] else "open" if steep[source, target] else "saturated"
            kinds[graph.edge(source, target)] = kind
    return kinds


def without(graph: Graph, corrupted: Edges) -> Circuit:
    """The circuit of all edges but these."""
    keep = torch.ones(graph.n_edges, dtype=torch.bool, device="cpu")
    keep[list(corrupted)] = False
    index = graph.mask.nonzero()[keep]
    return Circuit(graph, index, torch.ones(len(index), device="cpu"))


def _values(model: Transformer, task: Task, corrupted: Sequence[Edges]) -> Tensor:
    """The metric of each example with some edges corrupted, in units of the mean difference, (circuit, example)."""
    rows = []
    for some in _chunks(corrupted):
        results = evaluate(model, [without(model.graph, edges) for edges in some], task, batch_size=len(task))
        unit = (results[0].clean_values - results[0].corrupted_values).abs().mean()
        rows += [result.circuit_values / unit for result in results]
    return torch.stack(rows)


def _chunks(corrupted: Sequence[Edges]) -> Iterator[Sequence[Edges]]:
    for at in range(0, len(corrupted), TOGETHER):
        yield corrupted[at : at + TOGETHER]


def _has_gradient(model: Transformer, task: Task) -> Tensor:
    """Whether EAP's score of an edge is not 0 on some example, (source, target)."""
    sizes = [attribute(model, task[i : i + 1], "eap").values.abs() for i in range(len(task))]
    return torch.stack([size > 1e-6 * size.max().clamp_min(1e-6) for size in sizes]).any(0)
