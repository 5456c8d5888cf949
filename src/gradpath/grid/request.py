"""The request of an experiment: all options that a result depends on, as plain values.

A method with its options is one word of the command line (``MethodSpec``): ``eap-gp+move=differing+steps=10``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradpath import defaults
from gradpath.ablation import ABLATIONS
from gradpath.attribution.methods import find_method
from gradpath.errors import UsageError, check_choice
from gradpath.evaluation import mib
from gradpath.limits import Limits
from gradpath.registry import option_value
from gradpath.selection import find_selection
from gradpath.selection.ranking import check_sparsity
from gradpath.tasks import find_metric
from gradpath.tasks.builtin import PAPER_TASKS
from gradpath.tasks.load import check_task

CUSTOM = "custom"  # the task of the user's own data, if it has no other name
# The paper's figures go from 96.9% to 99.9% in steps of 0.3%; the MIB benchmark keeps 0.1% to 50% of the edges.
GRIDS = {
    defaults.GRID: (0.999, 0.996, 0.993, 0.990, 0.987, 0.984, 0.981, 0.978, 0.975, 0.972, 0.969),
    defaults.MIB_GRID: tuple(round(1 - fraction, 6) for fraction in mib.FRACTIONS[:-1]),
}


def words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def numbers(text: str, option: str) -> tuple[float, ...]:
    """``0.99,0.975`` as numbers; ``option`` is named in the error."""
    try:
        return tuple(float(word) for word in words(text))
    except ValueError:
        raise UsageError(f"{option} is a list of numbers with commas, such as 0.99,0.975: got {text!r}.") from None


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """``3,5,10`` or ``3-20`` as whole numbers above 0; ``option`` is named in the error.

    >>> whole_numbers("3-5,10", "--steps")
    (3, 4, 5, 10)
    """
    try:
        ends = [word.partition("-") for word in words(text)]
        values = [n for first, dash, last in ends for n in range(int(first), int(last if dash else first) + 1)]
    except ValueError:
        values = []
    if not values or min(values) < 1:
        raise UsageError(f"{option} is a list of whole numbers above 0, such as 3-20 or 3,5,10: got {text!r}.")
    return tuple(dict.fromkeys(values))


@dataclass(frozen=True)
class MethodSpec:
    """A method by name, and the options that differ from its defaults.

    >>> parse_methods("eap, eap-gp+stride=unit")[1].label
    'eap-gp+stride=unit'
    """

    name: str
    changes: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        texts = [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in self.changes]
        return "+".join([self.name, *texts])

    @property
    def options(self) -> dict[str, Any]:
        """All options of the method, checked."""
        return find_method(self.name).options(dict(self.changes))

    @property
    def steps(self) -> int:
        return int(self.options.get("steps", 1))

    def with_steps(self, steps: int) -> MethodSpec:
        """The same method with another number of steps, if it has any."""
        if "steps" not in find_method(self.name).defaults:
            return self
        return MethodSpec(self.name, (*(pair for pair in self.changes if pair[0] != "steps"), ("steps", steps)))


def parse_methods(text: str) -> tuple[MethodSpec, ...]:
    """Methods separated by commas, each with its options after plus signs; names and types are checked."""
    methods = []
    for word in words(text):
        name, *options = word.split("+")
        changes = []
        for option in options:
            key, equals, value = option.partition("=")
            if not equals or not key:
                raise UsageError(f"a method's option is written +NAME=VALUE, as in eap-gp+steps=10: got {word!r}.")
            changes.append((key, option_value(value)))
        methods.append(MethodSpec(name, tuple(changes)))
        _ = methods[-1].options  # raises if the method or one of its options is unknown
    if not methods:
        raise UsageError(f"--methods needs at least one method, such as {defaults.PAPER_METHODS}: got {text!r}.")
    return tuple(methods)


@dataclass(frozen=True)
class Request:
    """The options of an experiment; ``None`` leaves the choice to the experiment.

    The record of a result has these fields under these names, and the batch size for the limits.
    """

    tasks: tuple[str, ...] | None = None
    methods: tuple[MethodSpec, ...] = parse_methods(defaults.PAPER_METHODS)
    hows: tuple[str, ...] = words(defaults.PAPER_SELECTIONS)
    sparsities: tuple[float, ...] | None = None
    grid: str = defaults.GRID
    steps: tuple[int, ...] = whole_numbers(defaults.PAPER_STEPS, "--steps")
    examples: int | None = defaults.EXAMPLES  # None: all of the user's own data
    seed: int = defaults.SEED
    limits: Limits = Limits()
    ablation: str = defaults.ABLATION
    edge: str | None = None
    sample: int = defaults.SAMPLE
    data: Path | None = None
    metric: str | None = None

    @property
    def task_names(self) -> tuple[str, ...]:
        return PAPER_TASKS if self.tasks is None else self.tasks

    @property
    def measures_mib(self) -> bool:
        """Whether the circuits have the sizes that MIB's areas are computed from."""
        return self.grid == defaults.MIB_GRID and self.sparsities is None

    def __post_init__(self) -> None:
        for name in self.tasks or ():
            check_task(None if name == CUSTOM and self.data is not None else name, self.data)
        if self.metric is not None:
            find_metric(self.metric)
        for how in self.hows:
            find_selection(how)
        ABLATIONS.find(self.ablation)
        check_choice("grid", self.grid, GRIDS)
        for sparsity in self.sparsities or ():
            check_sparsity(sparsity)
