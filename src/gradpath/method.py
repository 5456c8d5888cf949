"""What a method is: a name, what it does, and its options, which are the parameters of its function.

Most methods are paths (``paths``): generators of the points at which a gradient is taken. What cannot be said
as a path is a function of one batch (``methods``). Both kinds stand in one registry, ``METHODS``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from gradpath.errors import UsageError, unknown
from gradpath.model.transformer import Transformer


@dataclass(frozen=True)
class Method:
    """A registered method: a function of what it works on, and of options."""

    name: str
    build: Callable[..., Any]
    whole: Callable[[dict[str, Any]], bool] = lambda _: False  # by its options: does it move all positions
    of: Literal["edges", "nodes"] = "edges"  # what it scores
    check: Callable[[Transformer, int, dict[str, Any]], None] = lambda *_: None  # refuses so many examples
    points: Callable[[dict[str, Any]], int] = lambda options: options.get("steps", 1)  # to foresee memory by

    @property
    def about(self) -> str:
        does = (inspect.getdoc(self.build) or "").partition("\n")[0]
        return does if self.of == "edges" else f"Nodes, not edges. {does}"

    @property
    def defaults(self) -> dict[str, Any]:
        """The method's options and their defaults, in the order of its signature."""
        parameters = list(inspect.signature(self.build).parameters.values())[1:]
        return {p.name: None if p.default is p.empty else p.default for p in parameters}

    def options(self, given: dict[str, Any]) -> dict[str, Any]:
        """The defaults with what was given, which has to be known by name and by type."""
        for name in given.keys() - self.defaults.keys():
            raise UsageError(
                f"the method {self.name!r} has no option {name!r}: it knows "
                f"{', '.join(self.defaults) or 'none at all'}."
            )
        for name, value in given.items():
            self._check(name, value)
        return {**self.defaults, **given}

    def _check(self, name: str, value: Any) -> None:
        """A value has to be one that the option's annotation allows, where it has a plain one."""
        hint = get_type_hints(self.build).get(name)
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        if choices and value not in choices:
            raise UsageError(f"{name} must be one of {', '.join(map(str, choices))}: got {value!r}.")
        if hint in (bool, int, str) and type(value) is not hint:
            raise UsageError(f"{name} must be of type {hint.__name__}: got {value!r}.")
        if name == "steps" and value < 1:
            raise UsageError(f"steps must be a whole number of at least 1: got {value!r}.")


METHODS: dict[str, Method] = {}


def find_method(name: str) -> Method:
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]
