"""The driver of all grids: a model, a study and a store; ``measure`` turns recipes into cells.

``measure`` goes task by task, method by method and selection by selection. It takes scores from the store, or computes
and stores them. It orders the edges once for all sizes, and evaluates circuits together, after one set-up. Orders of
selections that run the model are cells, too. A cell is stored as soon as its group of circuits is done.

A cell is one measurement: a small sealed JSON file, named after a digest of its key. The key is a dictionary of plain
values with everything that the result depends on, and is in the file as well. Files are written atomically, so a file
that exists is complete, even if the run was killed. Scores are stored once, in files of their own.

In a distributed run only the first rank reads and writes, and sends its values to the others. All ranks call the same
methods in the same order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from gradpath import defaults
from gradpath._version import __version__
from gradpath.attribution.attribute import attribute_at_steps
from gradpath.attribution.methods import find_method
from gradpath.circuit import Circuit
from gradpath.errors import InputError, reason, warn
from gradpath.evaluation import evaluate_many, mib
from gradpath.evaluation.result import Result
from gradpath.model.transformer import Transformer
from gradpath.prepared import PreparedBatches
from gradpath.recipe import Recipe
from gradpath.registry import loaded_plugins
from gradpath.runtime import distributed
from gradpath.runtime.files import check_seal, sealed, write_atomically
from gradpath.runtime.progress import describe, progress_bar
from gradpath.scores import Scores, load_scores
from gradpath.selection import NeedsModelError, Order, rank
from gradpath.selection.faithful import smallest_faithful
from gradpath.selection.ranking import Sample, edge_count
from gradpath.study import CUSTOM, GRIDS, Size, Study, method_label, method_options
from gradpath.sweep import own_settings
from gradpath.tasks import Task
from gradpath.tasks.load import draw_or_all
from gradpath.tasks.task import task_digest

if TYPE_CHECKING:
    from gradpath.paper import Published

# Circuits measured together, after one set-up. With so many the set-up costs little, and a killed run loses few.
TOGETHER = 64
SMALLEST = 20  # edges of the smallest circuit where the size is searched, as in ``find``
Row = dict[str, Any]
Key = Mapping[str, Any]
Cell = dict[str, Any]
Value = TypeVar("Value")


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
    """A folder of cells and of scores."""

    folder: Path

    def cell(self, key: Key) -> Cell | None:
        """The value of a finished cell, or None. A file that was changed after it was written is measured again."""

        def read() -> Cell | None:
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

    def measured(self, key: Key, compute: Callable[[], Mapping[str, Any]]) -> Cell:
        """A cell: as it is stored, or computed now and stored with the CPU seconds that it took."""
        value = self.cell(key)
        if value is None:
            computed, seconds = timed(compute)
            value = {**computed, "cpu_seconds": round(seconds, 3)}
            self.keep_cell(key, value)
        return value

    def scores(self, key: Key) -> Scores | None:
        """Finished scores, or None."""

        def read() -> Scores | None:
            file = self._scores_file(key)
            try:
                return load_scores(file) if file.is_file() else None
            except InputError:
                warn(f"{file} is damaged, so the scores are computed again.")
                return None

        return distributed.on_first_rank(read)

    def keep_scores(self, key: Key, scores: Scores, seconds: float) -> Scores:
        """Write scores with the CPU time that they took."""
        scores = replace(scores, facts=scores.facts.with_facts(cpu_seconds=round(seconds, 3)))
        distributed.on_first_rank(lambda: scores.save(self._scores_file(key)))
        return scores

    def has_scores(self, key: Key) -> bool:
        return distributed.on_first_rank(self._scores_file(key).is_file)

    def _cell_file(self, key: Key) -> Path:
        return self.folder / "cells" / f"{key['kind']}-{digest(key)}.json"

    def _scores_file(self, key: Key) -> Path:
        return self.folder / "scores" / f"{digest(key)}.safetensors"


def timed(work: Callable[[], Value]) -> tuple[Value, float]:
    """The result of a function, and the CPU seconds it took on all ranks."""
    begin = time.process_time()
    value = work()
    return value, sum(distributed.gathered(time.process_time() - begin))


def cell_of(result: Result) -> Cell:
    """A circuit's cell: the numbers, and the metric of every example for later comparisons."""

    def decimals(values: torch.Tensor) -> list[float]:
        """float32 as the shortest decimals that give it back."""
        return [float(f"{value:.9g}") for value in values.tolist()]

    names = ("edges_kept", "clean", "corrupted", "circuit", "faithfulness", "error")
    return {
        "edges_requested": result.edges_requested,
        **{name: getattr(result, name) for name in names},
        "faithfulness_interval": result.interval and list(result.interval),
        "error_interval": result.error_interval and list(result.error_interval),
        "values": decimals(result.circuit_values),
        "clean_values": decimals(result.clean_values),
        "corrupted_values": decimals(result.corrupted_values),
    }


@dataclass
class Bench:
    """A model, a study and a store."""

    model: Transformer
    study: Study
    store: Store
    paper: Published | None = None  # the paper's numbers for this model, if it is one of the paper's
    _tasks: dict[tuple[object, ...], tuple[Task, str]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The model's name without folders."""
        return self.model.name.rstrip("/").rpartition("/")[2] or self.model.arch.family

    def task(self, recipe: Recipe, split: str) -> Task:
        """The examples for attribution ("train") or evaluation ("test"): as many as requested, or all."""
        return self._task_and_digest(recipe, split)[0]

    def _task_and_digest(self, recipe: Recipe, split: str) -> tuple[Task, str]:
        place = recipe.task, recipe.data, recipe.metric, recipe.first_token, recipe.examples, recipe.seed, split
        if place not in self._tasks:
            # A task may have fewer pairs with this tokenizer. Then all are used; the tables have their number.
            task = draw_or_all(self.model, recipe, split, data=recipe.data)
            self._tasks[place] = task, task_digest(task, self.model.tokenizer)
        return self._tasks[place]

    def task_key(self, recipe: Recipe, split: str) -> dict[str, Any]:
        """Everything that a result on a task depends on, except the method and the circuit."""
        task, tokens = self._task_and_digest(recipe, split)
        return {
            **({"plugins": plugins} if (plugins := loaded_plugins()) else {}),
            "version": __version__,
            "model": self.title,  # the digest of the weights identifies it, wherever its folder is now
            "weights": self.model.digest,
            "dtype": self.model.dtype_name,
            "task": task.name,
            "split": split,
            "seed": recipe.seed,
            "examples": len(task),
            "tokens": tokens,
        }

    def scores_key(self, recipe: Recipe) -> Key:
        method = {"method": recipe.method, "options": method_options(recipe), "ablation": recipe.ablation}
        return {"kind": "scores", **self.task_key(recipe, "train"), **method}

    def circuit_key(self, recipe: Recipe) -> Key:
        """Everything that the measurement of a circuit depends on."""
        n = self.edge_count(recipe)
        return {
            "kind": "circuit",
            "found_on": self.scores_key(recipe),
            "measured_on": self.task_key(recipe, "test"),
            "selection": recipe.selection,
            "edges": n,
            **({} if n is not None else {"faithfulness": recipe.faithfulness}),
        }

    def scores(self, recipe: Recipe) -> Scores:
        """The scores of a recipe's method: read from the store, or computed and stored."""
        key = self.scores_key(recipe)
        stored = self.store.scores(key)
        if stored is not None:
            return stored
        train, method, limits = self.task(recipe, "train"), find_method(recipe.method), self.study.limits
        options, ablation = method_options(recipe), recipe.ablation

        def score() -> list[Scores]:
            return attribute_at_steps(PreparedBatches(self.model, train, ablation, limits), method, options)

        with own_settings(self.model):
            [scores], seconds = timed(score)
        return self.store.keep_scores(key, scores, seconds)

    def price(self, recipe: Recipe) -> Cell:
        """The passes, ``forward`` and ``backward``, and the CPU seconds that the scores took."""
        origin = self.scores(recipe).facts
        return {**origin.passes, "cpu_seconds": origin.cpu_seconds}

    def order(self, recipe: Recipe, sizes: Set[int | None]) -> Order:
        """The edges in the order of a recipe's selection, for circuits of some sizes; None: of any size."""
        scores, selection = self.scores(recipe), recipe.selection or defaults.SELECTION
        counts = sorted({n for n in sizes if n is not None})
        ends: dict[str, Any] = {"sizes": counts}
        if not counts or None in sizes:
            smallest = min(SMALLEST, scores.n_edges)
            ends |= {"smallest": min([smallest, *counts]), "largest": scores.n_edges}
        try:
            return rank(scores, selection, **ends)
        except NeedsModelError:
            pass

        def ranked() -> Mapping[str, Any]:
            train, limits = self.task(recipe, "train"), self.study.limits
            order = rank(scores, selection, self.model, train, **ends, limits=limits, resamples=recipe.resamples)
            samples = [(sample.edges.tolist(), sample.examples.tolist()) for sample in order.samples]
            return {"edges": order.edges.tolist(), "smallest": order.smallest, "size": order.size, "samples": samples}

        key = {"kind": "order", "found_on": self.scores_key(recipe), "selection": selection, **ends}
        if recipe.resamples is not None:
            key["resamples"] = recipe.resamples
        cell = self.store.measured(key, ranked)
        edges = torch.tensor(cell["edges"], dtype=torch.long, device="cpu")
        samples = tuple(Sample(*(torch.tensor(x, device="cpu") for x in sample)) for sample in cell["samples"])
        resamples = len(samples) or recipe.resamples
        return Order(scores, edges, selection, cell["smallest"], cell["size"], resamples, samples)

    def edge_count(self, recipe: Recipe) -> int | None:
        """The number of edges that a recipe requests, if it requests one."""
        if recipe.edges is None and recipe.sparsity is None:
            return None
        return edge_count(self.model.graph.n_edges, recipe.edges, recipe.sparsity)

    def sizes(self, task: str) -> tuple[Size, ...]:
        """The requested sizes, or those of the grid; the paper's tables of larger models have other grids."""
        study, graph = self.study, self.model.graph
        if study.sizes is not None:
            return study.sizes
        if study.measures_mib:
            return tuple(("edges", mib.edges_at(graph, round(1 - sparsity, 6))) for sparsity in GRIDS[study.grid])
        has_grid = self.paper is not None and self.paper.name != "gpt2"
        sparsities = self.paper.sparsities(task) if self.paper is not None and has_grid else GRIDS[study.grid]
        return tuple(("sparsity", sparsity) for sparsity in sparsities)

    def measure(self, recipes: Sequence[Recipe]) -> list[Cell]:
        """Measure the circuits of some recipes, except those that are in the store."""
        keys = [self.circuit_key(recipe) for recipe in recipes]
        left = {i for i, key in enumerate(keys) if self.store.cell(key) is None}

        def place(i: int) -> Key:
            found_on = keys[i]["found_on"]
            return {"tokens": [keys[i]["measured_on"], found_on["tokens"]], "ablation": found_on["ablation"]}

        def order_of(i: int) -> Key:
            return {"scores": keys[i]["found_on"], "selection": keys[i]["selection"]}

        with progress_bar("circuits" if left else "", len(left), unit="circuit") as bar:
            for on_examples in _grouped(range(len(keys)), place):
                ready, first = list[tuple[Key, Circuit]](), recipes[on_examples[0]]
                for group in _grouped(on_examples, order_of):
                    if not left.intersection(group):
                        continue
                    one = recipes[group[0]]
                    describe(bar, f"{one.task or CUSTOM}: {method_label(one)}, {one.selection}")
                    order = self.order(one, {self.edge_count(recipes[i]) for i in group})
                    ready += [(keys[i], self._circuit(order, recipes[i])) for i in group if i in left]
                    if len(ready) >= TOGETHER:
                        self._evaluate(first, ready, bar)
                if ready:
                    self._evaluate(first, ready, bar)
        cells = [self.store.cell(key) for key in keys]
        return [cell for cell in cells if cell is not None]

    def _circuit(self, order: Order, recipe: Recipe) -> Circuit:
        """The circuit of a recipe: of the requested size, or of that of the selection, or the smallest faithful one."""
        n = self.edge_count(recipe)
        if n is None and recipe.faithfulness is None:
            n = order.size
        if n is None:
            examples = PreparedBatches(self.model, self.task(recipe, "train"), recipe.ablation, self.study.limits)
            n = smallest_faithful(examples, order, recipe.faithfulness or defaults.FAITHFULNESS)
        return order.circuit(n)

    def _evaluate(self, recipe: Recipe, ready: list[tuple[Key, Circuit]], bar: Any) -> None:
        """Measure circuits, store their cells and forget them."""
        train, test = (self.task(recipe, split) for split in ("train", "test"))
        prepared = PreparedBatches(self.model, test, recipe.ablation, self.study.limits, mean_over=train, room=0)
        results = evaluate_many(prepared, [circuit for _, circuit in ready])
        for (key, _), result in zip(ready, results, strict=True):
            self.store.keep_cell(key, cell_of(result))
        bar.update(len(ready))
        ready.clear()

    def rows(self, recipes: Sequence[Recipe]) -> list[Row]:
        """Measure circuits: a row for each, with the paper's number if there is one."""
        return [self._row(recipe, cell) for recipe, cell in zip(recipes, self.measure(recipes), strict=True)]

    def _row(self, recipe: Recipe, cell: Cell) -> Row:
        label, requested = method_label(recipe), cell["edges_requested"]
        row: Row = {"task": recipe.task or CUSTOM, "method": label, "steps": method_options(recipe).get("steps", 1)}
        row |= {"selection": recipe.selection, "seed": recipe.seed}
        sparsity = recipe.sparsity if recipe.sparsity is not None else 1 - requested / self.model.graph.n_edges
        row["sparsity"] = round(sparsity, 6)
        row |= {name: cell[name] for name in ("edges_requested", "edges_kept", "clean", "corrupted", "circuit")}
        for name in ("faithfulness", "error"):
            row[name] = cell[name]
            row[f"{name}_low"], row[f"{name}_high"] = cell[f"{name}_interval"] or (None, None)
        test = self.task(recipe, "test")
        row |= {"examples": len(test), "examples_attributed": len(self.task(recipe, "train"))}
        if not test.facts.get("held_out", True):
            row["held_out"] = False  # the user's data has too few pairs
        paper = None if self.paper is None else self.paper.faithfulness(row["task"], row["sparsity"], label)
        return row if paper is None else {**row, "paper": paper, "difference": row["faithfulness"] - paper}


def _grouped(items: Iterable[int], key: Callable[[int], Key]) -> list[list[int]]:
    """Items with equal keys together, in order of appearance."""
    groups: dict[str, list[int]] = {}
    for item in items:
        groups.setdefault(digest(key(item)), []).append(item)
    return list(groups.values())
