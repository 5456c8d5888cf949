"""What was asked for, as plain values: all that a run depends on apart from the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gradpath import mib
from gradpath.ablation import ABLATIONS, CORRUPTED
from gradpath.errors import UsageError, unknown
from gradpath.experiments.methods import PAPER_METHODS, Method, parse_methods
from gradpath.measured import WAYS
from gradpath.selection import check_way
from gradpath.tasks import TASKS

# The paper's figures go from 96.9% to 99.9% in steps of 0.3%; MIB's benchmark keeps 0.1% to 50% of the edges.
GRIDS = {
    "paper": (0.999, 0.996, 0.993, 0.990, 0.987, 0.984, 0.981, 0.978, 0.975, 0.972, 0.969),
    "mib": tuple(round(1 - fraction, 6) for fraction in mib.FRACTIONS[:-1]),
}


@dataclass(frozen=True)
class Request:
    """Options of an experiment. ``None`` leaves the choice to the experiment."""

    tasks: tuple[str, ...] | None = None
    methods: tuple[Method, ...] = parse_methods(PAPER_METHODS)
    hows: tuple[str, ...] = ("top", "greedy")
    sparsities: tuple[float, ...] | None = None
    grid: str = "paper"
    steps: tuple[int, ...] = tuple(range(3, 21))
    examples: int = 100
    seed: int = 0
    batch_size: int = 20
    memory: int | None = None
    ablation: str = CORRUPTED
    edge: str | None = None
    sample: int = 300
    data: Path | None = None

    @property
    def measures_mib(self) -> bool:
        """Whether the circuits are those that MIB's areas are made of."""
        return self.grid == "mib" and self.sparsities is None

    def __post_init__(self) -> None:
        for name in (self.tasks or ()) if self.data is None else ():
            if name not in TASKS:
                raise unknown("task", name, TASKS)
        for how in self.hows:
            check_way(how, WAYS)
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
        raise UsageError(
            f"{what} is a list of numbers with commas, such as 0.99,0.975: got {text!r}."
        ) from None


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
