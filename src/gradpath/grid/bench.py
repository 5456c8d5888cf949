"""A model, a request and a store: what every experiment works on.

The keys of stored results are made here. They contain digests of what a result depends on: the model's weights and
the task's tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from gradpath._version import __version__
from gradpath.ablation import CORRUPTED
from gradpath.attribution.attribute import attribute
from gradpath.circuit import Circuit
from gradpath.errors import UsageError
from gradpath.evaluation import mib
from gradpath.grid.request import CUSTOM, GRIDS, MethodSpec, Request
from gradpath.grid.store import Key, Store
from gradpath.model.transformer import Transformer
from gradpath.registry import loaded_plugins
from gradpath.runtime import distributed
from gradpath.scores import Scores
from gradpath.selection import find_selection, nested_order, select_many
from gradpath.selection.ranking import NestedOrder, edge_count
from gradpath.sweep import Progress
from gradpath.tasks import Task, load_task
from gradpath.tasks.task import task_digest

if TYPE_CHECKING:
    from gradpath.paper import Published

Value = TypeVar("Value")


@dataclass
class Bench:
    """A model, a request and a store.

    Args:
        model: The model.
        request: The options of the experiments.
        store: The folder of finished results.
        paper: The paper's numbers for this model, if it is one of the paper's.
    """

    model: Transformer
    request: Request
    store: Store
    paper: Published | None = None
    _tasks: dict[tuple[str, str], Task] = field(default_factory=dict)
    _digests: dict[tuple[str, str], str] = field(default_factory=dict)

    @cached_property
    def weights(self) -> str:
        return self.model.digest

    @property
    def title(self) -> str:
        """The model's name without folders."""
        return self.model.name.rstrip("/").rpartition("/")[2] or self.model.arch.family

    def task(self, name: str, split: str) -> Task:
        """The examples to attribute ("train") or to measure on ("test"): as many as requested, or all."""
        if (name, split) not in self._tasks:
            self._tasks[name, split] = self._load_task(name, split)
        return self._tasks[name, split]

    def _load_task(self, name: str, split: str) -> Task:
        request = self.request

        def load(n: int | None) -> Task:
            known = None if request.data is not None and name == CUSTOM else name
            options: dict[str, Any] = {
                "seed": request.seed,
                "split": split,
                "data": request.data,
                "metric": request.metric,
            }
            return load_task(known, self.model, n=n, **options)

        try:
            return load(request.examples)
        except UsageError as too_few:
            # A task may have fewer pairs with this tokenizer. Then all are used; the tables have their number.
            if request.examples is None or len(task := load(None)) >= request.examples:
                raise too_few from None
            return task

    def task_key(self, name: str, split: str) -> dict[str, Any]:
        """All that a result on a task depends on, apart from what is computed."""
        task = self.task(name, split)
        if (name, split) not in self._digests:
            self._digests[name, split] = task_digest(task, self.model.tokenizer)
        return {
            **({"plugins": plugins} if (plugins := loaded_plugins()) else {}),
            "version": __version__,
            "model": self.title,  # the weights say which it is, wherever its folder is now
            "weights": self.weights,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "task": task.name,
            "split": split,
            "seed": self.request.seed,
            "examples": len(task),
            "tokens": self._digests[name, split],
        }

    def scores_key(self, task: str, method: MethodSpec) -> Key:
        key = {**self.task_key(task, "train"), "kind": "scores", "method": method.name, "options": method.options}
        return key if self.request.ablation == CORRUPTED else {**key, "ablation": self.request.ablation}

    def scores(self, task: str, method: MethodSpec, progress: Progress | None = None) -> Scores:
        """A method's scores: read from the store, or computed and stored."""
        key = self.scores_key(task, method)
        scores = self.store.scores(key)
        return self.store.keep_scores(key, *self.attribute(task, method, progress)) if scores is None else scores

    def attribute(self, task: str, method: MethodSpec, progress: Progress | None = None) -> tuple[Scores, float]:
        """A method's scores, computed, and the CPU seconds that took."""
        return timed(
            lambda: attribute(
                self.model,
                self.task(task, "train"),
                method.name,
                batch_size=self.request.batch_size,
                memory=self.request.memory,
                progress=progress,
                ablation=self.request.ablation,
                **method.options,
            )
        )

    def circuits(self, scores: Scores, task: str, how: str, counts: Sequence[int]) -> list[Circuit]:
        """Circuits of several sizes; selections that measure do so on the attributed examples.

        The order of edges of such a selection is kept, because the report cannot compute it.
        """
        train, limits = self.task(task, "train"), self.request.limits
        selection, _ = find_selection(how)
        if not (selection.measures and selection.nested):
            circuits = select_many(scores, counts, how=how, model=self.model, task=train, limits=limits)
            if not selection.sized:  # the report cannot compute these, either
                for circuit in circuits:
                    self.store.keep_order(_order_key(scores, circuit.provenance.how), circuit)
            return circuits
        sizes: dict[str, Any] = {"smallest": min(counts), "largest": max(counts), "sizes": counts}
        order = nested_order(scores, how=how, **sizes, model=self.model, task=train, limits=limits)
        self.store.keep_order(_order_key(scores, how), _whole(order))
        return [order.circuit(n) for n in counts]

    def order(self, scores: Scores, how: str) -> tuple[Circuit, int] | None:
        """The order of edges of a selection that measures, as a circuit, and the smallest size that it holds for."""
        order = self.store.order(_order_key(scores, how))
        smallest = 0 if order is None else order.provenance.selection.get("smallest")
        return (order, smallest) if order is not None and isinstance(smallest, int) else None

    def circuit(self, scores: Scores, how: str) -> Circuit | None:
        """A circuit of a selection that decides its size, as it was kept."""
        return self.store.order(_order_key(scores, how))

    def sparsities(self, task: str) -> tuple[float, ...]:
        """The requested sparsities, or those of the grid; the paper's tables of larger models have their own."""
        if self.request.sparsities is not None:
            return self.request.sparsities
        if self.request.grid == "paper" and self.paper is not None and self.paper.name != "gpt2":
            return self.paper.sparsities(task)
        return GRIDS[self.request.grid]

    def edges(self, sparsity: float) -> int:
        """The number of edges of a circuit of that sparsity."""
        if self.request.measures_mib and sparsity in GRIDS["mib"]:
            return mib.edges_at(self.model.graph, round(1 - sparsity, 6))
        return edge_count(self.model.graph.n_edges, None, sparsity)

    def sizes(self, task: str) -> tuple[int, ...]:
        """The numbers of edges of the task's circuits."""
        return tuple(self.edges(sparsity) for sparsity in self.sparsities(task))


def _order_key(scores: Scores, how: str) -> Key:
    return {"kind": "order", "found_on": scores.about.get("key"), "how": how}


def _whole(order: NestedOrder) -> Circuit:
    """All edges of an order, not pruned, with the smallest size that it was made for."""
    whole = order.circuit(len(order.edges), prune=False)
    selection = {**whole.provenance.selection, "smallest": order.smallest}
    return replace(whole, about={**whole.about, "selection": selection})


def timed(work: Callable[[], Value]) -> tuple[Value, float]:
    """The result of some work, and the CPU seconds it took on all ranks."""
    begin = time.process_time()
    value = work()
    return value, distributed.total_over_ranks(time.process_time() - begin)
