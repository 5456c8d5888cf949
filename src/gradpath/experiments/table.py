"""Rows as CSV for programs and as Markdown for people."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any


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
