"""Rows as CSV for programs and as Markdown for people.

What an experiment leaves behind: a CSV, a Markdown page, a JSON record, and its figures.

Of one experiment ``NAME`` in the folder ``OUT``::

    NAME.csv    one row per cell, numbers in full
    NAME.md     the same for people, with the paper's figures beside ours where there are any
    NAME.json   the rows and all that is needed to run it again (versions, seed, commit, command, times)
    NAME.png    the figure, and NAME.svg for print

CSV and Markdown hold nothing that changes from one run to the next but the times that an experiment measured
itself; when and how it was run stands in the JSON alone.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradpath.report.style import save
from gradpath.runtime.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """All rows under the columns of all of them, numbers in full, nothing where there is no value."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers.

    >>> print(markdown(["task", "NFS"], [["ioi", "80.1"]]))
    | task | NFS |
    |---|---:|
    | ioi | 80.1 |
    """
    lines = [headings, *rows]
    body = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    body.insert(1, "|---|" + "---:|" * (len(headings) - 1))
    return "\n".join(body)


def percent(share: float | None, digits: int = 1) -> str:
    """A share in percent, without the sign of a zero.

    >>> percent(-0.00001)
    '0.0'
    """
    if share is None:
        return ""
    text = f"{100 * share:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def with_interval(share: float, interval: Sequence[float]) -> str:
    """``80.1 [74, 86]``, in percent."""
    low, high = interval
    return f"{percent(share)} [{percent(low, 0)}, {percent(high, 0)}]"


def signed(share: float | None) -> str:
    """A difference in percentage points."""
    return "" if share is None else f"{100 * share:+.1f}"


@dataclass(frozen=True)
class Outcome:
    """A finished experiment: its rows, its text, and how to draw its figures.

    ``figures`` maps the stem of a file to the function that draws it; ``files`` writes further ones and
    returns their names.
    """

    name: str
    title: str
    rows: list[dict[str, Any]]
    text: str
    figures: Mapping[str, Callable[[], Figure]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)  # further numbers, for the JSON alone
    files: Callable[[Path], list[Path]] = lambda folder: []

    @property
    def page(self) -> str:
        parts = [f"# {self.title}", self.text, *self.notes]
        return "\n\n".join(part for part in parts if part) + "\n"


def write(outcome: Outcome, folder: Path, record: Mapping[str, Any]) -> list[Path]:
    """Write everything, each file atomically; the paths in the order of the list above."""
    table, page, about = (folder / f"{outcome.name}.{suffix}" for suffix in ("csv", "md", "json"))
    write_atomically(table, csv_text(outcome.rows))
    drawn = [file for stem, draw in outcome.figures.items() for file in save(draw(), folder / stem)]
    drawn += outcome.files(folder)
    images = [file for file in drawn if file.suffix == ".png"]
    shown = "".join(f"\n![{file.stem}]({file.name})\n" for file in images)
    write_atomically(page, outcome.page + shown)
    content = {"experiment": outcome.name, "title": outcome.title, **record}
    content |= {"notes": list(outcome.notes), **outcome.facts, "rows": outcome.rows}
    write_atomically(about, json.dumps(content, indent=1) + "\n")
    return [table, page, about, *drawn]
