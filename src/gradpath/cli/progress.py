"""What the user sees: results on stdout, progress and notes on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
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
from gradpath.runtime.progress import Job

if TYPE_CHECKING:
    from gradpath.evaluation.result import Result
    from gradpath.graph import Graph


def console() -> Console:
    """stderr; of several processes only the first writes to it."""
    return Console(stderr=True, quiet=distributed.rank() > 0)


def print_result(text: str) -> None:
    """Print the result on stdout, once, however many processes have it."""
    if distributed.rank() == 0:
        click.echo(text)


class Screen:
    """Shows progress on stderr: the ``Reporter`` of the command line."""

    @contextmanager
    def counting(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """A bar over ``total`` examples; call what it gives with the number of each finished batch."""
        screen = console()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=screen, transient=not screen.is_terminal) as progress:
            task = progress.add_task(what, total=total)
            yield lambda done: progress.advance(task, done)

    @contextmanager
    def job(self, total: float) -> Iterator[Job]:
        """One bar over all phases of a job, in counted work."""
        screen = console()
        with Progress(*_job_columns(), console=screen, transient=not screen.is_terminal) as progress:
            yield Job(_RichBar(progress, progress.add_task("", total=total)))

    @contextmanager
    def waiting(self, what: str) -> Iterator[Callable[[str], None]]:
        """A spinner; call what it gives to say what is done now."""
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=console(), transient=True) as progress:
            task = progress.add_task(what, total=None)
            yield lambda now: progress.update(task, description=f"{what}: {now}")

    def note(self, text: str) -> None:
        """Something that the user should know and that is not the result."""
        console().print(text, highlight=False, soft_wrap=True)


def _job_columns() -> tuple[ProgressColumn, ...]:
    return (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )


@dataclass(frozen=True)
class _RichBar:
    """A task of a progress display, as the bar of a job."""

    progress: Progress
    task: TaskID

    def describe(self, what: str) -> None:
        self.progress.update(self.task, description=what)

    def advance(self, price: float) -> None:
        self.progress.advance(self.task, price)


class GridBar:
    """One bar over all jobs of a grid; it counts passes over one example."""

    def __init__(self) -> None:
        screen = console()
        # The speed is averaged over minutes, because the cost of some jobs is estimated better than others'.
        self._progress = Progress(
            *_job_columns(), console=screen, transient=not screen.is_terminal, speed_estimate_period=600
        )
        self._task: TaskID | None = None

    def __enter__(self) -> GridBar:
        self._progress.start()
        return self

    def __exit__(self, kind: type | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()

    def begin(self, total: float) -> None:
        self._task = self._progress.add_task("", total=total)

    def start(self, title: str) -> None:
        assert self._task is not None
        self._progress.update(self._task, description=title)

    def advance(self, done: float) -> None:
        assert self._task is not None
        self._progress.advance(self._task, done)


def numbers_of(graph: Graph, result: Result, n_spans: int = 1) -> dict[str, Any]:
    """The numbers of a measured circuit, for JSON.

    ``n_spans`` is the number of spans of a prompt at which each edge could be selected.
    """
    n_edges = graph.n_edges * n_spans
    return {
        "edges_total": n_edges,
        "edges_asked": result.edges_asked,
        "edges_kept": result.edges_kept,
        "sparsity": 1 - result.edges_asked / n_edges,
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
