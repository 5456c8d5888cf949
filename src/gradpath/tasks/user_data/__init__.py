"""The user's own data as a source of pairs.

At most ``_MOST_ROWS`` rows are read, so that a huge file costs bounded time and memory, and the
user is told when there were more. Every other distinct pair is train and the others are test.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

from gradpath.errors import InputError
from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks.pairs import REPEATED, Candidates, Pair, Source
from gradpath.tasks.user_data.layouts import AnswerReader, recognise
from gradpath.tasks.user_data.rows import open_table

_MOST_ROWS = 100_000


def read_data(data: Any, name: str | None, split: str, tokenizer: Tokenizer) -> Source:
    """The pairs of one split of a file, a dataset or a list of rows, whatever its layout."""
    table = open_table(data)
    layout = recognise(table.columns, table.name)
    if name is not None and layout.task not in (name, None):
        raise InputError(
            f"{table.name} has the columns of the task {layout.task!r}, and {name!r} was asked for. "
            f"Ask for {layout.task!r}, or leave the task out."
        )
    reader = AnswerReader(tokenizer)
    rows = list(islice(table.rows, _MOST_ROWS))
    more = next(table.rows, None) is not None
    if not rows:
        raise InputError(f"{table.name} has a header and no rows. Add one row for each pair of prompts.")
    pairs = _half([layout.read(row, reader) for row in rows], split)
    notes = [*layout.notes(reader), *_space_note(pairs)]
    if more:
        notes.append(f"only the first {_MOST_ROWS} rows were read")
    about = {"source": table.name, "layout": layout.name, "rows_read": len(rows)}
    metric = layout.metric or _metric(pairs)
    return Source(name or table.name, metric, Candidates(pairs, tuple(notes)), about)


def _half(pairs: list[Pair], split: str) -> list[Pair]:
    """The pairs of a split. A pair that comes twice stays in the half of its first row, and counts once."""
    place: dict[tuple[str, str], int] = {}
    chosen = []
    for pair in pairs:
        key = (pair.clean, pair.corrupted)
        again = key in place
        side = place.setdefault(key, len(place) % 2)
        if split == "all" or side == ("train", "test").index(split):
            chosen.append(replace(pair, problem=REPEATED) if again else pair)
    return chosen


def _space_note(pairs: Iterable[Pair]) -> list[str]:
    """A word without its space is another token, and easily written by mistake: say so, change nothing."""
    for pair in pairs:
        for answer in (*pair.right, *pair.wrong):
            if isinstance(answer, str) and answer[:1].isalpha() and not pair.clean[-1:].isspace():
                return [
                    f"answers are taken as they stand: {answer!r} ({pair.where}) follows its prompt without "
                    f"a space; write {' ' + answer!r} if there should be one"
                ]
    return []


def _metric(pairs: Iterable[Pair]) -> str:
    """Logit difference compares two answers; with more of them their probabilities are summed."""
    single = all(len(pair.right) == len(pair.wrong) == 1 for pair in pairs)
    return "logit-difference" if single else "probability-difference"
