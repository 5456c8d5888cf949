"""What the user sees: results on stdout, progress and notes on stderr."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from gradpath.runtime import distributed
from gradpath.runtime.progress import Bar, Job

if TYPE_CHECKING:
    from gradpath.circuit import Circuit
    from gradpath.evaluation.result import Result

LOG_EVERY = 60  # seconds between two lines of a log


def console() -> Console:
    """stderr; of several processes only the first writes to it."""
    return Console(stderr=True, quiet=distributed.rank() > 0)


def print_result(result: str | Mapping[str, Any]) -> None:
    """Print the result on stdout, as text or as one JSON object; of several processes only the first does."""
    if distributed.rank() == 0:
        click.echo(result if isinstance(result, str) else json.dumps(result, indent=1))


class Screen:
    """Shows progress on stderr: the ``Reporter`` of the command line."""

    @contextmanager
    def counting(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """A bar over ``total`` examples, as a function to call with the number of examples of each finished batch."""
        with _bar(total, MofNCompleteColumn(), TimeElapsedColumn()) as bar:
            bar.describe(what)
            yield bar.advance

    @contextmanager
    def job(self, total: float) -> Iterator[Job]:
        """One bar over all phases of a job, in counted work."""
        with _bar(total, *_share_columns()) as bar:
            yield Job(bar)

    @contextmanager
    def waiting(self, what: str) -> Iterator[Callable[[str], None]]:
        """A spinner, as a function to call with the current step."""
        screen = console()
        if not screen.is_terminal:
            yield lambda step: None
            return
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=screen, transient=True) as progress:
            task = progress.add_task(what, total=None)
            yield lambda step: progress.update(task, description=f"{what}: {step}")

    def note(self, text: str) -> None:
        """A message that is not the result."""
        console().print(text, highlight=False, soft_wrap=True)


def _share_columns() -> tuple[ProgressColumn, ...]:
    return TaskProgressColumn(), TimeElapsedColumn(), TextColumn("left")


@contextmanager
def _bar(total: float, *columns: ProgressColumn, speed_over: float = 30) -> Iterator[Bar]:
    """A bar with these columns on a terminal, or lines in a file such as the log of a cluster job."""
    screen = console()
    if not screen.is_terminal:
        now = time.monotonic()
        yield _Log(screen, total, began=now, last=now)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), *columns, TimeRemainingColumn())
    with Progress(*columns, console=screen, speed_estimate_period=speed_over) as progress:
        yield _RichBar(progress, progress.add_task("", total=total))


@dataclass(frozen=True)
class _RichBar:
    progress: Progress
    task: TaskID

    def describe(self, what: str) -> None:
        self.progress.update(self.task, description=what)

    def advance(self, price: float) -> None:
        self.progress.advance(self.task, price)


@dataclass
class _Log:
    """Writes a line every ``LOG_EVERY`` seconds: the phase, the share that is done, and the time that is left."""

    screen: Console
    total: float
    began: float
    last: float  # when the last line was written
    what: str = ""
    done: float = 0

    def describe(self, what: str) -> None:
        self.what = what

    def advance(self, price: float) -> None:
        self.done += price
        now = time.monotonic()
        if now - self.last < LOG_EVERY or not 0 < self.done < self.total:
            return
        self.last = now
        spent = now - self.began
        left = spent * (self.total / self.done - 1)
        line = f"{self.what}: {self.done / self.total:.0%} after {duration(spent)}, about {duration(left)} left"
        self.screen.print(line, highlight=False, soft_wrap=True, markup=False)


def duration(seconds: float) -> str:
    """A time for people, in seconds, minutes or hours.

    >>> duration(0.2), duration(59), duration(90), duration(7200)
    ('1 s', '59 s', '2 min', '2.0 h')
    """
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} h"


class GridBar(ExitStack):
    """One bar over all jobs of a grid; it counts passes over one example."""

    bar: Bar

    def begin(self, total: float) -> None:
        # The speed is averaged over minutes, because the cost of some jobs is estimated better than others'.
        self.bar = self.enter_context(_bar(total, *_share_columns(), speed_over=600))

    def start(self, title: str) -> None:
        self.bar.describe(title)

    def advance(self, done: float) -> None:
        self.bar.advance(done)


def numbers_of(circuit: Circuit, result: Result) -> dict[str, Any]:
    """The numbers of a measured circuit, for JSON."""
    return {
        "edges_total": circuit.n_possible,
        "edges_asked": result.edges_asked,
        "edges_kept": result.edges_kept,
        "sparsity": 1 - result.edges_asked / circuit.n_possible,
        "clean": result.clean,
        "corrupted": result.corrupted,
        "circuit": result.circuit,
        "faithfulness": result.faithfulness,
        "faithfulness_interval": list(result.interval),
        "error": result.error,
        "error_interval": list(result.error_interval),
    }


def lines_of(s: dict[str, Any]) -> list[str]:
    """The same numbers for people, with a warning where they mean little."""
    low, high = s["faithfulness_interval"]
    error_low, error_high = s["error_interval"]
    none = "corrupted" if s["ablation"] == "corrupted" else f"all ablated ({s['ablation']})"
    lines = [
        f"  edges         {s['edges_kept']:,} after pruning, {s['edges_asked']:,} requested, "
        f"{s['edges_total']:,} in the model ({s['sparsity']:.2%} sparsity)",
        f"  metric        clean {s['clean']:.3f}, {none} {s['corrupted']:.3f}, circuit {s['circuit']:.3f}",
        f"  faithfulness  {s['faithfulness']:.1%}  (95% interval {low:.1%} to {high:.1%})",
        f"  error         {s['error']:.3f}  (95% interval {error_low:.3f} to {error_high:.3f})",
    ]
    if s["clean"] <= s["corrupted"]:
        lines.append(
            "  WARNING       the metric is not higher on the clean prompts than on the corrupted ones: the "
            "model does not do this task, and faithfulness means nothing"
        )
    return lines
