"""A study as a file: models x tasks x methods x selections x sizes x seeds, for ``gradpath run``.

    models: [smollm2, gemma3-270m]
    tasks: [ioi, sva, pairs.csv]          # a file of your own pairs is a task, too
    methods: [eap-ig, eap-gp+stride=unit]
    selections: [top, refined]
    sizes: [500, 0.975]                   # a number of edges, or a sparsity
    examples: 50
    seeds: [0, 1]

All keys are optional and have the defaults of ``curve``; a list of one value may be written as that value. Paths are
relative to the file. It is YAML without references and objects. All mistakes are reported at once, with their lines.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import yaml

from gradpath import defaults
from gradpath.ablation import ABLATIONS
from gradpath.errors import GradpathError, InputError, UsageError, reason, unknown, whole_number
from gradpath.graph import Graph
from gradpath.grid.bench import Bench, Store
from gradpath.grid.faithfulness import task_jobs
from gradpath.grid.jobs import Job
from gradpath.grid.request import CUSTOM, MethodSpec, Request, parse_methods
from gradpath.limits import Limits, parse_bytes
from gradpath.model.load import find_device, find_dtype
from gradpath.model.transformer import Transformer
from gradpath.registry import load_plugin
from gradpath.report.style import task_title
from gradpath.runtime.files import readable, recorded_path
from gradpath.selection import find_selection
from gradpath.selection.ranking import edge_count
from gradpath.tasks import TASKS, find_metric
from gradpath.tasks.data_rows import SUFFIXES
from gradpath.tasks.load import check_task

Value = TypeVar("Value")
Place = TypeVar("Place", str, Path)
MOST_BYTES = 1_000_000  # of a study's file
SEE = "'A study as a file' in the documentation has an example."
KEYS = {
    "title": "The heading of the report.",
    "models": "Hub names, folders, .gguf files, smollm2, gemma3-270m.",
    "tasks": "Names of tasks, or files of your own pairs.",
    "methods": "Methods, with options after plus signs.",
    "selections": "How edges are selected.",
    "sizes": "Numbers of edges, or sparsities.",
    "examples": "Pairs for attribution; the same number is held out for evaluation.",
    "seeds": "Each draws other examples.",
    "ablation": "How ablated edges are replaced.",
    "metric": "How the behaviour is measured, instead of each task's own metric.",
    "plugins": "Python files to run first.",
    "batch_size": "Maximum number of examples in a batch.",
    "memory": "Memory to use, such as 8GB.",
    "device": "Where to run.",
    "dtype": "float32, bfloat16 or float16.",
}


@dataclass(frozen=True)
class Study:
    """A study that was read and checked; ``plain`` has the values of the file, for the record."""

    title: str
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    data: tuple[Path, ...]
    methods: tuple[MethodSpec, ...]
    selections: tuple[str, ...]
    sizes: tuple[int | float, ...]
    seeds: tuple[int, ...]
    request: Request  # the options that all parts share
    device: str | None
    dtype: str | None
    plain: Mapping[str, Any]

    @property
    def n_cells(self) -> int:
        """The number of circuits, random ones not counted."""
        lists = (self.models, (*self.tasks, *self.data), self.methods, self.selections, self.sizes, self.seeds)
        return prod(map(len, lists))

    @property
    def model_labels(self) -> dict[str, str]:
        """The name of each model in the report, without the folders of this machine."""
        return _distinct({name: recorded_path(name) for name in self.models})

    @property
    def data_labels(self) -> dict[Path, str]:
        """The name of each file of pairs in the report: that of the file, or more of its path if that is not unique."""
        return _distinct({file: readable(file.stem) for file in self.data}, reserved=self.tasks)

    def counts(self, graph: Graph) -> dict[int | float, int]:
        """The number of edges of each size in a model; sizes larger than the model are left out."""
        n_edges = graph.n_edges
        return {
            size: edge_count(n_edges, None, size) if size < 1 else edge_count(n_edges, int(size), None)
            for size in self.sizes
            if size < 1 or size <= n_edges
        }

    def benches(self, model: Transformer, store: Store) -> Iterator[Bench]:
        """One bench for each seed, and for each seed and file of the user's pairs."""
        for seed in self.seeds:
            if self.tasks:
                yield Bench(model, replace(self.request, tasks=self.tasks, seed=seed), store)
            for file in self.data:
                yield Bench(model, replace(self.request, tasks=(CUSTOM,), data=file, seed=seed), store)

    def jobs(self, bench: Bench) -> list[Job]:
        """The jobs of all tasks; none if the model is too small for all sizes."""
        counts = tuple(dict.fromkeys(self.counts(bench.model.graph).values()))
        tasks = bench.request.task_names if counts else ()
        return [job for task in tasks for job in task_jobs(bench, task, counts)]


def _distinct(labels: Mapping[Place, str], reserved: Sequence[str] = ()) -> dict[Place, str]:
    """Labels of paths. One that occurs twice, or is reserved, becomes the end of its path that no other path has."""
    counts = Counter(map(task_title, (*labels.values(), *reserved)))

    def end(place: Place) -> str:
        ends = [Path(other).parts for other in labels if other != place]
        parts = Path(place).parts
        lengths = (n for n in range(1, len(parts)) if all(other[-n:] != parts[-n:] for other in ends))
        return readable(str(Path(*parts[-next(lengths, len(parts)) :])))

    return {place: label if counts[task_title(label)] == 1 else end(place) for place, label in labels.items()}


def read_study(file: str | Path, *, device: str | None = None, dtype: str | None = None) -> Study:
    """Read a study and check it, before a model is loaded.

    Args:
        file: The YAML file. Its plug-ins are run.
        device: Where to run; it overrides the file.
        dtype: The precision; it overrides the file.

    Returns:
        The study. An error lists every mistake with its line.
    """
    path = Path(file)
    entries = _Entries(path, _parse(path))
    folder = path.parent
    entries.each("plugins", [], lambda name: load_plugin(_path(folder, _text(name))))
    tasks = entries.each("tasks", [defaults.TASK], lambda name: _task(folder, _text(name)))
    study = Study(
        title=entries.single("title", path.stem, _text),
        models=entries.each("models", [defaults.MODEL], lambda name: _model(folder, _text(name))),
        tasks=tuple(task for task in tasks if isinstance(task, str)),
        data=tuple(task for task in tasks if isinstance(task, Path)),
        methods=entries.each("methods", [defaults.METHOD], lambda word: parse_methods(_text(word))[0]),
        selections=entries.each("selections", [defaults.SELECTION], _known(find_selection)),
        sizes=entries.each("sizes", [defaults.SPARSITY], _size),
        seeds=entries.each("seeds", [defaults.SEED], lambda seed: whole_number("a seed", seed, least=0)),
        request=Request(),
        device=device or entries.single("device", None, _known(find_device)),
        dtype=dtype or entries.single("dtype", None, _known(find_dtype)),
        plain=entries.plain,
    )
    shared: dict[str, Any] = {
        "examples": entries.single("examples", defaults.EXAMPLES, lambda n: whole_number("the number of examples", n)),
        "ablation": entries.single("ablation", defaults.ABLATION, _known(ABLATIONS.find)),
        "metric": entries.single("metric", None, lambda name: _metric(folder, _text(name))),
        "limits": Limits(
            entries.single("batch_size", None, lambda n: whole_number("the batch size", n)),
            entries.single("memory", None, lambda size: parse_bytes(str(size))),
        ),
    }
    entries.check()
    return replace(study, request=Request(methods=study.methods, hows=study.selections, **shared))


class _Entries:
    """The keys of a file with the lines of their values, and all mistakes so far."""

    def __init__(self, path: Path, root: yaml.Node | None) -> None:
        self.path, self.mistakes = path, list[tuple[int, str]]()
        self.values: dict[str, tuple[int, Any, list[tuple[int, Any]]]] = {}  # key -> line, value, its items
        if not isinstance(root, yaml.MappingNode):
            raise InputError(f"{path} has to be a list of keys with values, such as 'tasks: [ioi, sva]'. {SEE}")
        for key_node, node in root.value:
            line, key = key_node.start_mark.line + 1, str(_plain(key_node))
            if key not in KEYS:
                self.mistakes.append((line, str(unknown("key", key, KEYS))))
            elif key in self.values:
                self.mistakes.append((line, f"{key} was given before, in line {self.values[key][0]}."))
            else:
                nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
                items = [(item.start_mark.line + 1, _plain(item)) for item in nodes]
                self.values[key] = line, _plain(node), items

    @property
    def plain(self) -> dict[str, Any]:
        return {key: value for key, (_, value, _) in self.values.items()}

    def each(self, key: str, default: Sequence[Any], parse: Callable[[Any], Value]) -> tuple[Value, ...]:
        """The values of a list, each parsed; repeated values count once."""
        line, _, items = self.values.get(key, (0, None, [(0, value) for value in default]))
        if not items and key in self.values and default:
            self.mistakes.append((line, f"{key} needs at least one value."))
        values = [self._parsed(key, line, value, parse) for line, value in items]
        return tuple(dict.fromkeys(value for value in values if value is not None))

    def single(self, key: str, default: Any, parse: Callable[[Any], Value]) -> Any:
        """A value that cannot be a list."""
        if key not in self.values:
            return default
        line, value, _ = self.values[key]
        return self._parsed(key, line, value, parse)

    def _parsed(self, key: str, line: int, value: Any, parse: Callable[[Any], Value]) -> Value | None:
        try:
            return parse(value)
        except (GradpathError, OSError) as problem:
            text = str(problem) if isinstance(problem, GradpathError) else f"{reason(problem)}."
            self.mistakes.append((line, f"{key}: {text}"))
            return None

    def check(self) -> None:
        """Raise an error that lists all mistakes, if there are any."""
        if self.mistakes:
            count = "1 mistake" if len(self.mistakes) == 1 else f"{len(self.mistakes)} mistakes"
            mistakes = sorted(self.mistakes, key=itemgetter(0))
            lines = [f"line {line}: {' '.join(text.split())}" for line, text in mistakes]
            raise UsageError(f"{self.path} has {count}:", lines)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Reads plain values only. References are refused: a few lines of them can expand to gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.composer.ComposerError(None, None, "references (*name) are not allowed", event.start_mark)
        return super().compose_node(parent, index)


def _parse(path: Path) -> yaml.Node | None:
    """The nodes of a YAML file, which have the lines of all values."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path} is too large for a study: it may have {MOST_BYTES:,} bytes.")
        loader = _Loader(path.read_text(encoding="utf-8"))
        try:
            return loader.get_single_node()
        finally:
            loader.dispose()
    except FileNotFoundError:
        raise InputError(f"there is no file {path}. {SEE}") from None
    except OSError as problem:
        raise InputError(f"{path} cannot be read: {problem.strerror}.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        mark = getattr(problem, "problem_mark", None)
        where = "" if mark is None else f" in line {mark.line + 1}"
        what = getattr(problem, "problem", None) or type(problem).__name__
        raise InputError(f"{path} is not YAML{where}: {what}. {SEE}") from None


def _plain(node: yaml.Node) -> Any:
    """The value of a node: texts, numbers, lists and dictionaries."""
    loader = _Loader("")
    try:
        return loader.construct_object(node, deep=True)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        return f"<{node.tag}>"  # a tag of another language, or a key that cannot be one: refused as any other text
    finally:
        loader.dispose()


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
    if os.path.exists(path):  # Path.exists raises for some names that the system does not allow
        return str(path)
    if name.startswith((".", "/", "~")) or name.endswith(".gguf"):
        raise InputError(f"there is no folder or file {path}.")
    return name


def _task(folder: Path, name: str) -> str | Path:
    if Path(name).suffix.lower() not in SUFFIXES:
        TASKS.find(name)
        return name
    file = _path(folder, name)
    check_task(None, file)
    return file


def _size(value: Any) -> int | float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and (0 < value < 1 or (isinstance(value, int) and value >= 1)):
        return int(value) if value >= 1 else float(value)
    raise UsageError(f"a size is a number of edges, such as 500, or a sparsity below 1, such as 0.975: got {value!r}.")


def _metric(folder: Path, name: str) -> str:
    """The name of a metric, or ``FILE.py:function``."""
    metric = str(_path(folder, name)) if ".py:" in name else name
    find_metric(metric)
    return metric
