"""What users read when something goes wrong.

Every message says what was asked, what was got and what to do. The command line prints it as one
sentence and exits with ``exit_code``: 1 when the work failed, 2 when the call was wrong.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST = 900  # characters of a message; what a damaged file says of itself can be megabytes


class GradpathError(Exception):
    """Anything that gradpath refuses to do, in words for the user: one line that can be printed anywhere."""

    exit_code = 1
    # Whether all processes of a run know of it (``ranks``), so that the first says it for all.
    shared = False

    def __init__(self, message: str) -> None:
        line = "".join(x if x.isprintable() else " " if x.isspace() else ascii(x)[1:-1] for x in message)
        half = LONGEST // 2
        super().__init__(line if len(line) <= LONGEST else f"{line[:half]} ... {line[-half:]}")


class InputError(GradpathError):
    """A file, model or data set that cannot be used as it is."""


class UsageError(GradpathError):
    """A call that could never work: an unknown name, a number out of range."""

    exit_code = 2


def reason(problem: Exception) -> str:
    """What a library said, as part of a sentence: its first line."""
    first = str(problem).strip().partition("\n")[0].rstrip(".")
    return f"{type(problem).__name__}: {first}" if first else type(problem).__name__


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that is not registered, with the nearest one and all the others."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return UsageError(f"there is no {kind} {name!r}.{hint} Known: {', '.join(names)}.")
