"""What users read when something goes wrong.

Every message says what was asked, what was got and what to do. The command line prints it as one
sentence and exits with ``exit_code``: 1 when the work failed, 2 when the call was wrong.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GradpathError(Exception):
    """Anything that gradpath refuses to do, in words for the user."""

    exit_code = 1
    # Whether all processes of a run know of it (``ranks``), so that the first says it for all.
    shared = False


class InputError(GradpathError):
    """A file, model or data set that cannot be used as it is."""


class UsageError(GradpathError):
    """A call that could never work: an unknown name, a number out of range."""

    exit_code = 2


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that is not registered, with the nearest one and all the others."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return UsageError(f"there is no {kind} {name!r}.{hint} Known: {', '.join(names)}.")
