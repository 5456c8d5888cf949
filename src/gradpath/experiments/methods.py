"""A method with its options as one word of the command line: ``eap-gp+stride=matched+steps=10``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from gradpath.errors import UsageError
from gradpath.methods import find_method

PAPER_METHODS = "eap,eap-ig,eap-gp"


@dataclass(frozen=True)
class Method:
    """A registered path and the options it is given; those that are not given keep their defaults.

    >>> parse_methods("eap, eap-gp+stride=matched")[1].label
    'eap-gp+stride=matched'
    """

    name: str
    given: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        return "+".join([self.name, *(f"{name}={_text(value)}" for name, value in self.given)])

    @property
    def options(self) -> dict[str, Any]:
        """All options, checked."""
        return find_method(self.name).options(dict(self.given))

    @property
    def steps(self) -> int:
        return int(self.options.get("steps", 1))

    @property
    def cost(self) -> float:
        """About how many passes over an example's suffix its scores take, to foresee the time."""
        whole = find_method(self.name).whole(self.options)
        return 3.0 + (6.0 if whole else 2.0) * self.steps

    def with_steps(self, steps: int) -> Method:
        """The same method with another number of steps, if it has any."""
        if "steps" not in find_method(self.name).defaults:
            return self
        return Method(self.name, (*(pair for pair in self.given if pair[0] != "steps"), ("steps", steps)))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def parse_methods(text: str) -> tuple[Method, ...]:
    """Methods separated by commas, each with its options after plus signs; all checked by name and type."""
    methods = tuple(_parse(word.strip()) for word in text.split(",") if word.strip())
    if not methods:
        raise UsageError(f"--methods needs at least one method, such as {PAPER_METHODS}: got {text!r}.")
    for method in methods:
        assert method.options is not None  # raises for what is unknown
    return methods


def _parse(word: str) -> Method:
    name, *rest = word.split("+")
    given = []
    for option in rest:
        key, equals, value = option.partition("=")
        if not equals or not key:
            raise UsageError(
                f"a method's option is written +NAME=VALUE, as in eap-gp+steps=10: got {word!r}."
            )
        try:
            given.append((key, json.loads(value)))
        except ValueError:
            given.append((key, value))
    return Method(name, tuple(given))
