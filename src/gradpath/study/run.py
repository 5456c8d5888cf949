"""Run a study, model by model, and write its report: all rows, tables for people and a figure.

A study can be measured in parts on several machines (``Part``). A part is some of its attributions, each with all of
its circuits, so nothing is scored twice. Its cells and scores are files that depend on nothing else: copied into one
folder, they are all that a run of the whole study needs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any, TypeVar

from gradpath.errors import UsageError
from gradpath.model.transformer import Transformer
from gradpath.recipe import Recipe
from gradpath.study import Size, method_label
from gradpath.study.bench import Bench, Row, Store
from gradpath.study.faithfulness import QUANTITIES, SEARCHED, by_seed, measured_rows, report, way_of
from gradpath.study.file import StudyFile
from gradpath.study.outcome import Note, Outcome, Written, environment, grouped, write_outcome

T = TypeVar("T")
LoadModel = Callable[[str], Transformer]


@dataclass(frozen=True)
class Part:
    """One of several parts of a study; by default all of it."""

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Part:
        """``3/8`` is the third of eight parts."""
        number, _, count = text.partition("/")
        if number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count):
            return cls(int(number), int(count))
        raise UsageError(f"a part is written NUMBER/COUNT, such as 3/8 for the third of eight: got {text!r}.")

    def take(self, items: Sequence[T]) -> Sequence[T]:
        """The items of this part: a run of them, so that few models are loaded."""
        first, end = (len(items) * at // self.count for at in (self.number - 1, self.number))
        return items[first:end]


WHOLE = Part()


@dataclass
class Measured:
    """The rows of the circuits of a study, those of random circuits, and the models."""

    attributions: int
    rows: list[Row] = field(default_factory=list)
    random: list[Row] = field(default_factory=list)
    models: list[dict[str, Any]] = field(default_factory=list)


def _attributions(file: StudyFile, part: Part) -> Sequence[tuple[str, str, int, str]]:
    """The models, tasks, seeds and methods of a part."""
    study = file.study
    return part.take(list(product(file.models, study.task_names, study.seeds, study.methods)))


def measure_study(
    file: StudyFile, out: Path, load: LoadModel, *, part: Part = WHOLE, note: Note = lambda text: None
) -> Measured:
    """Measure the missing circuits of a study, or of a part of it."""
    attributions = _attributions(file, part)
    measured = Measured(len(attributions))
    for name in dict.fromkeys(name for name, *_ in attributions):
        bench, label = _bench(file, load(name), out), file.model_labels[name]
        if left_out := [str(size) for _, size in _too_large(file, bench)]:
            total = f"{bench.model.graph.n_edges:,}"
            note(f"{label} has {total} edges, so there are no circuits of {', '.join(left_out)} edges in it.")
        for task in bench.study.task_names:
            recipes = _recipes(bench, name, task, attributions)
            rows, random = measured_rows(bench, task, recipes, {"model": label, "task": file.task_labels[task]})
            measured.rows += rows
            measured.random += random
        about = {"name": label, "edges_total": bench.model.graph.n_edges, "weights": bench.model.digest}
        measured.models.append({**about, "dtype": bench.model.dtype_name, "device": str(bench.model.device)})
        del bench
    return measured


def remaining(file: StudyFile, out: Path, load: LoadModel, part: Part = WHOLE) -> list[Row]:
    """The number of circuits of each model, and how many are not measured yet; random circuits are not counted."""
    attributions, counts = _attributions(file, part), list[Row]()
    for name in dict.fromkeys(name for name, *_ in attributions):
        bench = _bench(file, load(name), out)
        recipes = [x for task in bench.study.task_names for x in _recipes(bench, name, task, attributions)]
        missing = len(bench.missing(recipes))
        counts.append({"model": file.model_labels[name], "circuits": len(recipes), "missing": missing})
        del bench
    return counts


def _recipes(
    bench: Bench, model: str, task: str, attributions: Sequence[tuple[str, str, int, str]]
) -> Sequence[Recipe]:
    """The recipes of a task's circuits whose attributions are among these."""
    recipes = bench.study.recipes(task, bench.study.sizes or ())
    return [recipe for recipe in recipes if (model, task, recipe.seed, method_label(recipe)) in attributions]


def _too_large(file: StudyFile, bench: Bench) -> list[Size]:
    """The sizes that the model has not enough edges for."""
    return [size for size in file.study.sizes or () if size[0] == "edges" and size[1] > bench.model.graph.n_edges]


def _bench(file: StudyFile, model: Transformer, out: Path) -> Bench:
    """The study on a model, without sizes that it is too small for."""
    bench = Bench(model, file.study, Store(out))
    too_large = _too_large(file, bench)
    sizes = tuple(size for size in file.study.sizes or () if size not in too_large)
    return replace(bench, study=replace(file.study, sizes=sizes))


def run_study(file: StudyFile, out: Path, load: LoadModel, *, command: str, note: Note = lambda text: None) -> Written:
    """Measure the missing circuits of a study, and write its report."""
    started, begin = time.strftime("%Y-%m-%dT%H:%M:%S%z"), time.monotonic()
    measured = measure_study(file, out, load, note=note)
    outcome = study_outcome(file, measured)
    times = {"started": started, "seconds": round(time.monotonic() - begin, 2)}
    record = {**environment(command), "study": dict(file.plain), "models": measured.models, "times": times}
    return Written(outcome, record, write_outcome(outcome, out, record))


def study_outcome(file: StudyFile, measured: Measured) -> Outcome:
    """The report on measured rows."""
    rows, seeds, notes, differences = measured.rows, len(file.study.seeds), list[str](), list[Row]()
    searched = any(field in SEARCHED for field, _ in file.study.sizes or ())
    if seeds > 1:
        notes.append(
            f"Numbers are means over {seeds} seeds ± their standard deviation; each seed draws other examples."
        )
        differences = compared(rows, [name for name in QUANTITIES if name != "edges" or searched])
    elif len(grouped(rows, "method", "selection")) > 1:
        notes.append("One seed: with several (seed: [0, 1, 2]), methods and selections are compared over them.")
    baseline = way_of(rows[0]) if rows else ""
    return report("study", file.title, rows, measured.random, compared=differences, baseline=baseline, notes=notes)


def compared(rows: Sequence[Row], quantities: Sequence[str]) -> list[Row]:
    """Every way minus the first one, on the same examples: a row for each model, task and way.

    Differences are those of means over sizes, one for each seed.
    """
    found = []
    for group in grouped(rows, "model", "task").values():
        first, *others = grouped(group, "method", "selection").values()
        for other in others:
            row: Row = {name: other[0][name] for name in ("model", "task", "method", "selection")}
            for name in quantities:
                ours, theirs = (by_seed(way, QUANTITIES[name][1]) for way in (other, first))
                difference = over_differences([ours[seed] - theirs[seed] for seed in theirs])
                row |= {f"{name}_{key}": value for key, value in difference.items()}
            found.append(row)
    return found


def over_differences(differences: Sequence[float]) -> dict[str, Any]:
    """The mean of the differences of several seeds, its standard error and the 95% interval of Student's t.

    It is ``clear`` if the interval excludes zero; ``ahead`` is the number of seeds with a difference below zero.
    """
    from scipy.stats import t

    n, centre = len(differences), mean(differences)
    error = stdev(differences) / math.sqrt(n)
    low, high = (centre + sign * float(t.ppf(0.975, n - 1)) * error for sign in (-1, 1))
    ahead = sum(x < 0 for x in differences)
    spread = {"difference": centre, "standard_error": error, "low": low, "high": high}
    return {**spread, "seeds": n, "ahead": ahead, "clear": not low <= 0 <= high}
