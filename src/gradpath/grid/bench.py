"""The bench that every experiment works on: a model, a request and a store of finished work.

A cell of the store is one measurement: a small JSON file named after its key. The key is a dictionary of plain values
with everything that the result depends on: digests of the model's weights and the task's tokens, the method with all
its options, the selection, the number of edges. The file contains the key as well. Files are written atomically, so a
file that exists is complete, even if the run was killed.

In a distributed run only the first rank reads and writes, and sends its values to the others. All ranks call the same
methods in the same order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from gradpath import defaults
from gradpath._version import __version__
from gradpath.ablation import CORRUPTED
from gradpath.attribution.attribute import attribute_at_steps
from gradpath.attribution.methods import find_method
from gradpath.circuit import Circuit, load_circuit
from gradpath.errors import InputError, UsageError, reason, warn
from gradpath.evaluation import mib
from gradpath.graph import Graph
from gradpath.grid.request import CUSTOM, GRIDS, MethodSpec, Request
from gradpath.model.transformer import Transformer
from gradpath.recipe import read_record, record
from gradpath.registry import loaded_plugins
from gradpath.runtime import distributed
from gradpath.runtime.files import check_seal, sealed, write_atomically
from gradpath.scores import Scores, load_scores
from gradpath.selection import NeedsModelError, rank
from gradpath.selection.ranking import edge_count
from gradpath.sweep import own_settings
from gradpath.tasks import Task
from gradpath.tasks.load import draw_task
from gradpath.tasks.task import task_digest

if TYPE_CHECKING:
    from gradpath.paper import Published

Key = Mapping[str, Any]
Value = TypeVar("Value")
Stored = TypeVar("Stored", Scores, Circuit)


def digest(key: Key) -> str:
    """A file name for a key, the same on every machine.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    True
    """
    return sha256(_canonical(key).encode()).hexdigest()[:24]


def _canonical(key: Key) -> str:
    return json.dumps(key, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True)
class Store:
    """A folder of cells, of scores, and of the orders of edges that circuits were taken from."""

    folder: Path

    def cell(self, key: Key) -> dict[str, Any] | None:
        """The value of a finished cell, or None. A file that was changed after it was written is measured again."""

        def read() -> dict[str, Any] | None:
            file = self._cell_file(key)
            try:
                content = json.loads(file.read_text(encoding="utf-8"))
                check_seal(content)
                value = content["value"]
                if "digest" not in content or not isinstance(value, dict):
                    raise ValueError("it has no digest or no value")
                return value if _canonical(content["key"]) == _canonical(key) else None
            except FileNotFoundError:
                return None
            except (InputError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
                warn(f"{file} is damaged ({reason(problem)}), so it is measured again.")
                return None

        return distributed.on_first_rank(read)

    def keep_cell(self, key: Key, value: Mapping[str, Any]) -> None:
        text = json.dumps(sealed({"key": key, "value": value}), indent=1, sort_keys=True)
        distributed.on_first_rank(lambda: write_atomically(self._cell_file(key), text + "\n"))

    def scores(self, key: Key) -> Scores | None:
        """A method's finished scores, or None."""
        scores = self._read_scores(key) if distributed.rank() == 0 else None
        if distributed.world() == 1:
            return scores

        def describe() -> dict[str, Any] | None:
            return None if scores is None else {"graph": asdict(scores.graph), **record(scores.recipe, scores.facts)}

        description = distributed.on_first_rank(describe)
        if description is None:
            return None
        values = distributed.broadcast_first(torch.empty(0, device="cpu") if scores is None else scores.values)
        return Scores(Graph(**description["graph"]), values, *read_record(description))

    def _read_scores(self, key: Key) -> Scores | None:
        try:
            return _load(load_scores, self._scores_file(key), key)
        except InputError:
            warn(f"{self._scores_file(key)} is damaged, so the scores are computed again.")
            return None

    def keep_scores(self, key: Key, scores: Scores, seconds: float) -> Scores:
        """Write the scores with their key and the CPU time that they took."""
        scores = replace(scores, facts=scores.facts.with_facts(key=dict(key), cpu_seconds=round(seconds, 3)))
        distributed.on_first_rank(lambda: scores.save(self._scores_file(key)))
        return scores

    def keep_order(self, key: Key, order: Circuit) -> None:
        """Write the order of edges that circuits of several sizes were taken from, unless a longer one is stored."""

        def write() -> None:
            stored = self.order(key)
            if stored is None or len(stored) < len(order):
                replace(order, facts=order.facts.with_facts(key=dict(key))).save(self._order_file(key))

        distributed.on_first_rank(write)

    def order(self, key: Key) -> Circuit | None:
        """A stored order, on the first rank; None if there is none, or if its file is damaged."""
        try:
            return _load(load_circuit, self._order_file(key), key) if distributed.rank() == 0 else None
        except InputError:
            warn(f"{self._order_file(key)} is damaged, so the report leaves its circuits out.")
            return None

    def has_scores(self, key: Key) -> bool:
        return distributed.on_first_rank(self._scores_file(key).is_file)

    def _cell_file(self, key: Key) -> Path:
        return self.folder / "cells" / f"{key.get('kind', 'cell')}-{digest(key)}.json"

    def _order_file(self, key: Key) -> Path:
        return self.folder / "orders" / f"{key['how']}-{digest(key)}.json"

    def _scores_file(self, key: Key) -> Path:
        return self.folder / "scores" / f"{key.get('method', 'scores')}-{digest(key)}.safetensors"


def _load(load: Callable[[Path], Stored], file: Path, key: Key) -> Stored | None:
    """The scores or the circuit in a file; None without a file, or if they were stored under another key."""
    stored = load(file) if file.is_file() else None
    same = stored is not None and _canonical(stored.facts.further("key")) == _canonical(key)
    return stored if same else None


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

    @property
    def title(self) -> str:
        """The model's name without folders."""
        return self.model.name.rstrip("/").rpartition("/")[2] or self.model.arch.family

    def task(self, name: str, split: str) -> Task:
        """The examples for attribution ("train") or evaluation ("test"): as many as requested, or all."""
        if (name, split) not in self._tasks:
            self._tasks[name, split] = self._load_task(name, split)
        return self._tasks[name, split]

    def _load_task(self, name: str, split: str) -> Task:
        request = self.request
        known = None if request.data is not None and name == CUSTOM else name

        def load(n: int | None) -> Task:
            seed, data, metric = request.seed, request.data, request.metric
            return draw_task(known, self.model, n=n, seed=seed, split=split, data=data, metric=metric)

        try:
            return load(request.examples)
        except UsageError as too_few:
            # A task may have fewer pairs with this tokenizer. Then all are used; the tables have their number.
            if request.examples is None or len(task := load(None)) >= request.examples:
                raise too_few from None
            return task

    def task_key(self, name: str, split: str) -> dict[str, Any]:
        """Everything that a result on a task depends on, except the method and the circuit."""
        task = self.task(name, split)
        if (name, split) not in self._digests:
            self._digests[name, split] = task_digest(task, self.model.tokenizer)
        return {
            **({"plugins": plugins} if (plugins := loaded_plugins()) else {}),
            "version": __version__,
            "model": self.title,  # the digest of the weights identifies it, wherever its folder is now
            "weights": self.model.digest,
            "dtype": self.model.dtype_name,
            "task": task.name,
            "split": split,
            "seed": self.request.seed,
            "examples": len(task),
            "tokens": self._digests[name, split],
        }

    def scores_key(self, task: str, method: MethodSpec) -> Key:
        key = {**self.task_key(task, "train"), "kind": "scores", "method": method.name, "options": method.options}
        return key if self.request.ablation == CORRUPTED else {**key, "ablation": self.request.ablation}

    def scores(self, task: str, method: MethodSpec) -> Scores:
        """A method's scores: read from the store, or computed and stored."""
        key = self.scores_key(task, method)
        scores = self.store.scores(key)
        return self.store.keep_scores(key, *self.attribute(task, method)) if scores is None else scores

    def attribute(self, task: str, method: MethodSpec) -> tuple[Scores, float]:
        """A method's scores, computed now, and the CPU seconds that they took."""
        train, entry = self.task(task, "train"), find_method(method.name)
        limits, ablation = self.request.limits, self.request.ablation

        def score() -> list[Scores]:
            return attribute_at_steps(self.model, train, entry, method.options, limits=limits, ablation=ablation)

        with own_settings(self.model):
            [scores], seconds = timed(score)
        return scores, seconds

    def circuits(self, scores: Scores, task: str, how: str, counts: Sequence[int]) -> list[Circuit]:
        """Circuits of several sizes.

        The report cannot run a selection that needs the model, so the store keeps its order of edges, not pruned.
        """
        with suppress(NeedsModelError):
            order = rank(scores, how, sizes=counts)
            return [order.circuit(n) for n in counts]
        train, limits = self.task(task, "train"), self.request.limits
        order = rank(scores, how, self.model, train, sizes=counts, limits=limits)
        edges = order.circuit(len(order), prune=False)
        facts = edges.facts.with_facts(smallest=order.smallest)
        self.store.keep_order(_order_key(scores, how), replace(edges, facts=facts))
        return [order.circuit(n) for n in counts]

    def order(self, scores: Scores, how: str) -> tuple[Circuit, int] | None:
        """The order of edges of a selection that measures, as a circuit, and the smallest size it was made for."""
        order = self.store.order(_order_key(scores, how))
        smallest = 0 if order is None else (order.facts.model_extra or {}).get("smallest")
        return (order, smallest) if order is not None and smallest is not None else None

    def sparsities(self, task: str) -> tuple[float, ...]:
        """The requested sparsities, or those of the grid; the paper's tables of larger models have other grids."""
        if self.request.sparsities is not None:
            return self.request.sparsities
        if self.request.grid == "paper" and self.paper is not None and self.paper.name != "gpt2":
            return self.paper.sparsities(task)
        return GRIDS[self.request.grid]

    def edges(self, sparsity: float) -> int:
        """The number of edges of a circuit of that sparsity."""
        if self.request.measures_mib and sparsity in GRIDS[defaults.MIB_GRID]:
            return mib.edges_at(self.model.graph, round(1 - sparsity, 6))
        return edge_count(self.model.graph.n_edges, None, sparsity)

    def sizes(self, task: str) -> tuple[int, ...]:
        """The numbers of edges of the task's circuits."""
        return tuple(self.edges(sparsity) for sparsity in self.sparsities(task))


def _order_key(scores: Scores, how: str) -> Key:
    return {"kind": "order", "found_on": scores.facts.further("key"), "how": how}


def timed(work: Callable[[], Value]) -> tuple[Value, float]:
    """The result of a function, and the CPU seconds it took on all ranks."""
    begin = time.process_time()
    value = work()
    return value, distributed.total_over_ranks(time.process_time() - begin)
