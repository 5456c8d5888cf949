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
to the file. It is YAML without references and objects. All mistakes are reported at once, with their lines.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import yaml

from gradpath import defaults
from gradpath.ablation import ABLATIONS
from gradpath.errors import GradpathError, InputError, UsageError, reason, unknown, whole_number
from gradpath.model.load import find_device, find_dtype
from gradpath.recipe import SIZES, Recipe
from gradpath.registry import load_plugin
from gradpath.runtime.files import readable
from gradpath.selection import find_selection
from gradpath.study import Study, check_method
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
    return StudyFile(title, models, study, device, dtype, entries.plain)


def _field(name: str) -> Callable[[Any], Any]:
    """A value that a recipe allows in one of its fields."""

    def parse(value: Any) -> Any:
        return getattr(Recipe(**{name: value}), name)

    return parse


class _Entries:
    """The keys of a file with the lines of their values, and all mistakes so far."""

    def __init__(self, path: Path) -> None:
        self.path, self.mistakes = path, list[tuple[int, str]]()
        self.values: dict[str, tuple[int, Any, list[tuple[int, Any]]]] = {}  # key -> line, value, its items
        for line, key, value, items in _entries_of(path):
            if key not in KEYS:
                self.mistakes.append((line, str(unknown("key", key, KEYS))))
            elif key in self.values:
                self.mistakes.append((line, f"{key} was given before, in line {self.values[key][0]}."))
            else:
                self.values[key] = line, value, items

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


def _entries_of(path: Path) -> list[tuple[int, str, Any, list[tuple[int, Any]]]]:
    """The entries of a YAML file: line, key, value, and the items of a list, or the value, with their lines."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path} is too large for a study: it may have {MOST_BYTES:,} bytes.")
        loader = _Loader(path.read_text(encoding="utf-8"))
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            raise InputError(f"{path} has to be a list of keys with values, such as 'task: [ioi, sva]'. {SEE}")

        def at(node: yaml.Node) -> tuple[int, Any]:
            return node.start_mark.line + 1, loader.construct_object(node, deep=True)

        entries = []
        for key, value in root.value:
            items = value.value if isinstance(value, yaml.SequenceNode) else [value]
            line, name = at(key)
            entries.append((line, str(name), at(value)[1], list(map(at, items))))
        return entries
    except FileNotFoundError:
        raise InputError(f"there is no file {path}. {SEE}") from None
    except OSError as problem:
        raise InputError(f"{path} cannot be read: {problem.strerror}.") from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as problem:
        mark = getattr(problem, "problem_mark", None)
        where = "" if mark is None else f" in line {mark.line + 1}"
        what = getattr(problem, "problem", None) or type(problem).__name__
        raise InputError(f"{path} is not YAML{where}: {what}. {SEE}") from None


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


def _data(folder: Path, name: str) -> str:
    file = _path(folder, name)
    check_task(None, file)
    return str(file)


def _metric(folder: Path, name: str) -> str:
    """The name of a metric, or ``FILE.py:function``."""
    metric = str(_path(folder, name)) if ".py:" in name else name
    find_metric(metric)
    return metric
