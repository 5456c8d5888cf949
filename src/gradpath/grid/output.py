"""Results of an experiment: tables for people and for programs, a record, and figures.

An experiment ``NAME`` writes into the folder ``OUT``::

    NAME.csv    one row per measurement, numbers in full
    NAME.md     the tables, with the paper's numbers where there are any
    NAME.json   the rows, and the record: all that is needed to run it again (versions, seed, command, times)
    NAME.png    the figure, and NAME.svg for print

CSV and Markdown are the same for every run of the same request, except for times that are results themselves.
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
from gradpath.runtime.files import write_atomically, write_together

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]
Column = tuple[str, Callable[[Row], object]]  # the heading, and a row's cell


def grouped(rows: Sequence[Row], *columns: str) -> dict[Any, list[Row]]:
    """The rows by their value in a column, or by their values in several, in the order of appearance.

    >>> grouped([{"task": "ioi", "n": 1}, {"task": "sva", "n": 2}, {"task": "ioi", "n": 3}], "task")["ioi"]
    [{'task': 'ioi', 'n': 1}, {'task': 'ioi', 'n': 3}]
    """
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        values = tuple(row[column] for column in columns)
        groups.setdefault(values if len(columns) > 1 else values[0], []).append(row)
    return groups


def mean_of(rows: Sequence[Row], column: str) -> float:
    """The mean of a column."""
    return sum(float(row[column]) for row in rows) / len(rows)


def spread(rows: Sequence[Row], *columns: str) -> Row:
    """The mean, smallest and largest value of each column: ``error``, ``error_low``, ``error_high``."""
    row: Row = {}
    for name in columns:
        values = [float(one[name]) for one in rows]
        row |= {name: mean_of(rows, name), f"{name}_low": min(values), f"{name}_high": max(values)}
    return row


def table(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """A Markdown table with a line for each row."""
    return markdown([heading for heading, _ in columns], [[cell(row) for _, cell in columns] for row in rows])


def markdown(headings: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    """A Markdown table; the first column is text, the others are numbers.

    >>> print(markdown(["task", "NFS"], [["ioi", "80.1"]]))
    | task | NFS |
    |---|---:|
    | ioi | 80.1 |
    """
    body = ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in [headings, *lines]]
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


def signed(share: float | None) -> str:
    """A difference in percentage points."""
    return "" if share is None else f"{100 * share:+.1f}"


def with_interval(value: float, low: float, high: float, form: str = ".3f", ends: str = ".2f") -> str:
    """``0.801 [0.74, 0.86]``."""
    return f"{value:{form}} [{low:{ends}}, {high:{ends}}]"


def interval_column(heading: str, name: str, ends: str = ".2f") -> Column:
    """A column of values with their intervals."""
    return heading, lambda row: with_interval(row[name], row[f"{name}_low"], row[f"{name}_high"], ends=ends)


def nfs(row: Row) -> str:
    """A row's faithfulness in percent with its interval, ``80.1 [74, 86]``."""
    low, high = (percent(row[f"faithfulness_{end}"], 0) for end in ("low", "high"))
    return f"{percent(row['faithfulness'])} [{low}, {high}]"


@dataclass(frozen=True)
class Outcome:
    """The result of an experiment.

    Args:
        name: The experiment's name, which its files have.
        title: The heading of its page.
        rows: The table for programs.
        text: The tables for people, in Markdown.
        figures: Functions that draw, by the stems of their files.
        notes: Paragraphs that explain the tables.
        facts: Further numbers for the JSON record.
        files: A function that writes further files into a folder and returns their paths.
    """

    name: str
    title: str
    rows: list[Row]
    text: str
    figures: Mapping[str, Callable[[], Figure]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    files: Callable[[Path], list[Path]] = lambda folder: []

    @property
    def page(self) -> str:
        return "\n\n".join(part for part in (f"# {self.title}", self.text, *self.notes) if part) + "\n"


def write(outcome: Outcome, folder: Path, record: Mapping[str, Any]) -> list[Path]:
    """Write all files of an outcome, all or none, and return their paths."""
    with write_together(folder) as draft:
        csv_file, page, json_file = (draft / f"{outcome.name}.{suffix}" for suffix in ("csv", "md", "json"))
        write_atomically(csv_file, _csv_text(outcome.rows))
        others = [file for stem, figure in outcome.figures.items() for file in save(figure(), draft / stem)]
        others += outcome.files(draft)
        images = "".join(f"\n![{file.stem}]({file.name})\n" for file in others if file.suffix == ".png")
        write_atomically(page, outcome.page + images)
        content = {"experiment": outcome.name, "title": outcome.title, **record}
        content |= {"notes": list(outcome.notes), **outcome.facts, "rows": outcome.rows}
        write_atomically(json_file, json.dumps(content, indent=1) + "\n")
        files = [csv_file, page, json_file, *others]
    return [folder / file.name for file in files]


def _csv_text(rows: Sequence[Row]) -> str:
    """All rows under the columns of all of them; a missing value is an empty cell."""
    out = io.StringIO()
    writer = csv.DictWriter(out, dict.fromkeys(name for row in rows for name in row), lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
