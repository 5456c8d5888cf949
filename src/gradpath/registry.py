"""Registries of everything that users name.

These are methods, selections, tasks, metrics, ablations, model families, file formats and experiments. A registry is
a mapping from names to entries. The modules that define the built-in entries are imported at the first look-up, so
that importing the package stays quick. Their entries come first, in the order of these modules. Anybody can add an
entry under a new name: in a file (``load_plugin``), or in an installed package whose ``pyproject.toml`` names a module:

    [project.entry-points."gradpath.plugins"]
    my-paths = "my_package.paths"

>>> colours = Registry[str]("colour")
>>> colours.add("red", "#f00", owner="docs")
'#f00'
>>> colours.find("rad")
Traceback (most recent call last):
gradpath.errors.UsageError: there is no colour 'rad'. Did you mean 'red'? Known: red.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar, get_type_hints

from gradpath.errors import (
    GradpathError,
    InputError,
    UsageError,
    check_option,
    is_out_of_memory,
    reason,
    unknown,
    unknown_option,
    warn,
)

Entry = TypeVar("Entry")
PLUGINS = "gradpath.plugins"  # the group of entry points of installed packages


def owner_of(function: Callable[..., object]) -> str:
    """The module and name of a function, by which a repeated definition is recognised."""
    name: str = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{function.__module__}:{name}"


def first_line(function: Callable[..., object]) -> str:
    """The first line of a function's docstring: what ``gradpath ls`` shows."""
    return (inspect.getdoc(function) or "").partition("\n")[0].replace("``", "")


@dataclass(frozen=True)
class NamedFunction:
    """A registered function, whose first parameters are what it works on, and the others its options."""

    kind: ClassVar[str]  # what it is called in error messages
    name: str
    function: Callable[..., Any]

    @property
    def n_inputs(self) -> int:
        """The number of parameters that are not options."""
        return 1

    @property
    def about(self) -> str:
        """One line on what the function does."""
        return first_line(self.function)

    @property
    def defaults(self) -> dict[str, Any]:
        """The options and their defaults, in the order of the function's signature."""
        parameters = list(inspect.signature(self.function).parameters.values())[self.n_inputs :]
        return {p.name: None if p.default is p.empty else p.default for p in parameters}

    def options(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """The defaults, updated by the options in ``changes``, whose names and types are checked."""
        for name in changes.keys() - self.defaults.keys():
            raise unknown_option(name, {f"the {self.kind} {self.name!r}": self.defaults})
        return {**self.defaults, **{name: self.checked(name, value) for name, value in changes.items()}}

    def checked(self, name: str, value: Any) -> Any:
        """The value of an option, if its annotation allows it or is not a simple one."""
        check_option(self.name, name, value, get_type_hints(self.function).get(name))
        return value


def parse_options(texts: Iterable[str]) -> dict[str, Any]:
    """Options as they are typed: a value is read as JSON, such as a number, or else is the text itself.

    >>> parse_options(["steps=3", "stride=unit"])
    {'steps': 3, 'stride': 'unit'}
    """
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise UsageError(f"an option is written NAME=VALUE, such as stride=unit: got {text!r}.")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


class Registry(Mapping[str, Entry], Generic[Entry]):
    """Entries by name.

    Args:
        kind: What an entry is called in error messages.
        modules: The modules that register the built-in entries, in the order in which they are listed.
    """

    def __init__(self, kind: str, modules: Sequence[str] = ()) -> None:
        self.kind, self._modules = kind, tuple(modules)
        self._entries: dict[str, tuple[str, Entry]] = {}  # from a name to the owner and the entry
        self._loaded = False

    def add(self, name: str, entry: Entry, owner: str) -> Entry:
        """Register an entry.

        ``owner`` is where it is defined, as ``owner_of`` gives it. The same owner may register the same name again, for
        example when a notebook cell is run twice.
        """
        built_in = self._position(owner) < len(self._modules)
        if not built_in:
            self._load()
        if name in self._entries and (built_in or self._entries[name][0] != owner):
            raise UsageError(f"there is already a {self.kind} {name!r}. Choose another name.")
        self._entries[name] = owner, entry
        return entry

    def remove(self, name: str) -> None:
        """Take out an entry that was added."""
        del self._entries[name]

    def find(self, name: str) -> Entry:
        """The entry of that name, or an error that suggests the nearest one."""
        if name not in self:
            raise unknown(self.kind, name, self)
        return self[name]

    def __getitem__(self, name: str) -> Entry:
        self._load()
        return self._entries[name][1]

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted(self._entries, key=lambda name: self._position(self._entries[name][0])))

    def __len__(self) -> int:
        self._load()
        return len(self._entries)

    def _position(self, owner: str) -> int:
        """The place of an owner's module among the built-in ones; other modules come after them."""
        module = owner.partition(":")[0]
        return self._modules.index(module) if module in self._modules else len(self._modules)

    def _load(self) -> None:
        if not self._loaded:
            self._loaded = True
            for module in self._modules:
                importlib.import_module(module)
            load_installed_plugins()


def load_plugin(file: str | Path) -> ModuleType:
    """Run a Python file that registers entries of the user's own, such as paths or tasks.

    It is run once, and again after it was changed.
    """
    path = Path(file)
    if path.suffix != ".py" or not os.path.isfile(path):
        raise InputError(f"a plug-in is a Python file, such as my_paths.py: there is no such file {file}.")
    name = f"gradpath_plugin_{sha256(str(path.resolve()).encode()).hexdigest()[:16]}"
    try:
        code = path.read_bytes()
        digest = sha256(code).hexdigest()
        if _FILES.get(name) == (path.name, digest):
            return sys.modules[name]
        module = sys.modules[name] = ModuleType(name)
        module.__file__ = str(path)
        exec(compile(code, str(path), "exec"), vars(module))  # noqa: S102  (the user's own code)
    except Exception as problem:
        sys.modules.pop(name, None)
        raise InputError(f"the plug-in {path} cannot be run ({reason(problem)}). Correct it.") from problem
    _FILES[name] = path.name, digest
    return module


_FILES: dict[str, tuple[str, str]] = {}  # from a module to the name of its file and the digest of its code


def loaded_plugins() -> dict[str, str]:
    """The loaded plug-ins, for keys of stored results: the digest of each file and the version of each package."""
    load_installed_plugins()
    plugins = {point.dist.name: point.dist.version for point in _entry_points() if point.dist is not None}
    for name, digest in sorted(_FILES.values()):  # files in different folders may have the same name
        plugins[name] = f"{plugins[name]}+{digest}" if name in plugins else digest
    return plugins


@cache
def _entry_points() -> importlib.metadata.EntryPoints:
    return importlib.metadata.entry_points(group=PLUGINS)


def load_function(spec: str) -> Callable[..., Any]:
    """The function that ``FILE.py:function`` names."""
    file, _, name = spec.rpartition(":")
    function = getattr(load_plugin(file), name, None)
    if not callable(function):
        raise InputError(f"{file} has no function {name!r}. Write FILE.py:function.")
    return function  # type: ignore[no-any-return]


def failure_of(what: str, function: Callable[..., Any], problem: Exception, facts: str = "") -> InputError | None:
    """The error for an exception in a function of the user's own, with the file and line of that function.

    ``what`` failed, such as "the metric right_logit"; ``facts`` are what it was called with, to add to the sentence.
    None if the exception is not the function's: gradpath's own, or too little memory.
    """
    built_in = str(getattr(function, "__module__", "")).partition(".")[0] == "gradpath"
    if built_in or is_out_of_memory(problem) or isinstance(problem, GradpathError):
        return None
    file = getattr(getattr(function, "__code__", None), "co_filename", None)
    frames = traceback.extract_tb(problem.__traceback__)
    frame = next((frame for frame in reversed(frames) if frame.filename == file), frames[-1])
    where = f"{Path(frame.filename).name}, line {frame.lineno}"
    return InputError(f"{what} failed ({where}): {reason(problem)}{facts and f'; {facts}'}.")


def load_installed_plugins() -> None:
    """Import the plug-ins of installed packages, once; one that fails is left out, with a warning."""
    if _INSTALLED:
        return
    _INSTALLED.append(PLUGINS)  # first, because importing a plug-in can call this function again
    for point in _entry_points():
        try:
            point.load()
        except Exception as problem:
            package = point.dist.name if point.dist else "a package"
            warn(f"the plug-in {point.name!r} of {package} is left out: it cannot be loaded ({reason(problem)}).")


_INSTALLED: list[str] = []  # the groups of entry points that were loaded
