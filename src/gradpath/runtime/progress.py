"""Progress bars of tqdm on stderr: one for each phase, counted in batches.

Where stderr is not a terminal, such as the log of a cluster job, a phase writes one line every half minute instead.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from gradpath.errors import printable
from gradpath.runtime import distributed

LOG_EVERY = 30  # seconds between two lines of a log
_shown: ContextVar[bool] = ContextVar("shown", default=False)


@contextmanager
def bars(shown: bool = True) -> Iterator[None]:
    """Show the bars of all phases within the block; if not ``shown``, leave it as the caller has set it."""
    token = _shown.set(shown or _shown.get())
    try:
        yield
    finally:
        _shown.reset(token)


def progress_bar(what: str, total: int | None = None, *, unit: str = "batch") -> Any:
    """A bar of tqdm, to be used as a context manager: call its ``update`` after every batch, or other ``unit``.

    It shows nothing without ``what``, a few words on what is done; unless ``bars`` has switched bars on; and on other
    ranks than the first.
    """
    from tqdm.asyncio import tqdm_asyncio  # type: ignore[import-untyped]
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    options: dict[str, Any] = {"desc": what, "total": total, "unit": unit, "leave": True}
    if not what or not _shown.get() or distributed.rank() > 0:
        options["disable"] = True
    elif tqdm is not tqdm_asyncio:  # a notebook
        pass
    elif _is_terminal():
        options |= {"leave": None, "dynamic_ncols": True}  # a bar below another one disappears in the end
    else:
        left = "{n_fmt}" if total is None else "{n_fmt} of {total_fmt}, about {remaining} left"
        options |= {"bar_format": "{desc}: " + left + ", {elapsed} spent", "leave": False, "file": _Lines()}
        options |= {"mininterval": LOG_EVERY, "miniters": 1, "delay": LOG_EVERY}
    return tqdm(**options)


def describe(bar: Any, what: str) -> None:
    """Say what a bar counts now, at once on a terminal and with the next line of a log."""
    bar.set_description_str(what, refresh=_is_terminal())


def waiting(what: str) -> Any:
    """A line for something that cannot be counted, such as reading a file; it disappears in the end."""
    from tqdm.auto import tqdm

    hidden = not _shown.get() or distributed.rank() > 0 or not _is_terminal()
    return tqdm(desc=printable(what), bar_format="{desc} ...", leave=False, disable=hidden)


def announce(text: str) -> None:
    """Write a line to stderr where progress is shown: what begins now, and how long it takes."""
    if _shown.get() and distributed.rank() == 0:
        write_line(text)


def write_line(text: str) -> None:
    """Write a line to stderr, above the bars."""
    from tqdm.auto import tqdm

    tqdm.write(text, file=sys.stderr)


def _is_terminal() -> bool:
    return sys.stderr.isatty()


class _Lines(io.StringIO):
    """Writes each state of a bar as a line to stderr, without the moves of a bar below another one."""

    def write(self, text: str) -> int:
        if line := text.replace("\x1b[A", "").strip():
            sys.stderr.write(line + "\n")
        return len(text)
