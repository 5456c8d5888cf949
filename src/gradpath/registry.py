"""One registry for everything that users name: methods, selections, tasks, metrics, families, formats.

A registry is a mapping from names to entries. The modules that define the built-in entries are imported at the
first look-up, so that importing the package stays quick, and their entries come first, in the order of those
modules. Anybody can add an entry; a name that is taken is refused.

>>> colours = Registry[str]("colour")
>>> colours.add("red", "#f00", owner="docs")
'#f00'
>>> colours.find("rad")
Traceback (most recent call last):
gradpath.errors.UsageError: there is no colour 'rad'. Did you mean 'red'? Known: red.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from gradpath.errors import UsageError, unknown

Entry = TypeVar("Entry")


def owner_of(function: Callable[..., object]) -> str:
    """The place where a function is defined, by which a repeated definition is recognised."""
    name: str = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{function.__module__}:{name}"


class Registry(Mapping[str, Entry], Generic[Entry]):
    """Entries by name.

    Args:
        kind: What an entry is called in error messages.
        modules: The modules that register the built-in entries, in the order in which they are listed.
    """

    def __init__(self, kind: str, modules: Sequence[str] = ()) -> None:
        self.kind, self._modules = kind, tuple(modules)
        self._entries: dict[str, tuple[str, Entry]] = {}  # name -> (owner, entry)
        self._loaded = not modules

    def add(self, name: str, entry: Entry, owner: str) -> Entry:
        """Register an entry.

        Args:
            name: The name that users type.
            entry: What it stands for.
            owner: Where the entry is defined, as ``owner_of`` gives it. The same owner may register the same
                name again, as a notebook cell does that is run twice.

        Returns:
            The entry.
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
        self._load()
        if name not in self._entries:
            raise unknown(self.kind, name, self)
        return self._entries[name][1]

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
        """The place of an owner's module among the built-in ones; behind all of them for others."""
        module = owner.partition(":")[0]
        return self._modules.index(module) if module in self._modules else len(self._modules)

    def _load(self) -> None:
        if not self._loaded:
            self._loaded = True
            for module in self._modules:
                importlib.import_module(module)
