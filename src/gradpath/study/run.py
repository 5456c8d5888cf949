"""Run a study, model by model, and write its report: all rows, tables for people and a figure.

A study can be measured in parts on several machines (``Part``). A part is some of its attributions, each with all of
its circuits, so nothing is scored twice. Its cells and scores are files that depend on nothing else: copied into one
folder, they are all that a run of the whole study needs.

With several seeds, tables have means over them and their standard deviation. Ways to a circuit are then compared in
pairs: each seed draws other examples, on which both were measured, so what counts is the difference within a seed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from operator import itemgetter
from pathlib import Path
from statistics import mean, stdev
from typing import Any, TypeVar

from gradpath.errors import UsageError
from gradpath.model.transformer import Transformer
from gradpath.recipe import Recipe
from gradpath.report.style import task_title
from gradpath.study.bench import Bench, Row, Store
from gradpath.study.faithfulness import READING, draw_curves, examples_of, random_rows
from gradpath.study.file import StudyFile
from gradpath.study.outcome import (
    Note,
    Outcome,
    Written,
    environment,
    grouped,
    markdown,
    mean_of,
    nfs,
    percent,
    write_outcome,
)
from gradpath.study.spec import Size, method_label

T = TypeVar("T")
LoadModel = Callable[[str], Transformer]
SEARCHED = ("", "faithfulness")  # sizes that differ between circuits: fields of a recipe
# What ways are compared by; of each, less is better.
QUANTITIES: dict[str, tuple[str, Callable[[Row], float]]] = {
    "error": ("error", lambda row: float(row["error"])),
    "distance": ("|1 - NFS|", lambda row: abs(1 - float(row["faithfulness"]))),
    "edges": ("edges", lambda row: float(row["edges_requested"])),
}


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
    """Measure the missing circuits of a study, or of a part of it.

    Args:
        file: The study.
        out: The folder of its measurements.
        load: Loads a model by its name; one model is in memory at a time.
        part: What to measure.
        note: Called with messages for the user.

    Returns:
        The rows of all circuits.
    """
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
    """Measure the missing circuits of a study, and write its report.

    Args:
        file: The study.
        out: The folder of its measurements and of its report.
        load: Loads a model by its name; one model is in memory at a time.
        command: The command line, for the record.
        note: Called with messages for the user.

    Returns:
        The report and its files.
    """
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
    tables = [_means(rows, measured.random), *([_comparison(rows[0], pairs)] if pairs else [])] if rows else []
    for place, group in grouped(means, "model", "task").items():
        tables.append(_sizes(group, grouped(random, "model", "task").get(place, [])))
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
        text="\n\n".join(tables) or "No circuit was measured.",
        figures={"study": lambda: _figure(file.title, means, random, seeds)} if means else {},
        notes=tuple(notes),
        facts={"random": measured.random, "over_seeds": means, "compared": pairs},
    )


def by_seed(rows: Sequence[Row], value: Callable[[Row], float]) -> dict[int, float]:
    """The mean of a value over the rows of each seed."""
    return {seed: mean(map(value, group)) for seed, group in grouped(rows, "seed").items()}


def over_seeds(rows: Sequence[Row]) -> list[Row]:
    """One row for circuits that differ only in their seed: means, and standard deviations if there are several.

    The ends of an interval are then one standard deviation from the mean; of random circuits, the outermost ones.
    """
    merged = []
    for group in grouped(rows, "model", "task", "method", "selection", "size").values():
        row = {**group[0], **{name: mean_of(group, name) for name in ("sparsity", "edges_requested")}}
        for name in ("faithfulness", "error"):
            values = [*by_seed(group, itemgetter(name)).values()]
            row[name] = mean(values)
            if len(values) > 1:
                row[f"{name}_sd"] = stdev(values)
            for end, outermost, sign in (("low", min, -1), ("high", max, 1)):
                if len(values) > 1 and row["method"] != "random":
                    row[f"{name}_{end}"] = row[name] + sign * row[f"{name}_sd"]
                else:
                    ends = [float(x) for other in group if (x := other[f"{name}_{end}"]) is not None]
                    row[f"{name}_{end}"] = outermost(ends, default=None)
        merged.append(row)
    return merged


def compared(rows: Sequence[Row], quantities: Sequence[str]) -> list[Row]:
    """Every way to a circuit minus the first one, on the same examples: a row for each model, task and way.

    A way is a method with a selection. Its differences are those of means over sizes, one for each seed.
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


def _name(row: Row) -> str:
    return f"{row['method']}, {row['selection']}" if row["selection"] else "random circuits"


def _comparison(first: Row, pairs: Sequence[Row]) -> str:
    """A line per model, task and way with its differences from the first way."""
    names = [name for name in QUANTITIES if f"{name}_difference" in pairs[0]]

    def cells(row: Row, name: str) -> list[str]:
        form = "+,.0f" if name == "edges" else "+.3f"
        text = f"{row[f'{name}_difference']:{form}} ± {row[f'{name}_standard_error']:{form[1:]}}"
        return [f"**{text}**" if row[f"{name}_clear"] else text, f"{row[f'{name}_ahead']} of {row[f'{name}_seeds']}"]

    lines = [
        [
            f"{task_title(row['task'])}, {row['model']}: {_name(row)}",
            *(cell for name in names for cell in cells(row, name)),
        ]
        for row in pairs
    ]
    headings = ["", *(heading for name in names for heading in (QUANTITIES[name][0], "ahead"))]
    reading = (
        f"Means over sizes minus those of {_name(first)}, on the same examples: the mean over seeds ± its standard "
        "error, and the number of seeds in which it is below zero, which is better. Bold: clear, the 95% interval of "
        "Student's t over seeds excludes zero."
    )
    return f"## Compared with {_name(first)}\n\n{reading}\n\n{markdown(headings, lines)}"


def _means(rows: Sequence[Row], random: Sequence[Row]) -> str:
    """A line per method and selection, a column per model and task: means over sizes."""
    places = list(grouped(rows, "model", "task"))

    def cell(group: Sequence[Row]) -> str:
        def number(name: str, form: Callable[[float], str]) -> str:
            values = [*by_seed(group, itemgetter(name)).values()]
            return " ± ".join([form(mean(values)), *([form(stdev(values))] if len(values) > 1 else [])])

        return f"{number('faithfulness', percent)} / {number('error', '{:.3f}'.format)}" if group else ""

    lines = []
    for group in grouped([*rows, *random], "method", "selection").values():
        at = grouped(group, "model", "task")
        lines.append([_name(group[0]), *(cell(at.get(place, [])) for place in places)])
    headings = ["method, selection", *(f"{task_title(task)}, {model}" for model, task in places)]
    return "## Means\n\nNFS in percent / error, as means over all sizes.\n\n" + markdown(headings, lines)


def _sizes(rows: Sequence[Row], random: Sequence[Row]) -> str:
    """The circuits of one model and task: a line per method and selection, a column per size."""
    sizes = grouped(sorted(rows, key=itemgetter("edges_requested")), "size")
    edges = {size: {row["edges_requested"] for row in group} for size, group in sizes.items()}

    def cell(row: Row) -> str:
        text = f"{nfs(row)} / {row['error']:.3f}"
        if "error_sd" in row:
            shares = f"{percent(row['faithfulness'])} ± {percent(row['faithfulness_sd'])}"
            text = f"{shares} / {row['error']:.3f} ± {row['error_sd']:.3f}"
        return text if len(edges[row["size"]]) == 1 else f"{text} ({row['edges_requested']:,.0f} edges)"

    def heading(size: str) -> str:
        one = len(edges[size]) == 1 and "edges" not in size
        return f"{size}: {min(edges[size]):,.0f} edges" if one else size

    lines = []
    for group in grouped([*rows, *random], "method", "selection").values():
        at = {row["size"]: row for row in group}
        lines.append([_name(group[0]), *(cell(at[size]) if size in at else "" for size in sizes)])
    title = f"{task_title(rows[0]['task'])} in {rows[0]['model']}"
    head = f"## {title}\n\n{examples_of(rows[0])}. NFS in percent / error.\n\n"
    return head + markdown(["method, selection", *map(heading, sizes)], lines)


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
