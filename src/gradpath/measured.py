"""The ways of selecting, and ``select`` for all of them.

Some go by the scores alone (``selection``). Others measure: they run circuits on the attribution examples
while they choose, so they need the model and those examples as well, and cost a few passes more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gradpath import selection
from gradpath.balanced import balanced
from gradpath.circuit import Circuit
from gradpath.errors import UsageError
from gradpath.exchanged import exchanged
from gradpath.intervention import check_same_graph
from gradpath.model.transformer import Transformer
from gradpath.refined import refined
from gradpath.scores import Scores
from gradpath.selection import SELECTIONS, Order, circuit_of, edge_count
from gradpath.stable import stable
from gradpath.tasks.task import Task

MEASURED: dict[str, Callable[..., list[Order]]] = {
    "balanced": balanced,
    "refined": refined,
    "exchanged": exchanged,
    "stable": stable,
}
WAYS: dict[str, Callable[..., Any]] = {**SELECTIONS, **MEASURED}


def select(
    scores: Scores,
    n: int | None = None,
    *,
    sparsity: float | None = None,
    nodes: int | None = None,
    how: str = "top",
    prune: bool = True,
    model: Transformer | None = None,
    task: Task | None = None,
    batch_size: int = 20,
    memory: int | None = None,
) -> Circuit:
    """The circuit of ``n`` edges, or of the share 1 - ``sparsity`` of all edges, pruned.

    Or of the ``nodes`` best heads and MLPs with all edges among them, ``how`` being of no account.
    ``how`` is a way of selecting. Those that measure need the ``model`` and the ``task`` with the examples
    that were attributed: not those that the circuit is going to be judged on.
    """
    if nodes is not None:
        if n is not None or sparsity is not None:
            raise UsageError("say how large the circuit should be: by its nodes, its edges or its sparsity.")
        return selection.select_nodes(scores, nodes, prune=prune)
    counts = [edge_count(scores.graph, n, sparsity)]
    limits: Any = {"batch_size": batch_size, "memory": memory}
    return select_many(scores, counts, how=how, prune=prune, model=model, task=task, **limits)[0]


def select_many(
    scores: Scores,
    counts: Sequence[int],
    *,
    how: str = "top",
    prune: bool = True,
    model: Transformer | None = None,
    task: Task | None = None,
    batch_size: int = 20,
    memory: int | None = None,
) -> list[Circuit]:
    """Circuits of several sizes, for little more than the price of one."""
    if selection.check_way(how, WAYS) in SELECTIONS:
        return selection.select_many(scores, counts, how=how, prune=prune)
    if model is None or task is None:
        raise UsageError(
            f"the selection {how!r} measures circuits while it chooses: give it model= and task=, the "
            "examples that were attributed."
        )
    selection.check_finite(scores)
    scores = replace(scores, values=scores.values.cpu())
    counts = [edge_count(scores.graph, n, None) for n in counts]
    check_same_graph(model, circuit_of(scores, selection.top(scores, 1)))
    orders = MEASURED[how](model, task, scores, counts, batch_size=batch_size, memory=memory)
    return [
        circuit_of(scores, order, how=how, prune=prune, asked=n)
        for n, order in zip(counts, orders, strict=True)
    ]
