"""What the user is told while ``find`` runs: how far it is, and what was taken of the data."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from gradpath.errors import warn
from gradpath.runtime.progress import Job, job
from gradpath.tasks.load import WARNING
from gradpath.tasks.task import Task


@runtime_checkable
class Reporter(Protocol):
    """Shows how the work goes on."""

    def job(self, total: float) -> AbstractContextManager[Job]:
        """A bar over work in phases, which together cost ``total``."""

    def note(self, text: str) -> None:
        """Something that the user should know."""


@dataclass(frozen=True)
class Plain:
    """A reporter for Python: shows a bar if that was asked for, and of the notes only warnings."""

    shown: bool = False

    def job(self, total: float) -> AbstractContextManager[Job]:
        return job(total, shown=self.shown)

    def note(self, text: str) -> None:
        if text.startswith(WARNING):
            warn(text.removeprefix(WARNING))


def notices(attributed: Task, measured: Task) -> list[str]:
    """What the user should know about the pairs: how many are used for what, notes, and which were dropped and why."""
    tasks = [attributed] if measured is attributed else [attributed, measured]
    lines = [] if "rows_read" not in attributed.about else [_taken(attributed, measured)]
    lines += dict.fromkeys(str(note) for task in tasks for note in task.about.get("notes", []))
    rows = sum(sum(drop["count"] for drop in task.about.get("dropped", {}).values()) for task in tasks)
    listed = [row for task in tasks for drop in task.about.get("dropped", {}).values() for row in drop.get("rows", ())]
    if listed:
        lines.append(f"{rows:,} {'row is' if rows == 1 else 'rows are'} left out:")
        lines += [f"  {line}" for line in listed]
        lines += [f"  ... and {rows - len(listed):,} more"] if rows > len(listed) else []
        return lines
    return lines + [
        f"{drop['count']:,} {'pair was' if drop['count'] == 1 else 'pairs were'} dropped because {reason} "
        f"(first: {drop['first']})"
        for reason, drop in attributed.about.get("dropped", {}).items()
    ]


def _taken(attributed: Task, measured: Task) -> str:
    """What was taken of the user's own data."""
    about, held_out = attributed.about, measured is not attributed and attributed.about.get("held_out", True)
    head = f"{about['source']}: {about['rows_read']:,} {'row' if about['rows_read'] == 1 else 'rows'}, "
    tail = f"; metric {about['metric']}"
    if not held_out:
        n = f"{len(attributed):,} {'pair' if len(attributed) == 1 else 'pairs'}"
        return f"{head}{n} to attribute, and the same to measure{tail}"
    return f"{head}{len(attributed):,} pairs to attribute and {len(measured):,} others, held out, to measure{tail}"
