"""Pairs from the user's own data.

At most ``_MAX_ROWS`` rows are read, so that time and memory are bounded for any file; a note says if there were more.
Distinct pairs belong to train and test in turn.
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

_MAX_ROWS = 100_000


def read_data(data: Any, name: str | None, split: str, tokenizer: Tokenizer) -> Source:
    """Read the pairs of one split.

    Args:
        data: A file, a dataset or its name, or a list of rows.
        name: The name of the task; by default that of the data.
        split: "train", "test" or "all".
        tokenizer: The tokenizer of the model.

    Returns:
        The pairs, and the metric that fits their layout.
    """
    table = open_table(data)
    layout = recognise(table.columns, table.name)
    if name is not None and layout.task not in (name, None):
        raise InputError(
            f"{table.name} has the columns of the task {layout.task!r}, and {name!r} was asked for. "
            f"Ask for {layout.task!r}, or leave the task out."
        )
    reader = AnswerReader(tokenizer)
    rows = list(islice(table.rows, _MAX_ROWS))
    more = next(table.rows, None) is not None
    if not rows:
        raise InputError(f"{table.name} has a header and no rows. Add one row for each pair of prompts.")
    pairs = _halves([layout.read(row, reader) for row in rows])[split]
    notes = [*layout.notes(reader), *_space_note(pairs)]
    if more:
        notes.append(f"only the first {_MAX_ROWS} rows were read")
    # A logit difference compares two answers; with more answers, their probabilities are summed.
    single = all(len(pair.right) == len(pair.wrong) == 1 for pair in pairs)
    metric = layout.metric or ("logit-difference" if single else "probability-difference")
    about = {"source": table.name, "layout": layout.name, "rows_read": len(rows)}
    return Source(name or table.name, metric, Candidates(pairs, tuple(notes)), about)


def _halves(pairs: list[Pair]) -> dict[str, list[Pair]]:
    """The pairs of each split.

    Pairs with the same clean prompt are in one half, or the measured examples would not be held out. A new clean
    prompt goes to the half that has fewer distinct pairs so far, so a file that grows at its end keeps its halves. A
    repeated pair is dropped as repeated.
    """
    halves: dict[str, list[Pair]] = {"train": [], "test": [], "all": []}
    home: dict[str, str] = {}
    sizes, seen = {"train": 0, "test": 0}, set[tuple[str, str]]()
    for pair in pairs:
        half = home.setdefault(pair.clean, min(sizes, key=lambda name: sizes[name]))
        if (pair.clean, pair.corrupted) in seen:
            pair = replace(pair, problem=REPEATED)
        else:
            seen.add((pair.clean, pair.corrupted))
            sizes[half] += 1
        halves[half].append(pair)
        halves["all"].append(pair)
    return halves


def _space_note(pairs: Iterable[Pair]) -> list[str]:
    """A note on the first answer without a leading space: it is another token, and easily written by mistake."""
    for pair in pairs:
        for answer in (*pair.right, *pair.wrong):
            if isinstance(answer, str) and answer[:1].isalpha() and not pair.clean[-1:].isspace():
                return [
                    f"answers are taken as they stand: {answer!r} ({pair.where}) follows its prompt without "
                    f"a space; write {' ' + answer!r} if there should be one"
                ]
    return []
