"""A study as a file: models x tasks x methods x selections x sizes x seeds, for ``gradpath run``.

    model: [smollm2, gemma3-270m]
    task: [ioi, sva]
    data: pairs.csv                       # your own pairs, in addition to the tasks
    method: [eap-ig, eap-gp+stride=unit]
    selection: [top, refined]
    edges: 500                            # sizes: numbers of edges, and
    sparsity: 0.975                       # sparsities; without any, each circuit has the size that find gives it
    examples: 50
    seed: [0, 1]

The keys are the fields of a recipe, each with one value or a list, and a few more. All are optional. Paths are relative
to the file. It is YAML without references and objects. All mistakes are reported at once.

``run_study`` measures them model by model, and writes a report: all rows, tables for people and a figure. It can be
measured in parts on several machines (``Part``). A part is some of its attributions, each with all of its circuits, so
nothing is scored twice. Its cells and scores are files that depend on nothing else: copied into one folder, they are
all that a run of the whole study needs.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any, TypeVar

import yaml

from gradpath import defaults
from gradpath.ablation import ABLATIONS
from gradpath.errors import GradpathError, InputError, UsageError, reason, unknown, whole_number
from gradpath.model.cache import packaged
from gradpath.model.load import find_device, find_dtype
from gradpath.model.transformer import Transformer
from gradpath.recipe import SIZES, Recipe
from gradpath.registry import load_plugin
from gradpath.runtime.files import readable
from gradpath.selection import find_selection
from gradpath.study import Study, check_method, method_label
from gradpath.study.bench import Bench, Row, Store
from gradpath.study.faithfulness import QUANTITIES, SEARCHED, by_seed, measured_rows, report, way_of
from gradpath.study.outcome import Note, Outcome, Written, environment, grouped, write_outcome
from gradpath.sweep import Limits, parse_bytes
from gradpath.tasks import TASKS, find_metric
from gradpath.tasks.load import check_task

Value = TypeVar("Value")
MOST_BYTES = 1_000_000  # of a study's file
SEE = "'A study as a file' in the documentation has an example."
_KEYS = "title model task data method selection edges sparsity faithfulness examples seed ablation metric dtype"
KEYS = (*_KEYS.split(), "plugins", "batch_size", "memory", "device")


@dataclass(frozen=True)
class StudyFile:
    """A study that was read and checked, its models and its title; ``plain`` has the values of the file."""

    title: str
    models: tuple[str, ...]
    study: Study
    device: str | None
    dtype: str | None
    plain: Mapping[str, Any]

    @property
    def model_labels(self) -> dict[str, str]:
        """The name of each model in the report."""
        return _distinct(self.models)

    @property
    def task_labels(self) -> dict[str, str]:
        """The name of each task in the report; of a file of pairs, that of the file."""
        return _distinct(self.study.task_names)


def _distinct(names: Sequence[str]) -> dict[str, str]:
    """Names without the folders of this machine; of paths that share theirs, as much more as tells them apart."""

    files = {name: Path(name).parts for name in names if os.path.exists(name)}

    def label(name: str) -> str:
        parts = files[name]
        others = [other for place, other in files.items() if place != name]
        lengths = (n for n in range(1, len(parts)) if all(other[-n:] != parts[-n:] for other in others))
        return readable(str(Path(*parts[-next(lengths, len(parts)) :])))

    return {name: label(name) if name in files else name for name in names}


def read_study(
    file: str | Path, *, model: str | None = None, device: str | None = None, dtype: str | None = None
) -> StudyFile:
    """Read a study and check it, before a model is loaded; the keywords override the file."""
    path = Path(file)
    entries = _Entries(path)
    folder = path.parent
    entries.each("plugins", [], lambda name: load_plugin(_path(folder, _text(name))))
    data = entries.each("data", [], lambda name: _data(folder, _text(name)))
    tasks = entries.each("task", [] if data else [defaults.TASK], _known(TASKS.find))
    sizes = [(size, value) for size in SIZES[:-1] for value in entries.each(size, [], _field(size))]
    lists: dict[str, Any] = {
        "tasks": (*tasks, *data),
        "methods": entries.each("method", [defaults.METHOD], lambda word: check_method(_text(word))),
        "selections": entries.each("selection", [defaults.SELECTION], _known(find_selection)),
        "sizes": tuple(sizes) or (("", None),),
        "seeds": entries.each("seed", [defaults.SEED], _field("seed")),
    }
    shared = {
        "examples": entries.single("examples", defaults.EXAMPLES, _field("examples")),
        "ablation": entries.single("ablation", defaults.ABLATION, _known(ABLATIONS.find)),
        "metric": entries.single("metric", None, lambda name: _metric(folder, _text(name))),
    }
    # What was typed replaces what the file says, which need not be right on this machine.
    device = device or entries.single("device", None, _known(find_device))
    dtype = dtype or entries.single("dtype", None, _known(find_dtype))
    limits = Limits(
        entries.single("batch_size", None, lambda n: whole_number("the batch size", n)),
        entries.single("memory", None, lambda size: parse_bytes(str(size))),
    )
    models = (model,) if model else entries.each("model", [defaults.MODEL], lambda name: _model(folder, _text(name)))
    title = entries.single("title", path.stem, _text)
    entries.check()
    study = Study(recipe=Recipe(**shared), **lists, limits=limits)
    return StudyFile(title, models, study, device, dtype, entries.values)


def _field(name: str) -> Callable[[Any], Any]:
    """A value that a recipe allows in one of its fields."""

    def parse(value: Any) -> Any:
        return getattr(Recipe(**{name: value}), name)

    return parse


class _Entries:
    """The values of a file by key, and all mistakes so far."""

    def __init__(self, path: Path) -> None:
        self.path, self.values, self.mistakes = path, _values_of(path), list[str]()
        self.mistakes += [str(unknown("key", key, KEYS)) for key in self.values if key not in KEYS]

    def each(self, key: str, default: Sequence[Any], parse: Callable[[Any], Value]) -> tuple[Value, ...]:
        """The values of a list, each parsed; a single value is a list of one, and repeated values count once."""
        given = self.values.get(key, default)
        items = given if isinstance(given, (list, tuple)) else [given]
        if not items and default:
            self.mistakes.append(f"{key}: it needs at least one value.")
        values = [self._parsed(key, value, parse) for value in items]
        return tuple(dict.fromkeys(value for value in values if value is not None))

    def single(self, key: str, default: Any, parse: Callable[[Any], Value]) -> Any:
        """A value that cannot be a list."""
        return self._parsed(key, self.values[key], parse) if key in self.values else default

    def _parsed(self, key: str, value: Any, parse: Callable[[Any], Value]) -> Value | None:
        try:
            return parse(value)
        except (GradpathError, OSError) as problem:
            text = str(problem) if isinstance(problem, GradpathError) else f"{reason(problem)}."
            self.mistakes.append(f"{key}: {' '.join(text.split())}")
            return None

    def check(self) -> None:
        """Raise an error that lists all mistakes, if there are any."""
        if self.mistakes:
            count = "1 mistake" if len(self.mistakes) == 1 else f"{len(self.mistakes)} mistakes"
            raise UsageError(f"{self.path} has {count}:", self.mistakes)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Reads plain values only. References are refused: a few lines of them can expand to gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.composer.ComposerError(None, None, "references (*name) are not allowed", event.start_mark)
        return super().compose_node(parent, index)


def _values_of(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML file."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path} is too large for a study: it may have {MOST_BYTES:,} bytes.")
        content = _Loader(path.read_text(encoding="utf-8")).get_single_data()
    except FileNotFoundError:
        raise InputError(f"there is no file {path}. {SEE}") from None
    except OSError as problem:
        raise InputError(f"{path} cannot be read: {problem.strerror}.") from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as problem:
        mark = getattr(problem, "problem_mark", None)
        where = "" if mark is None else f" in line {mark.line + 1}"
        what = getattr(problem, "problem", None) or type(problem).__name__
        raise InputError(f"{path} is not YAML{where}: {what}. {SEE}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} has to be a list of keys with values, such as 'task: [ioi, sva]'. {SEE}")
    return {str(key): value for key, value in content.items()}


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"a text was expected: got {value!r}.")
    return value


def _known(find: Callable[[str], object]) -> Callable[[Any], str]:
    """A text that ``find`` does not refuse."""

    def parse(value: Any) -> str:
        name = str(value) if isinstance(value, int) else _text(value)  # the device 0 is a number in YAML
        find(name)
        return name

    return parse


def _path(folder: Path, name: str) -> Path:
    """A path in the file, which is relative to the file's folder."""
    return folder / os.path.expanduser(name)


def _model(folder: Path, name: str) -> str:
    """A folder or file, or a name that is looked up as --model does."""
    path = _path(folder, name)
    # Path.exists raises for some names that the system does not allow.
    if packaged(name, path) is None and os.path.exists(path):
        return str(path)
    if name.startswith((".", "/", "~")) or name.endswith(".gguf"):
        raise InputError(f"there is no folder or file {path}.")
    return name


def _data(folder: Path, name: str) -> str:
    file = _path(folder, name)
    check_task(None, file)
    return str(file)


def _metric(folder: Path, name: str) -> str:
    """The name of a metric, or ``FILE.py:function``."""
    metric = str(_path(folder, name)) if ".py:" in name else name
    find_metric(metric)
    return metric


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

    def take(self, items: Sequence[Value]) -> Sequence[Value]:
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


def measure_study(
    file: StudyFile, out: Path, load: LoadModel, *, part: Part = WHOLE, note: Note = lambda text: None
) -> Measured:
    """Measure the missing circuits of a study, or of a part of it."""
    study = file.study
    attributions = part.take(list(product(file.models, study.task_names, study.seeds, study.methods)))
    measured = Measured(len(attributions))
    for name in dict.fromkeys(name for name, *_ in attributions):
        bench, label = Bench(load(name), study, Store(out)), file.model_labels[name]
        graph = bench.model.graph
        sizes = [size for size in study.sizes or () if size[0] != "edges" or size[1] <= graph.n_edges]
        if left_out := [str(size[1]) for size in study.sizes or () if size not in sizes]:
            note(f"{label} has {graph.n_edges:,} edges, so there are no circuits of {', '.join(left_out)} edges in it.")
        for task in study.task_names:
            recipes = [x for x in study.recipes(task, sizes) if (name, task, x.seed, method_label(x)) in attributions]
            rows, random = measured_rows(bench, task, recipes, {"model": label, "task": file.task_labels[task]})
            measured.rows += rows
            measured.random += random
        about = {"name": label, "edges_total": graph.n_edges, "weights": bench.model.digest}
        measured.models.append({**about, "dtype": bench.model.dtype_name, "device": str(bench.model.device)})
        del bench
    return measured


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
    """Every way minus the first one, on the same examples: a row for each way, over all tasks and for each.

    Differences are those of means over sizes (and tasks), one for each seed.
    """
    found, groups = [], list[tuple[str, list[Row]]]()
    for of_model in grouped(rows, "model").values():
        tasks = grouped(of_model, "task")
        groups += [("all tasks", of_model)] if len(tasks) > 1 else []
        groups += tasks.items()
    for task, group in groups:
        first, *others = grouped(group, "method", "selection").values()
        for other in others:
            row: Row = {**{name: other[0][name] for name in ("model", "method", "selection")}, "task": task}
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
