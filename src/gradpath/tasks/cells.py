"""One cell of a user's row as what it has to be, or an error that names the row and the column."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

from gradpath.errors import InputError
from gradpath.tasks.rows import Row

_SEPARATOR = "|"  # between several answers in one cell
_SPANS = 'an object such as {"subject": "the chef"}'


def text(row: Row, column: str) -> str:
    """A cell that must hold some text."""
    value = _cell(row, column)
    if not isinstance(value, str):
        raise _wrong(row, column, value, "text")
    return value


def number(row: Row, column: str) -> int:
    """A cell that must hold a whole number, as itself or in digits."""
    return _whole(row, column, _cell(row, column))


def numbers(row: Row, column: str) -> tuple[int, ...]:
    """A cell that must hold whole numbers: a list, a list in Python's notation, or one number."""
    return tuple(_whole(row, column, item) for item in _items(row, column))


def texts(row: Row, column: str) -> tuple[str, ...]:
    """A cell that must hold texts: a list, a list in Python's notation, or texts with | between."""
    return tuple(str(item) for item in answers(row, column))


def answers(row: Row, column: str) -> tuple[str | int, ...]:
    """A cell that must hold answers: texts, or token ids where a number is written as one."""
    items = _items(row, column)
    for item in items:
        if isinstance(item, bool) or not isinstance(item, (str, int)):
            raise _wrong(row, column, item, "answers as text")
        if isinstance(item, str) and not item.strip():
            raise _empty(row, column)
        _check_unicode(row, column, item)
    return tuple(items)


def spans(row: Row, prompt: str) -> dict[str, tuple[int, int]] | None:
    """The parts of a prompt that the cell ``spans`` names, if there is one, in characters.

    A part is given as its text, which must stand in the prompt once, or as where it begins and ends.
    """
    value = row.values.get("spans")
    if value is None or value == "":
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise _wrong(row, "spans", value, _SPANS) from error
    if not isinstance(value, Mapping):
        raise _wrong(row, "spans", value, _SPANS)
    return {str(name): _span(row, prompt, part) for name, part in value.items()}


def _span(row: Row, prompt: str, part: Any) -> tuple[int, int]:
    if isinstance(part, str) and part and prompt.count(part) == 1:
        begin = prompt.index(part)
        return begin, begin + len(part)
    if isinstance(part, (list, tuple)) and len(part) == 2 and all(type(x) is int for x in part):
        begin, end = part
        if 0 <= begin < end <= len(prompt):
            return begin, end
    raise _wrong(row, "spans", part, "a text that its prompt has once, or [begin, end] within it,")


def _cell(row: Row, column: str) -> Any:
    if column not in row.values:
        raise InputError(f"{row.where} has no {column!r}. Every row needs the columns of the first one.")
    value = row.values[column]
    if value is None or (isinstance(value, str) and not value.strip()):
        raise _empty(row, column)
    _check_unicode(row, column, value)
    return value


def _check_unicode(row: Row, column: str, value: Any) -> None:
    """JSON can hold half of a character (a lone surrogate), and no tokenizer takes it."""
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise _wrong(row, column, value, "whole characters") from error


def _items(row: Row, column: str) -> list[Any]:
    value = _cell(row, column)
    if isinstance(value, str) and value.strip().startswith("["):
        try:
            value = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
            raise _wrong(row, column, value, "a list such as ['gems', 'stones']") from error
    elif isinstance(value, str):
        value = value.split(_SEPARATOR)
    elif isinstance(value, int):
        value = [value]
    if not isinstance(value, (list, tuple)):
        raise _wrong(row, column, value, "one answer or a list of them")
    if not value:
        raise _empty(row, column)
    return list(value)


def _whole(row: Row, column: str, value: Any) -> int:
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise _wrong(row, column, value, "a whole number") from error
    if not found.is_integer():
        raise _wrong(row, column, value, "a whole number")
    return int(found)


def _empty(row: Row, column: str) -> InputError:
    return InputError(f"{row.where} has nothing in {column!r}. Fill it in, or remove the row.")


def _wrong(row: Row, column: str, value: Any, wanted: str) -> InputError:
    shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:80]}..."
    return InputError(
        f"{row.where} must have {wanted} in {column!r}: got {shown}. Correct it, or remove the row."
    )
