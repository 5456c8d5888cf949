"""``patch``: corrupt some edges or nodes of a model, or all others, and measure every example."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Bool
from torch import Tensor

from gradpath import defaults
from gradpath.circuit import Circuit
from gradpath.errors import UsageError
from gradpath.evaluation.evaluate import evaluate
from gradpath.evaluation.result import Result
from gradpath.graph import Graph
from gradpath.model.transformer import Transformer
from gradpath.tasks.task import Task


def patch(
    model: Transformer,
    task: Task,
    *,
    edges: Iterable[str] = (),
    nodes: Iterable[str] = (),
    keep: bool = False,
    ablation: str = defaults.ABLATION,
    batch_size: int | None = None,
    memory: int | None = None,
    mean_over: Task | None = None,
) -> Result:
    """Run a model with some edges corrupted, and measure every example.

    Args:
        model: The model.
        task: The examples to measure on.
        edges: Names of edges, such as ``a5.h1->m6`` or ``input->a0.h0<k>``.
        nodes: Names of nodes, such as ``a5.h1`` or ``m3``. They stand for all edges out of them or, with ``keep``, for
            all edges among them, ``input`` and ``logits``.
        keep: Keep these edges and corrupt all others, instead of corrupting these.
        ablation: What a corrupted edge carries: ``corrupted``, ``zero``, ``mean`` or ``mean-positional``.
        batch_size: The largest number of examples in a batch; by default it depends on prompt length and free memory.
        memory: A budget in bytes, weights included; by default the weights and half of the free memory.
        mean_over: The task whose clean prompts the means are taken over; by default ``task`` itself.

    Returns:
        The result. ``circuit_values`` has the metric of each example in the patched run, ``clean_values`` and
        ``corrupted_values`` that on the two prompts.
    """
    for name, value in (("edges", edges), ("nodes", nodes)):
        if isinstance(value, str):
            raise UsageError(f"{name} must be a list of names: got {value!r}. Write {name}=[{value!r}].")
    named = _named(model.graph, list(edges), list(nodes), among=keep)
    index = (model.graph.mask & (named if keep else ~named)).nonzero()
    circuit = Circuit(model.graph, index, torch.zeros(len(index), device="cpu"))
    return evaluate(model, circuit, task, ablation=ablation, batch_size=batch_size, memory=memory, mean_over=mean_over)


def _named(graph: Graph, edges: list[str], nodes: list[str], *, among: bool) -> Bool[Tensor, "source target"]:
    """The edges that are named, and those out of, or among, the nodes that are."""
    if not edges and not nodes:
        raise UsageError(
            "patch needs edges or nodes: got none. Name some, as in edges=['input->m0'] or nodes=['a0.h1']."
        )
    mask = torch.zeros_like(graph.mask)
    for source, target in map(graph.index, edges):
        mask[source, target] = True
    inside = torch.zeros(graph.n_sources + 1, dtype=torch.bool, device="cpu")
    inside[[graph.source(node) for node in nodes]] = True
    if not among:
        return mask | inside[:-1, None]
    if nodes:
        inside[[0, graph.n_sources]] = True  # input and logits
    return mask | (inside[:-1, None] & inside[graph.node_of_target])
