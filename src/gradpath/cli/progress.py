"""Progress on stderr: a bar for what is counted, a spinner for what is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import TimeRemainingColumn as LeftColumn

from gradpath import ranks


def console() -> Console:
    """stderr, which of several processes the first alone writes to."""
    return Console(stderr=True, quiet=ranks.rank() > 0)


def result(text: str) -> None:
    """What was asked for, on stdout: once, however many processes found it."""
    if ranks.rank() == 0:
        click.echo(text)


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar over ``total`` examples; the function it gives is called with each batch's number."""
    screen = console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        LeftColumn(),
    )
    with Progress(*columns, console=screen, transient=not screen.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.advance(task, done)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console(), transient=True) as progress:
        progress.add_task(what, total=None)
        yield


def note(text: str) -> None:
    """Something the user should know that is not the result."""
    console().print(text, highlight=False, soft_wrap=True)
