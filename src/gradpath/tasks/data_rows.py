"""Rows of the user's data, and their cells by type.

CSV and JSONL files, Hugging Face datasets (by name or as objects) and lists of dictionaries all become a ``Table``.
Rows are read on demand, and each records its place in the file. The second half of this file reads cells; a cell of the
wrong type is an error that names the row and the column.
"""

from __future__ import annotations

import ast
import csv
import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any

from gradpath.errors import InputError
from gradpath.runtime.files import readable

_MAX_LINE = 1_000_000  # characters of a line of JSONL
_CSV, _JSONL = (".csv", ".tsv", ".txt"), (".jsonl", ".ndjson")
_OTHER_FILES = (".json", ".parquet", ".gz", ".zip", ".xlsx")
SUFFIXES = (*_CSV, *_JSONL, *_OTHER_FILES)  # by which a name is that of a file, readable or not
_SPANS = 'an object such as {"subject": "the chef"}'


@dataclass(frozen=True)
class Row:
    """One row, and where it is: "row 3 (line 4 of pairs.csv)"; or why it cannot be read."""

    where: str
    values: Mapping[str, Any]
    problem: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)  # columns as the user wrote them, where that is otherwise

    def header(self, column: str) -> str:
        """A column as the user wrote it, for messages."""
        return self.headers.get(column, column)


@dataclass(frozen=True)
class Table:
    """A name, the columns, and an iterator over the rows."""

    name: str
    columns: tuple[str, ...]
    rows: Iterator[Row]
    headers: Mapping[str, str] = field(default_factory=dict)  # as those of a row


def open_table(data: Any) -> Table:
    """Open a file, a dataset by name, a dataset or a list of dictionaries.

    Args:
        data: One of these. A string that is not a file is the name of a dataset, ``owner/name`` or
            ``owner/name:split``.

    Returns:
        The table; no row of it is read yet, except the first for its columns.
    """
    if not isinstance(data, (str, Path)):
        return _objects(data, "data")
    if not is_file(data):
        return _hub(str(data))
    path = Path(data)
    if path.is_dir():
        raise InputError(f"data must be one file: {path} is a folder. Give a CSV or JSONL file in it.")
    if not path.is_file():
        raise InputError(f"there is no file {path}. Check the name and the folder it is in.")
    suffix = path.suffix.lower()
    if suffix in _OTHER_FILES:
        raise InputError(
            f"{path.name} is not read: data comes as CSV or JSONL, and this is {suffix}. "
            "Save it as CSV with a header, or as one JSON object a line."
        )
    if suffix in _JSONL:
        return _with_columns_of_first_row(readable(path.stem), _decode(path, _read_jsonl))
    rows = _decode(path, _read_csv)
    first = next(rows)
    return Table(readable(path.stem), tuple(first.values), rows, first.headers)


def is_file(data: Any) -> bool:
    """Whether the data is the path of a file, which may not exist: not a dataset, its name, or rows."""
    if not isinstance(data, (str, Path)):
        return False
    path = Path(data)
    return isinstance(data, Path) or path.exists() or path.suffix.lower() in SUFFIXES


def _decode(path: Path, parse: Callable[[IO[str], str], Iterator[Row]]) -> Iterator[Row]:
    """The rows of a UTF-8 file, with or without a byte-order mark."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from parse(file, path.name)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path.name} is not UTF-8 text: byte {error.object[error.start]:#04x} cannot be read. "
            "Save it again with the encoding UTF-8."
        ) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}. Check its permissions.") from error


def _read_csv(file: IO[str], name: str) -> Iterator[Row]:
    """The header as a first row without values, then the data."""
    reader = csv.reader(file, strict=True)
    columns: list[str] = []
    headers: dict[str, str] = {}
    count = 0
    try:
        for fields in reader:
            if not any(field.strip() for field in fields):
                continue
            if not columns:
                columns = [_column(field) for field in fields]
                headers = dict(zip(columns, (field.strip() for field in fields), strict=True))
                if problem := _repeated(columns, f"the header of {name}"):
                    raise InputError(problem)
                yield Row(name, dict.fromkeys(columns), headers=headers)
                continue
            count += 1
            where = f"row {count} (line {reader.line_num} of {name})"
            if len(fields) == len(columns):
                yield Row(where, dict(zip(columns, fields, strict=True)), headers=headers)
                continue
            problem = (
                f"{where} has {len(fields)} fields, and the header has {len(columns)}. "
                "Put prompts that contain commas between double quotes."
            )
            yield Row(where, {}, problem)
    except csv.Error as error:
        raise InputError(
            f"{name} cannot be read as CSV: {error}, at line {reader.line_num}. "
            "Look for a double quote that is not closed, or is not doubled inside a field."
        ) from error
    if not columns:
        raise InputError(f"{name} is empty. Its first line has to name the columns: clean, corrupted, ...")


def _column(name: str) -> str:
    """The name of a column in lower case: "Wrong answers" is "wrong_answers"."""
    lower = name.strip().lower().replace(" ", "_")
    return {"answer": "answers", "wrong_answer": "wrong_answers", "wrong": "wrong_answers"}.get(lower, lower)


def _repeated(columns: Sequence[str], where: str) -> str:
    """What is wrong if two columns have the same name; empty if all differ. Columns without a name are ignored."""
    twice = [column for column in columns if column and columns.count(column) > 1]
    return f"{where} names {twice[0]!r} twice. Rename or remove one of the two." if twice else ""


def _read_jsonl(file: IO[str], name: str) -> Iterator[Row]:
    count = 0
    for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE), ""), start=1):
        if not line.strip():
            continue
        count += 1
        where = f"row {count} (line {number} of {name})"
        if len(line) == _MAX_LINE:
            raise InputError(f"{where} is longer than {_MAX_LINE} characters. Put one object on a line.")
        try:
            yield _row(json.loads(line, object_pairs_hook=partial(_object, where)), where)
        except InputError as problem:
            yield Row(where, {}, str(problem))
        except (ValueError, RecursionError) as error:
            yield Row(where, {}, f"{where} is not JSON: {error}. Put one object on a line.")


def _object(where: str, members: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of two members with one name Python would keep the last."""
    if problem := _repeated([name for name, _ in members], where):
        raise InputError(problem)
    return dict(members)


def _objects(data: Any, name: str) -> Table:
    """Rows that are dictionaries; a ``datasets.Dataset`` is an iterable of those."""
    if isinstance(getattr(data, "column_names", None), dict):
        parts = ", ".join(data.column_names)
        raise InputError(f"this dataset has several parts: {parts}. Give one of them, such as data['train'].")
    if not isinstance(data, Iterable) or isinstance(data, Mapping):
        raise InputError(
            f"data must be a file, a dataset or rows as dictionaries: got {type(data).__name__}. "
            "A data frame gives such rows with .to_dict('records')."
        )
    rows = ((f"row {count} of {name}", values) for count, values in enumerate(data, start=1))
    return _with_columns_of_first_row(name, (_row(values, where) for where, values in rows))


def _hub(spec: str) -> Table:
    """A Hugging Face dataset by name, ``owner/name`` or ``owner/name:split``, as a stream."""
    name, _, part = spec.partition(":")
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise InputError(
            f"there is no file {spec}, and Hugging Face datasets can be read only with the package "
            "'datasets'. Check the file's name, or install the package: pip install datasets."
        ) from error
    try:
        stream = datasets.load_dataset(name, split=part or "train", streaming=True)
    except Exception as error:
        raise InputError(
            f"there is no file {spec}, and the dataset {name!r} (part {part or 'train'!r}) cannot be loaded: "
            f"{error}. Check the name; write another part as {name}:PART."
        ) from error
    return _objects(stream, name)


def _with_columns_of_first_row(name: str, rows: Iterator[Row]) -> Table:
    first = next(rows, None)
    if first is not None and first.problem:
        raise InputError(first.problem)
    if first is None:
        raise InputError(f"{name} has no rows. Each needs clean, corrupted, answers and wrong_answers.")
    return Table(name, tuple(first.values), chain([first], rows), first.headers)


def _row(values: Any, where: str) -> Row:
    if isinstance(values, Mapping):
        columns = [_column(str(name)) for name in values]
        headers = dict(zip(columns, map(str, values), strict=True))
        return Row(where, dict(zip(columns, values.values(), strict=True)), _repeated(columns, where), headers)
    problem = (
        f"{where} is a {type(values).__name__}, not an object with named values. "
        "A data frame gives such rows with .to_dict('records')."
    )
    return Row(where, {}, problem)


def text(row: Row, column: str) -> str:
    """The text in a cell."""
    value = _cell(row, column)
    if not isinstance(value, str):
        raise _wrong_cell(row, column, value, "text")
    return value


def number(row: Row, column: str) -> int:
    """The whole number in a cell, as a number or in digits."""
    return _integer(row, column, _cell(row, column))


def answers(row: Row, column: str) -> tuple[str | int, ...]:
    """The answers in a cell: a list, a list in Python's notation, or texts separated by |. Numbers are token ids."""
    items = _items(row, column)
    for item in items:
        if isinstance(item, bool) or not isinstance(item, (str, int)):
            raise _wrong_cell(row, column, item, "answers as text")
        if isinstance(item, str) and not item.strip():
            raise _empty_cell(row, column)
        check_unicode(row, column, item)
    return tuple(items)


def spans(row: Row, prompt: str) -> dict[str, tuple[int, int]] | None:
    """The named parts of a prompt in the cell ``spans``, if there is one, in characters.

    A part is given as its text, which must occur in the prompt once, or as [begin, end].
    """
    value = row.values.get("spans")
    if value is None or value == "":
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise _wrong_cell(row, "spans", value, _SPANS) from error
    if not isinstance(value, Mapping):
        raise _wrong_cell(row, "spans", value, _SPANS)
    return {str(name): _span(row, prompt, part) for name, part in value.items()}


def _span(row: Row, prompt: str, part: Any) -> tuple[int, int]:
    if isinstance(part, str) and part and prompt.count(part) == 1:
        begin = prompt.index(part)
        return begin, begin + len(part)
    if isinstance(part, (list, tuple)) and len(part) == 2 and all(type(x) is int for x in part):
        begin, end = part
        if 0 <= begin < end <= len(prompt):
            return begin, end
    raise _wrong_cell(row, "spans", part, "a text that its prompt has once, or [begin, end] within it,")


def _cell(row: Row, column: str) -> Any:
    if column not in row.values:
        raise InputError(f"{row.where} has no {column!r}. Every row needs the columns of the first one.")
    value = row.values[column]
    if value is None or (isinstance(value, str) and not value.strip()):
        raise _empty_cell(row, column)
    check_unicode(row, column, value)
    return value


def check_unicode(row: Row, column: str, value: Any) -> None:
    """Refuse half of a character (a lone surrogate), which JSON allows and tokenizers do not."""
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise _wrong_cell(row, column, value, "text without an incomplete Unicode character") from error


def _items(row: Row, column: str) -> list[Any]:
    value = _cell(row, column)
    if isinstance(value, str) and value.strip().startswith("["):
        try:
            value = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
            raise _wrong_cell(row, column, value, "a list such as ['gems', 'stones']") from error
    elif isinstance(value, str):
        value = value.split("|")
    elif isinstance(value, int):
        value = [value]
    if not isinstance(value, (list, tuple)):
        raise _wrong_cell(row, column, value, "one answer or a list of them")
    if not value:
        raise _empty_cell(row, column)
    return list(value)


def _integer(row: Row, column: str, value: Any) -> int:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise _wrong_cell(row, column, value, "a whole number") from error
    if not number.is_integer():
        raise _wrong_cell(row, column, value, "a whole number")
    return int(number)


def _empty_cell(row: Row, column: str) -> InputError:
    return InputError(f"{row.where} has nothing in {row.header(column)!r}. Fill it in, or remove the row.")


def _wrong_cell(row: Row, column: str, value: Any, expected: str) -> InputError:
    shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:80]}..."
    return InputError(
        f"{row.where} must have {expected} in {row.header(column)!r}: got {shown}. Correct it, or remove the row."
    )
