"""From scores to a circuit.

``rank`` orders the edges by a selection, and ``select`` takes the first n of them, pruned. A selection uses only the
scores (``ranking``), or runs circuits on the attribution examples while it selects, so that it also needs the model and
those examples, and takes more passes (``refine``, ``learned``, ``acdc``).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import torch

from gradpath import defaults
from gradpath.circuit import Circuit
from gradpath.errors import UsageError, check_type
from gradpath.evaluation.patched_run import check_same_graph
from gradpath.graph import Graph
from gradpath.model.transformer import Transformer
from gradpath.prepared import PreparedBatches
from gradpath.recipe import Recipe
from gradpath.scores import Scores
from gradpath.selection.ranking import (
    SELECTIONS,
    Context,
    NeedsModelError,
    Order,
    checked,
    circuit_of,
    edge_count,
    find_selection,
    selection,
    top,
)
from gradpath.sweep import Limits, own_settings
from gradpath.tasks.task import Task

# Other packages import these from here.
__all__ = [
    "SELECTIONS",
    "Context",
    "NeedsModelError",
    "Order",
    "edge_count",
    "find_selection",
    "rank",
    "select",
    "selection",
]


def select(
    scores: Scores,
    n: int | None = None,
    *,
    sparsity: float | None = None,
    nodes: int | None = None,
    selection: str | None = None,
    prune: bool = True,
    model: Transformer | None = None,
    task: Task | None = None,
    resamples: int | None = None,
    batch_size: int | None = None,
    memory: int | None = None,
) -> Circuit:
    """Select a circuit by its scores.

    Args:
        scores: The scores from ``attribute``.
        n: The number of edges. ``acdc`` needs none: its threshold determines the size.
        sparsity: The share of edges to leave out, instead of ``n``.
        nodes: The number of heads and MLPs, instead of ``n``: the circuit has all edges among them.
        selection: The selection (``gradpath ls selections``), with options as in ``acdc+threshold=0.01``. By default
            ``refined``, or ``top`` where ``model`` or ``task`` is missing.
        prune: Whether to remove edges that are on no path from ``input`` to ``logits``.
        model: The model, for selections that measure circuits.
        task: The attributed examples, for selections that measure circuits. Do not pass the examples that the
            circuit will be evaluated on.
        resamples: The number of resamples of these examples, for a selection that is a consensus; 1: no consensus.
        batch_size: The largest number of examples in a batch; by default it depends on prompt length and free memory.
        memory: A budget in bytes, weights included; by default the weights and half of the free memory.

    Returns:
        The circuit. Its ``recipe`` records how it was selected.
    """
    check_type("the first argument", scores, Scores)
    sizes = {"n": n, "sparsity": sparsity, "nodes": nodes}
    if len(given := [f"`{name}`" for name, size in sizes.items() if size is not None]) > 1:
        raise UsageError(f"{' and '.join(given)} each set the size of the circuit: give one of them.")
    if nodes is not None:
        if selection is not None:
            raise UsageError("`selection` selects edges and `nodes` selects nodes: give one of them.")
        return select_nodes(scores, nodes, prune=prune)
    if not selection:
        selection = defaults.RANKING if model is None or task is None else defaults.SELECTION
    requested = [edge_count(scores.n_edges, n, sparsity)] if given else []
    limits = Limits(batch_size, memory)
    order = rank(scores, selection, model, task, sizes=requested, limits=limits, resamples=resamples)
    size = order.size if not requested else requested[0]
    return order.circuit(edge_count(scores.n_edges, None, None) if size is None else size, prune=prune)


def rank(
    scores: Scores,
    selection: str = defaults.RANKING,
    model: Transformer | None = None,
    task: Task | None = None,
    *,
    sizes: Sequence[int] = (),
    smallest: int | None = None,
    largest: int | None = None,
    limits: Limits = Limits(),
    prepared: PreparedBatches | None = None,
    resamples: int | None = None,
) -> Order:
    """Order edges, best first, for circuits of all sizes: each is a part of every larger one.

    Args:
        scores: The scores from ``attribute``.
        selection: The selection (``gradpath ls selections``), with options as in ``acdc+threshold=0.01``.
        model: The model, for selections that measure circuits.
        task: The examples that were attributed, for selections that measure circuits.
        sizes: The numbers of edges that matter most, for a selection such as ``learned`` that learns for certain
            sizes.
        smallest: The smallest number of edges that will be used; by default the smallest of ``sizes``, or 1.
        largest: The largest number of edges that will be used; by default the largest of ``sizes``, or all.
        limits: The batch size and memory of selections that measure circuits.
        prepared: The examples, if they are prepared already; instead of ``model``, ``task`` and ``limits``.
        resamples: The number of resamples of the examples, for a selection that is a consensus.

    Returns:
        The order. ``order[:n]`` is the circuit of ``n`` edges, and ``order.size`` the number of edges that the
        selection decided on, if it did.
    """
    chosen, options = find_selection(selection)
    scores, total = checked(scores), scores.n_edges
    sizes = tuple(edge_count(total, n, None) for n in sizes)
    smallest = edge_count(total, min(sizes, default=1) if smallest is None else smallest, None)
    largest = edge_count(total, max(sizes, default=total) if largest is None else largest, None)
    model = model if prepared is None else prepared.model
    context = Context(
        model, task, limits, prepared, sizes, smallest, largest, resamples=resamples or defaults.RESAMPLES
    )
    with ExitStack() as stack:
        if model is not None:
            check_same_graph(model, circuit_of(scores, top(scores).edges[:1]))
            stack.enter_context(own_settings(model))
        order: Order = chosen.function(scores, context, **options)
    edges, resamples = order.edges[: max(largest, order.size or 0)], len(order.samples) or resamples
    return replace(order, edges=edges, selection=selection, smallest=smallest, resamples=resamples)


def measures(selection: str) -> bool:
    """Whether a selection runs circuits, so that it needs the model and its examples."""
    graph = Graph(1, 1)
    try:
        rank(Scores(graph, torch.zeros(graph.mask.shape, device="cpu")), selection)
    except NeedsModelError:
        return True
    return False


def select_nodes(scores: Scores, n: int, *, prune: bool = True) -> Circuit:
    """Select nodes instead of edges.

    Args:
        scores: The scores of edges. The score of a node is the sum of its out-edges (``scores.nodes``).
        n: The number of heads and MLPs to select, by |score|.
        prune: Whether to remove edges that are on no path from ``input`` to ``logits``.

    Returns:
        The circuit of these nodes, ``input`` and ``logits``, with all edges among them.
    """
    graph = scores.graph
    if not 1 <= n < graph.n_sources:
        raise UsageError(
            f"this model has {graph.n_sources - 1:,} heads and MLPs, and a circuit has at least 1 of them: "
            f"{n:,} were requested."
        )
    scores = checked(scores)
    _, *nodes = scores.nodes.values()  # without ``input``, which is always in
    best = sorted(range(1, graph.n_sources), key=lambda source: -abs(nodes[source - 1]))[:n]
    edges, among = top(scores).edges, graph.among(best)
    circuit = circuit_of(scores, edges[among.flatten()[edges]], prune=prune)
    return replace(circuit, recipe=(scores.recipe or Recipe()).selected(None, nodes=n))
