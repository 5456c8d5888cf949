"""Errors for users.

A message is one sentence: what was requested, what was found, what to do. The command line prints it and exits with
``exit_code``: 1 for a failure, 2 for a wrong call. An option is written in backticks in a ``UsageError``: `edges` in
Python is --edges on the command line.
"""

from __future__ import annotations

import difflib
import operator
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

_MAX_LENGTH = 900  # characters of a message: a damaged file can put megabytes into one
_MAX_DETAILS = 20


class GradpathError(Exception):
    """The base class of all errors that gradpath raises; its message is one printable line.

    Args:
        message: What was requested, what was found, what to do.
        details: Cases of it, such as the rows of a file that cannot be read: one more line each.
    """

    exit_code = 1
    shared = False  # whether all processes of a distributed run raise it, so that only the first prints it

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        shown = [f"  {_one_line(line)}" for line in details[:_MAX_DETAILS]]
        more = [f"  ... and {len(details) - len(shown):,} more"] if len(details) > len(shown) else []
        super().__init__("\n".join([_one_line(message), *shown, *more]))


def printable(text: str) -> str:
    """The text with control characters as escapes: a name or a note from a file must not steer a terminal.

    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return "".join(x if x.isprintable() or x == "\n" else " " if x.isspace() else ascii(x)[1:-1] for x in text)


def _one_line(text: str) -> str:
    line, half = printable(text).replace("\n", " "), _MAX_LENGTH // 2
    return line if len(line) <= _MAX_LENGTH else f"{line[:half]} ... {line[-half:]}"


class InputError(GradpathError):
    """A file, model or data set that cannot be used."""


class UsageError(GradpathError):
    """A call that cannot work: an unknown name, a number out of range."""

    exit_code = 2

    def as_typed(self) -> str:
        """The message with options as they are typed in a shell.

        >>> UsageError("leave out `batch_size`.").as_typed()
        'leave out --batch-size.'
        """
        return re.sub(r"`(\w+)`", lambda name: f"--{name[1].replace('_', '-')}", str(self))


class GradpathWarning(UserWarning):
    """A problem that was dealt with, such as a damaged file that is made again."""


def warn(message: str) -> None:
    """Warn the user; the command line shows the message as one line, once."""
    warnings.warn(str(GradpathError(message)), GradpathWarning, stacklevel=3)


def reason(problem: BaseException) -> str:
    """The type and first line of a library's exception, to put into a sentence."""
    first = str(problem).strip().partition("\n")[0].rstrip(".")
    return f"{type(problem).__name__}: {first}" if first else type(problem).__name__


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for an unknown name, with the closest known one and a list of all."""
    names = sorted(known)
    return UsageError(f"there is no {kind} {name!r}.{did_you_mean(name, names)} Known: {', '.join(names)}.")


def check_choice(what: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a value that is not one of a few, and suggest the closest.

    >>> check_choice("split", "sane", ["same", "all"])
    Traceback (most recent call last):
    gradpath.errors.UsageError: split must be same or all: got 'sane'. Did you mean 'same'?
    """
    names = list(choices)
    if value not in names:
        *first, last = names
        known = f"{', '.join(first)} or {last}" if first else last
        raise UsageError(f"{what} must be {known}: got {value!r}.{did_you_mean(str(value), names)}")


def unknown_option(name: str, owners: Mapping[str, Iterable[str]]) -> UsageError:
    """The error for an unknown option; ``owners`` maps what could have it ("the method 'eap-ig'") to its options."""
    hint = did_you_mean(name, sorted({option for options in owners.values() for option in options}))
    lists = {owner: ", ".join(options) or "none" for owner, options in owners.items()}
    if len(lists) == 1:
        [(owner, options)] = lists.items()
        return UsageError(f"{owner} has no option {name!r}.{hint} Its options: {options}.")
    every = " ".join(f"Options of {owner}: {options}." for owner, options in lists.items())
    return UsageError(f"neither {' nor '.join(lists)} has an option {name!r}.{hint} {every}")


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """A question with the closest known name, with a space before it; nothing if none is close."""
    close = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def is_out_of_memory(problem: BaseException) -> bool:
    """Whether an exception says that memory was too small; PyTorch's by its name, so that it need not be imported."""
    if isinstance(problem, MemoryError) or type(problem).__name__ == "OutOfMemoryError":
        return True
    # The second is what the operating system says, for instance of a file that cannot be mapped.
    return any(words in str(problem) for words in ("can't allocate memory", "Cannot allocate memory"))


def check_type(what: str, value: Any, kind: type) -> None:
    """Refuse an argument of another type, for example because two arguments were swapped."""
    if not isinstance(value, kind):
        raise UsageError(
            f"{what} has to be a {kind.__name__}: got a {type(value).__name__}. Check the order of the arguments."
        )


def check_names(what: str, names: object) -> None:
    """Refuse a text where a list of names is expected: it would be read letter by letter."""
    if isinstance(names, str):
        raise UsageError(f"{what} must be a list of names: got {names!r}. Write [{names!r}].")


_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def check_option(owner: str, name: str, value: Any, hint: Any) -> None:
    """Refuse a value that the annotation of an option does not allow, if it is a simple one.

    >>> check_option("eap-ig", "steps", "many", int)
    Traceback (most recent call last):
    gradpath.errors.UsageError: the option steps of eap-ig must be a whole number: got 'many'.
    """
    if get_origin(hint) is Literal:
        check_choice(f"the option {name} of {owner}", value, get_args(hint))
        return
    fits = type(value) in ((int, float) if hint is float else (hint,))
    if expected := "" if fits else _KINDS.get(hint, ""):
        raise UsageError(f"the option {name} of {owner} must be {expected}: got {value!r}.")


def whole_number(what: str, value: Any, least: int = 1) -> int:
    """The value as an int, if it is a whole number of at least ``least``; NumPy's integers are fine.

    >>> whole_number("the seed", 20.0, least=0)
    Traceback (most recent call last):
    gradpath.errors.UsageError: the seed must be a whole number, 0 or above: got 20.0.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise UsageError(f"{what} must be a whole number, {least} or above: got {value!r}.")
    return number
