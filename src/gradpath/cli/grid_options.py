"""What the verbs that run grids share: their options, and the one bar with the time left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import click
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as LeftColumn

from gradpath.cli.options import batch_options
from gradpath.cli.progress import console

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_HOW = {"paper": "top,greedy", "mib": "top,signed"}


def grid_options(command: Command) -> Command:
    """Methods, selections, sparsities and examples."""
    for option in reversed(
        [
            click.option(
                "--methods",
                default="eap,eap-ig,eap-gp",
                show_default=True,
                metavar="A,B",
                help="Methods, with options after plus signs: eap-gp+stride=matched+steps=10.",
            ),
            click.option("--sparsities", metavar="S,S", help="Shares of edges left out.  [those of --grid]"),
            click.option(
                "--grid",
                type=click.Choice(["paper", "mib"]),
                default="paper",
                show_default=True,
                help="Sparsities of the paper (96.9 to 99.9%), or of the MIB benchmark with its CPR and CMD.",
            ),
            click.option(
                "--how",
                metavar="A,B",
                help="Ways to select edges.  [top,greedy; with --grid mib top,signed]",
            ),
            click.option(
                "--examples",
                type=click.IntRange(min=1),
                default=100,
                show_default=True,
                help="Pairs to attribute, and as many others to measure on.",
            ),
            click.option("--seed", type=int, default=0, show_default=True, help="Chooses the examples."),
            *batch_options,
        ]
    ):
        command = option(command)
    return command


class Bar:
    """One bar over all jobs of a grid; what it counts is passes over one example."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            LeftColumn(),
        )
        screen = console()
        # The speed is taken over many minutes, because jobs differ in how well their cost is foreseen.
        self._progress = Progress(
            *columns, console=screen, transient=not screen.is_terminal, speed_estimate_period=600
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Bar:
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


def check_out(out: Path | None) -> None:
    """Refuse before a model is loaded what could not be written to."""
    from gradpath.errors import UsageError

    if out is not None and out.exists() and not out.is_dir():
        raise UsageError(f"--out has to be a folder: {out} is a file.")
