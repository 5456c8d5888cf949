"""A method with its options as one word of the command line: ``eap-gp+stride=matched+steps=10``.

What was asked for, as plain values: all that a run depends on apart from the model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradpath import defaults
from gradpath.ablation import ABLATIONS, CORRUPTED
from gradpath.attribution.methods import find_method
from gradpath.errors import UsageError, unknown
from gradpath.evaluation import mib
from gradpath.selection import find_selection
from gradpath.sweep import Limits
from gradpath.tasks import TASKS

PAPER_METHODS = "eap,eap-ig,eap-gp"


@dataclass(frozen=True)
class MethodSpec:
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

    def with_steps(self, steps: int) -> MethodSpec:
        """The same method with another number of steps, if it has any."""
        if "steps" not in find_method(self.name).defaults:
            return self
        return MethodSpec(self.name, (*(pair for pair in self.given if pair[0] != "steps"), ("steps", steps)))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def parse_methods(text: str) -> tuple[MethodSpec, ...]:
    """Methods separated by commas, each with its options after plus signs; all checked by name and type."""
    methods = tuple(_parse(word.strip()) for word in text.split(",") if word.strip())
    if not methods:
        raise UsageError(f"--methods needs at least one method, such as {PAPER_METHODS}: got {text!r}.")
    for method in methods:
        assert method.options is not None  # raises for what is unknown
    return methods


def _parse(word: str) -> MethodSpec:
    name, *rest = word.split("+")
    given = []
    for option in rest:
        key, equals, value = option.partition("=")
        if not equals or not key:
            raise UsageError(f"a method's option is written +NAME=VALUE, as in eap-gp+steps=10: got {word!r}.")
        try:
            given.append((key, json.loads(value)))
        except ValueError:
            given.append((key, value))
    return MethodSpec(name, tuple(given))


# The paper's figures go from 96.9% to 99.9% in steps of 0.3%; MIB's benchmark keeps 0.1% to 50% of the edges.
GRIDS = {
    "paper": (0.999, 0.996, 0.993, 0.990, 0.987, 0.984, 0.981, 0.978, 0.975, 0.972, 0.969),
    "mib": tuple(round(1 - fraction, 6) for fraction in mib.FRACTIONS[:-1]),
}


@dataclass(frozen=True)
class Request:
    """Options of an experiment. ``None`` leaves the choice to the experiment."""

    tasks: tuple[str, ...] | None = None
    methods: tuple[MethodSpec, ...] = parse_methods(PAPER_METHODS)
    hows: tuple[str, ...] = ("top", "greedy")
    sparsities: tuple[float, ...] | None = None
    grid: str = "paper"
    steps: tuple[int, ...] = tuple(range(3, 21))
    examples: int = 100
    seed: int = 0
    batch_size: int = defaults.BATCH_SIZE
    memory: int | None = None
    ablation: str = CORRUPTED
    edge: str | None = None
    sample: int = 300
    data: Path | None = None

    @property
    def limits(self) -> Limits:
        return Limits(self.batch_size, self.memory)

    @property
    def measures_mib(self) -> bool:
        """Whether the circuits are those that MIB's areas are made of."""
        return self.grid == "mib" and self.sparsities is None

    def __post_init__(self) -> None:
        for name in (self.tasks or ()) if self.data is None else ():
            if name not in TASKS:
                raise unknown("task", name, TASKS)
        for how in self.hows:
            find_selection(how)
        if self.ablation not in ABLATIONS:
            raise unknown("ablation", self.ablation, ABLATIONS)
        if self.grid not in GRIDS:
            raise unknown("grid of sparsities", self.grid, GRIDS)
        for sparsity in self.sparsities or ():
            if not 0 <= sparsity < 1:
                raise UsageError(
                    "a sparsity is the share of edges left out, from 0 up to but not including 1: "
                    f"{sparsity} was asked for."
                )


def words(text: str) -> tuple[str, ...]:
    """The words of a list with commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def numbers(text: str, what: str) -> tuple[float, ...]:
    """``0.99,0.975`` as numbers."""
    try:
        return tuple(float(word) for word in words(text))
    except ValueError:
        raise UsageError(f"{what} is a list of numbers with commas, such as 0.99,0.975: got {text!r}.") from None


def whole_numbers(text: str, what: str) -> tuple[int, ...]:
    """``3,5,10`` or ``3-20`` as whole numbers above 0.

    >>> whole_numbers("3-5,10", "--steps")
    (3, 4, 5, 10)
    """
    found: list[int] = []
    try:
        for word in words(text):
            first, dash, last = word.partition("-")
            found += range(int(first), int(last) + 1) if dash else [int(first)]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise UsageError(f"{what} is a list of whole numbers above 0, such as 3-20 or 3,5,10: got {text!r}.")
    return tuple(dict.fromkeys(found))


def default_tasks(request: Request, otherwise: Sequence[str] = tuple(TASKS)) -> tuple[str, ...]:
    return tuple(otherwise) if request.tasks is None else request.tasks
