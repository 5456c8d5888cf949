"""Users' own pairs: the rows of a CSV or JSONL file, or dictionaries, with the columns of ``COLUMNS``.

Other columns are ignored. Rows are read on demand, each with its place in the file. At most ``_MAX_ROWS`` are read,
which bounds time and memory.
"""

from __future__ import annotations

import ast
import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

from gradpath.errors import InputError
from gradpath.runtime.files import readable
from gradpath.tasks.pairs import Answers, Pair

COLUMNS = ("clean", "corrupted", "answers", "wrong_answers")
_OTHER_NAMES = {"answer": "answers", "wrong_answer": "wrong_answers", "wrong": "wrong_answers"}
_CSV, _JSONL = (".csv", ".txt"), (".jsonl", ".ndjson")
SUFFIXES = (*_CSV, *_JSONL, ".json", ".tsv", ".parquet", ".gz", ".zip", ".xlsx")  # of a file, readable or not
_MAX_ROWS = 100_000
_SPANS = 'an object such as {"subject": "the chef"}, with texts that the prompt has once, or [begin, end],'


class Row(NamedTuple):
    """Where a row is, "row 3 (line 4 of pairs.csv)", and its cells by column; or why it cannot be read."""

    where: str
    cells: Mapping[str, Any]
    problem: str = ""


class Table(NamedTuple):
    """The pairs of a file or of rows, and whether there are more than were read."""

    name: str
    pairs: list[Pair]
    goes_on: bool


def read_data(data: Any) -> Table:
    """Read a pair from each row of a CSV or JSONL file, or of an iterable of dictionaries.

    All rows that cannot be read are reported at once.
    """
    name, rows = (readable(Path(data).stem), _file(Path(data))) if is_file(data) else ("data", _objects(data))
    pairs, problems = [], []
    for row in islice(rows, _MAX_ROWS):
        try:
            pairs.append(_pair(row))
        except InputError as problem:
            problems.append(str(problem))
    if len(problems) == 1:
        raise InputError(problems[0])
    if problems:
        raise InputError(f"{len(problems):,} of the {len(pairs) + len(problems):,} rows cannot be read:", problems)
    if not pairs:
        raise InputError(f"{name} has no rows. Add one for each pair, with {', '.join(COLUMNS)}.")
    return Table(name, pairs, next(rows, None) is not None)


def is_file(data: Any) -> bool:
    """Whether the data is given as the path of a file, which may not exist."""
    return isinstance(data, (str, Path))


def _file(path: Path) -> Iterator[Row]:
    """The rows of a UTF-8 file, with or without a byte-order mark."""
    suffix, read = path.suffix.lower(), _read_csv
    if path.is_dir():
        raise InputError(f"data must be one file: {path} is a folder. Give a CSV or JSONL file in it.")
    if not path.is_file():
        raise InputError(f"there is no file {path}. Check the name and the folder it is in.")
    if suffix in _JSONL:
        read = _read_jsonl
    elif suffix in SUFFIXES and suffix not in _CSV:
        raise InputError(f"data has to be CSV, with commas, or JSONL, one object a line: got {path.name}. Convert it.")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from read(file, path.name)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path.name} is not UTF-8 text: byte {error.object[error.start]:#04x} cannot be read. "
            "Save it again with the encoding UTF-8."
        ) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}. Check its permissions.") from error


def _read_csv(file: IO[str], name: str) -> Iterator[Row]:
    reader = csv.reader(file, strict=True)
    columns: list[str] = []
    count = 0
    try:
        for fields in reader:
            if not any(field.strip() for field in fields):
                continue
            if not columns:
                columns = _columns(fields, name)
                continue
            count += 1
            where, problem = f"row {count} (line {reader.line_num} of {name})", ""
            if len(fields) != len(columns):
                problem = (
                    f"{where} has {len(fields)} fields, and the header has {len(columns)}. "
                    "Put prompts that contain commas between double quotes."
                )
            yield Row(where, dict(zip(columns, fields, strict=False)), problem)
    except csv.Error as error:
        raise InputError(
            f"{name} cannot be read as CSV: {error}, at line {reader.line_num}. "
            "Look for a double quote that is not closed, or is not doubled inside a field."
        ) from error


def _read_jsonl(file: IO[str], name: str) -> Iterator[Row]:
    lines = ((number, line) for number, line in enumerate(file, start=1) if line.strip())
    for count, (number, line) in enumerate(lines, start=1):
        where = f"row {count} (line {number} of {name})"
        try:
            yield _object(json.loads(line), where)
        except (ValueError, RecursionError) as error:
            yield Row(where, {}, f"{where} is not JSON: {error}. Put one object on a line.")


def _objects(data: Any) -> Iterator[Row]:
    if not isinstance(data, Iterable) or isinstance(data, Mapping):
        raise InputError(
            f"data must be a file or rows as dictionaries: got {type(data).__name__}. "
            "A data frame gives such rows with .to_dict('records')."
        )
    return (_object(values, f"row {count} of data") for count, values in enumerate(data, start=1))


def _object(values: Any, where: str) -> Row:
    if not isinstance(values, Mapping):
        return Row(where, {}, f"{where} is a {type(values).__name__}, not an object with named values.")
    try:
        return Row(where, dict(zip(_columns(values, where), values.values(), strict=True)))
    except InputError as problem:
        return Row(where, {}, str(problem))


def _columns(names: Iterable[Any], where: str) -> list[str]:
    """The columns by our names: "Wrong answers" is "wrong_answers". None of them may be missing or there twice."""
    shown = [str(name).strip() for name in names]
    lower = [name.lower().replace(" ", "_") for name in shown]
    columns = [_OTHER_NAMES.get(name, name) for name in lower]
    twice = [column for column in COLUMNS if columns.count(column) > 1]
    if twice:
        raise InputError(f"{where} has the column {twice[0]!r} twice. Rename or remove one of the two.")
    if missing := [column for column in COLUMNS if column not in columns]:
        listed = ", ".join(name[:40] or "(no name)" for name in shown[:20])
        raise InputError(
            f"{where} has no column {' and no '.join(missing)}: its columns are {listed}. Data needs "
            f"{', '.join(COLUMNS)}, separated by commas in a CSV file."
        )
    return columns


def _pair(row: Row) -> Pair:
    if row.problem:
        raise InputError(row.problem)
    clean, corrupted = _text(row, "clean"), _text(row, "corrupted")
    right, wrong = _answers(row, "answers"), _answers(row, "wrong_answers")
    return Pair(clean, corrupted, right, wrong, where=row.where, spans=_spans(row, clean))


def _text(row: Row, column: str) -> str:
    value = row.cells[column]
    _check_text(row, column, value)
    return str(value)


def _check_text(row: Row, column: str, value: Any) -> None:
    """Refuse what is not text, and half of a character (a lone surrogate), which JSON allows and tokenizers do not."""
    if value is None or (isinstance(value, str) and not value.strip()):
        raise InputError(f"{row.where} has nothing in {column!r}. Fill it in, or remove the row.")
    if not isinstance(value, str):
        raise _wrong_cell(row, column, value, "text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _wrong_cell(row, column, value, "text without an incomplete Unicode character") from error


def _answers(row: Row, column: str) -> Answers:
    """A list, a list in Python's notation, or texts separated by |. Numbers are token ids."""
    value = row.cells[column]
    if isinstance(value, str) and value.strip().startswith("["):
        try:
            value = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
            raise _wrong_cell(row, column, value, "a list such as ['gems', 'stones']") from error
    elif isinstance(value, str):
        value = value.split("|")
    items = value if isinstance(value, (list, tuple)) and value else [value]
    for item in items:
        if type(item) is not int:
            _check_text(row, column, item or None)
    return tuple(items)


def _spans(row: Row, prompt: str) -> dict[str, tuple[int, int]] | None:
    """The named parts of a prompt in the cell ``spans``, if there is one, in characters.

    A part is given as its text, which must occur in the prompt once, or as [begin, end].
    """
    value = row.cells.get("spans")
    if value is None or value == "":
        return None
    try:
        parts = json.loads(value) if isinstance(value, str) else value
        return {str(name): _span(prompt, part) for name, part in parts.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _wrong_cell(row, "spans", value, _SPANS) from error


def _span(prompt: str, part: Any) -> tuple[int, int]:
    if isinstance(part, str):
        if not part or prompt.count(part) != 1:
            raise ValueError
        return prompt.index(part), prompt.index(part) + len(part)
    begin, end = part
    if not (type(begin) is type(end) is int and 0 <= begin < end <= len(prompt)):
        raise ValueError
    return begin, end


def _wrong_cell(row: Row, column: str, value: Any, expected: str) -> InputError:
    shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:80]}..."
    return InputError(f"{row.where} must have {expected} in {column!r}: got {shown}. Correct it, or remove the row.")
