"""Run a study, model by model, and write its report: all rows, tables for people and a figure.

A study can be measured in parts on several machines (``Part``). A part is some of its attributions, each with all of
its circuits, so nothing is scored twice. Its cells and scores are files that depend on nothing else: copied into one
folder, they are all that a run of the whole study needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from gradpath.errors import UsageError
from gradpath.model.transformer import Transformer
from gradpath.recipe import Recipe
from gradpath.report.style import task_title
from gradpath.study.bench import Bench, Row, Store
from gradpath.study.faithfulness import READING, draw_curves, random_rows
from gradpath.study.file import StudyFile
from gradpath.study.outcome import Note, Outcome, Written, environment, grouped, write_outcome
from gradpath.study.spec import Size, method_label
from gradpath.study.tables import QUANTITIES, compared, comparison_table, means_table, over_seeds, size_tables, way_of

T = TypeVar("T")
LoadModel = Callable[[str], Transformer]
SEARCHED = ("", "faithfulness")  # sizes that differ between circuits: fields of a recipe


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
            rows = [{**row, "size": _size(recipe)} for recipe, row in zip(recipes, bench.rows(recipes), strict=True)]
            # Random circuits of a size that all methods share are those of the first method's part.
            own = [
                row
                for recipe, row in zip(recipes, rows, strict=True)
                if row["method"] == bench.study.methods[0] or (recipe.size or "") in SEARCHED
            ]
            names = {"model": label, "task": file.task_labels[task]}
            measured.rows += [{**row, **names} for row in rows]
            chance = {"method": "random", "selection": ""}
            measured.random += [{**row, **names, **chance} for row in random_rows(bench, task, own)]
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


def _size(recipe: Recipe) -> str:
    """The requested size of a circuit in tables."""
    if recipe.edges is not None:
        return f"{recipe.edges:,} edges"
    if recipe.sparsity is not None:
        return f"{100 * recipe.sparsity:.4g}% sparsity"
    return "as in find" if recipe.faithfulness is None else f"{recipe.faithfulness:.0%} kept"


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
    rows, seeds, notes = measured.rows, len(file.study.seeds), [READING]
    means, random = over_seeds(rows), over_seeds(measured.random)
    searched = any(field in SEARCHED for field, _ in file.study.sizes or ())
    pairs = compared(rows, [name for name in QUANTITIES if name != "edges" or searched]) if seeds > 1 else []
    tables = [means_table(rows, measured.random)] if rows else []
    tables += [comparison_table(way_of(rows[0]), pairs)] if pairs else []
    if seeds > 1:
        notes.append(
            f"Numbers are means over {seeds} seeds ± their standard deviation; each seed draws other examples."
        )
    elif len(grouped(rows, "method", "selection")) > 1:
        notes.append("One seed: with several (seed: [0, 1, 2]), methods and selections are compared over them.")
    return Outcome(
        name="study",
        title=file.title,
        rows=rows,
        text="\n\n".join([*tables, *size_tables(means, random)]) or "No circuit was measured.",
        figures={"study": lambda: _figure(file.title, means, random, seeds)} if means else {},
        notes=tuple(notes),
        facts={"random": measured.random, "over_seeds": means, "compared": pairs},
    )


def _figure(title: str, rows: Sequence[Row], random: Sequence[Row], seeds: int) -> Any:
    """A panel per model and task, with curves over sparsity."""
    several = len({row["model"] for row in rows}) > 1

    def panel(row: Row) -> Row:
        return {**row, "task": f"{task_title(row['task'])}, {row['model']}"} if several else row

    ordered = sorted((panel(row) for row in rows), key=lambda row: -row["sparsity"])  # stable: panels keep their order
    first = {row["task"]: i for i, row in enumerate(map(panel, reversed(rows)))}
    ordered.sort(key=lambda row: -first[row["task"]])
    chance = sorted((panel(row) for row in random), key=lambda row: -row["sparsity"])
    band = "95% interval" if seeds == 1 else f"standard deviation over {seeds} seeds"
    return draw_curves(ordered, title if several else rows[0]["model"], log=False, random=chance, band=band)
