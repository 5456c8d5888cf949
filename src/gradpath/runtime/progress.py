"""Progress through a whole job, in counted work.

Code that runs a layer counts it (``count``): one layer over one position of one example is one unit. Each phase of a
``Job`` has an expected number of units. The bar moves while they are counted, so it also moves within a batch, and its
estimate of the remaining time starts with the first layers. Backward passes are not counted separately: the price of a
phase's unit includes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

_listener: ContextVar[Callable[[float], None] | None] = ContextVar("listener", default=None)
ALMOST = 0.99  # the largest share of a phase that is shown before it ends: the number of units is an estimate


def count(units: float) -> None:
    """Count work that was done: layers times positions times examples."""
    listener = _listener.get()
    if listener is not None:
        listener(units)


@contextmanager
def uncounted() -> Iterator[None]:
    """Count nothing within the block: the caller counts its work by another measure."""
    token = _listener.set(None)
    try:
        yield
    finally:
        _listener.reset(token)


class Bar(Protocol):
    """A progress bar."""

    def describe(self, what: str) -> None:
        """Show what is being done."""

    def advance(self, price: float) -> None:
        """Move by a part of the total."""


@dataclass(frozen=True)
class Phase:
    """A part of a job.

    Args:
        what: What is done, in a few words.
        units: The expected number of units.
        price: What one unit costs, in forward passes.
    """

    what: str
    units: float
    price: float = 1.0

    @property
    def total(self) -> float:
        return self.units * self.price


@dataclass(frozen=True)
class Job:
    """Work in phases, shown on one bar."""

    bar: Bar

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Show the units counted within the block as progress of this phase, and the whole phase at the end."""
        shown = 0.0

        def listen(units: float) -> None:
            nonlocal shown
            step = min(units * phase.price, ALMOST * phase.total - shown)
            if step > 0:
                shown += step
                self.bar.advance(step)

        self.bar.describe(phase.what)
        token = _listener.set(listen)
        try:
            yield
        finally:
            _listener.reset(token)
        self.bar.advance(phase.total - shown)


class Hidden:
    """A bar that shows nothing."""

    def describe(self, what: str) -> None: ...
    def advance(self, price: float) -> None: ...


@dataclass(frozen=True)
class NotebookBar:
    """A bar of tqdm: a widget in a notebook, a line elsewhere."""

    bar: Any

    def describe(self, what: str) -> None:
        self.bar.set_description(what)

    def advance(self, price: float) -> None:
        self.bar.update(price)


@contextmanager
def job(total: float, *, shown: bool) -> Iterator[Job]:
    """A job with a bar for notebooks and scripts, or with none."""
    if not shown:
        yield Job(Hidden())
        return
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    with tqdm(total=total, bar_format="{desc}{percentage:.0f}%|{bar}| {elapsed}<{remaining}") as bar:
        yield Job(NotebookBar(bar))
