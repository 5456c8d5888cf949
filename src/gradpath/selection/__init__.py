"""From scores to a circuit.

A selection either uses only the scores (``ranking``), or it measures: it runs circuits on the attribution examples
while it selects, so it also needs the model and those examples, and takes more passes (``refine``, ``learned``,
``acdc``). The selected edges are then pruned (``graph.pruned``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradpath import defaults
from gradpath.circuit import Circuit
from gradpath.errors import UsageError, check_type
from gradpath.evaluation.plan import check_same_graph
from gradpath.limits import Limits
from gradpath.model.transformer import Transformer
from gradpath.prepared import PreparedBatches
from gradpath.recipe import Recipe
from gradpath.scores import Scores
from gradpath.selection.ranking import (
    SELECTIONS,
    NestedOrder,
    Orders,
    check_edges_or_nodes,
    checked,
    circuit_of,
    edge_count,
    find_selection,
    given_size,
    selection,
    sets_own_size,
    top,
    variants,
    with_values,
)
from gradpath.sweep import own_settings
from gradpath.tasks.task import Task

# Other packages import these from here.
__all__ = ["SELECTIONS", "NestedOrder", "edge_count", "find_selection", "selection", "variants", "with_values"]


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
    batch_size: int | None = None,
    memory: int | None = None,
) -> Circuit:
    """Select a circuit by its scores.

    Args:
        scores: The scores from ``attribute``.
        n: The number of edges. ``acdc`` takes none: its threshold determines the size.
        sparsity: The share of edges to leave out, instead of ``n``.
        nodes: The number of heads and MLPs, instead of ``n``: the circuit has all edges among them.
        selection: The selection (``gradpath ls selections``), with options as in ``acdc+threshold=0.01``. By default
            ``refined``, or ``top`` where ``model`` or ``task`` is missing.
        prune: Whether to remove edges that are on no path from ``input`` to ``logits``.
        model: The model, for selections that measure circuits.
        task: The attributed examples, for selections that measure circuits. Do not pass the examples that the
            circuit will be evaluated on.
        batch_size: The largest number of examples in a batch; by default it depends on prompt length and free memory.
        memory: A budget in bytes, weights included; by default the weights and half of the free memory.

    Returns:
        The circuit. Its ``recipe`` records how it was selected.
    """
    check_type("the first argument", scores, Scores)
    size = given_size(n=n, sparsity=sparsity, nodes=nodes)
    check_edges_or_nodes(selection, nodes)
    if nodes is not None:
        return select_nodes(scores, nodes, prune=prune)
    how = selection
    if not how:
        measurable = model is not None and task is not None
        how = defaults.SELECTION if measurable else defaults.RANKING
    if not find_selection(how)[0].sized:
        if size is not None:
            raise sets_own_size(how, f"leave out `{size}`")
        if (several := len(variants(how))) > 1:
            raise UsageError(f"{how} gives {several} circuits, and select gives one: use selection.select_many.")
        n = scores.n_edges
    counts, limits = [edge_count(scores.n_edges, n, sparsity)], Limits(batch_size, memory)
    return select_many(scores, counts, how=how, prune=prune, model=model, task=task, limits=limits)[0]


def select_many(
    scores: Scores,
    counts: Sequence[int],
    *,
    how: str = defaults.RANKING,
    prune: bool = True,
    model: Transformer | None = None,
    task: Task | None = None,
    limits: Limits = Limits(),
    prepared: PreparedBatches | None = None,
) -> list[Circuit]:
    """Select circuits of several sizes at little more than the cost of one.

    Args:
        scores: The scores from ``attribute``.
        counts: The numbers of edges; empty for a selection that determines the size itself, such as ``acdc``.
        how: The selection (``gradpath ls selections``).
        prune: Whether to remove edges that are on no path from ``input`` to ``logits``.
        model: The model, for selections that measure circuits.
        task: The examples that were attributed, for selections that measure circuits.
        limits: The batch size and memory of selections that measure circuits.
        prepared: The examples, if they are prepared already.

    Returns:
        One circuit for each number of edges; or for each threshold, as in ``acdc+threshold=0.01,0.1``.
    """
    counts = [edge_count(scores.n_edges, n, None) for n in counts]
    if find_selection(how)[0].nested:
        order = nested_order(
            scores,
            how=how,
            smallest=min(counts),
            largest=max(counts),
            sizes=counts,
            model=model,
            task=task,
            limits=limits,
            prepared=prepared,
        )
        return [order.circuit(n, prune=prune) for n in counts]
    scores = checked(scores)
    orders = _orders(scores, counts, how, model, task, limits, prepared)
    if not find_selection(how)[0].sized:
        names = variants(how).values()
        return [circuit_of(scores, order, how=name, prune=prune) for name, order in zip(names, orders, strict=True)]
    sized = zip(counts, orders, strict=True)
    return [circuit_of(scores, order, how=how, prune=prune, requested=n) for n, order in sized]


def nested_order(
    scores: Scores,
    *,
    how: str = defaults.SELECTION,
    smallest: int = 1,
    largest: int | None = None,
    sizes: Sequence[int] = (),
    model: Transformer | None = None,
    task: Task | None = None,
    limits: Limits = Limits(),
    prepared: PreparedBatches | None = None,
) -> NestedOrder:
    """Select edges once for circuits of all sizes: each is a part of every larger one.

    Args:
        scores: The scores from ``attribute``.
        how: The selection: one that is nested, such as ``refined``, ``top`` or ``greedy``.
        smallest: The smallest number of edges that will be used. ``refined`` takes longer for smaller ones; the
            circuits of larger sizes do not depend on it.
        largest: The largest number of edges that will be used; by default all.
        sizes: The sizes that matter most, for a selection such as ``learned`` that learns for certain sizes.
        model: The model, for selections that measure circuits.
        task: The examples that were attributed, for selections that measure circuits.
        limits: The batch size and memory of selections that measure circuits.
        prepared: The examples, if they are prepared already.

    Returns:
        The order. ``order.circuit(n)`` is the circuit of ``n`` edges.
    """
    if not find_selection(how)[0].nested:
        known = ", ".join(x.name for x in SELECTIONS.values() if x.nested)
        raise UsageError(f"the circuits of {how!r} are not nested. Use one of {known}.")
    scores = checked(scores)
    largest = scores.n_edges if largest is None else largest
    counts = [edge_count(scores.n_edges, n, None) for n in (smallest, *sizes, largest)]
    *_, edges = _orders(scores, counts, how, model, task, limits, prepared)
    return NestedOrder(scores, edges, how, smallest)


def _orders(
    scores: Scores,
    counts: Sequence[int],
    how: str,
    model: Transformer | None,
    task: Task | None,
    limits: Limits,
    prepared: PreparedBatches | None,
) -> Orders:
    """One order of edges for each size."""
    chosen, options = find_selection(how)
    if not chosen.measures:
        if not chosen.nested:
            return [chosen.function(scores, n, **options) for n in counts]
        order = chosen.function(scores, max(counts), **options)
        return [order[:n] for n in counts]
    if model is None or task is None:
        raise UsageError(
            f"the selection {how!r} measures circuits while it selects: give it model= and task=, the "
            "examples that were attributed."
        )
    check_same_graph(model, circuit_of(scores, top(scores, 1)))
    with own_settings(model):
        orders: Orders = chosen.function(model, task, scores, counts, limits, prepared, **options)
    return orders


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
    order, among = top(scores, graph.n_edges), graph.among(best)
    circuit = circuit_of(scores, order[among.flatten()[order]], prune=prune)
    return replace(circuit, recipe=(scores.recipe or Recipe()).selected(None, nodes=n))
