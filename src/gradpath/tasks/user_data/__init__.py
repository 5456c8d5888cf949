"""Pairs from the user's own data.

At most ``_MAX_ROWS`` rows are read, so that time and memory are bounded for any file; a note says if there were more.
Half of the distinct pairs are for attribution (train), half for evaluation (test). With fewer than ``LEAST`` usable
pairs nothing is held out: both are all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from gradpath.errors import InputError
from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks.pairs import REPEATED, Candidates, Pair, Source, keep
from gradpath.tasks.user_data.layouts import AnswerReader, Layout, recognise
from gradpath.tasks.user_data.rows import Row, Table, is_file, open_table

_MAX_ROWS = 100_000
WARNING = "WARNING: "  # begins a note that should not be overlooked
LEAST = 8  # pairs, to hold half of them out
_ENOUGH = {"all": LEAST, "train": 1, "test": 1}  # usable pairs of each split


@dataclass(frozen=True)
class _Content:
    """The rows of the user's data, and their layout."""

    name: str
    layout: Layout
    rows: list[Row]
    more: bool  # whether there are rows that were not read

    def pairs(self, reader: AnswerReader) -> list[Pair]:
        """A pair for every row; all rows that cannot be read are reported at once."""
        pairs, problems = [], []
        for row in self.rows:
            try:
                if row.problem:
                    raise InputError(row.problem)
                pairs.append(self.layout.read(row, reader))
            except InputError as problem:
                problems.append(str(problem))
        if len(problems) == 1:
            raise InputError(problems[0])
        if problems:
            raise InputError(f"{len(problems):,} of the {len(self.rows):,} rows cannot be read:", problems)
        return pairs


def check_data(data: Any, name: str | None) -> None:
    """Refuse a file that cannot be read, and say which rows, without a model; other data is left alone.

    Args:
        data: A file, or anything else that ``read_data`` takes.
        name: The name of the task, if one was given.
    """
    if is_file(data):
        _read(open_table(data), name).pairs(AnswerReader(None))


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
    content = _read(open_table(data), name)
    layout, reader = content.layout, AnswerReader(tokenizer)
    reader.look_at(layout, content.rows)
    halves = _halves(content.pairs(reader))
    problem = "" if split == "all" else _no_hold_out(halves, tokenizer)
    held_out = split != "all" and not problem
    pairs = halves[split if held_out else "all"]
    notes = [*layout.notes(reader), *_space_note(pairs)]
    if content.more:
        notes.append(f"only the first {_MAX_ROWS} rows were read")
    if problem:
        notes.append(
            f"{WARNING}nothing is held out, because {problem}. All pairs are both attributed and measured, so the "
            "circuit may not do as well on other prompts"
        )
    # A logit difference compares two answers; with more answers, their probabilities are summed.
    single = all(len(pair.right) == len(pair.wrong) == 1 for pair in halves["all"] if pair.right)
    metric = layout.metric or ("logit-difference" if single else "probability-difference")
    about = {"source": content.name, "layout": layout.name, "rows_read": len(content.rows), "held_out": held_out}
    return Source(name or content.name, metric, Candidates(pairs, tuple(notes)), about)


def _read(table: Table, name: str | None) -> _Content:
    """The rows of a table, and the layout that its columns have."""
    layout = recognise(table.columns, table.name)
    if name is not None and layout.task not in (name, None):
        raise InputError(
            f"{table.name} has the columns of the task {layout.task!r}, and {name!r} was asked for. "
            f"Ask for {layout.task!r}, or leave the task out."
        )
    rows = list(islice(table.rows, _MAX_ROWS))
    if not rows:
        raise InputError(f"{table.name} has a header and no rows. Add one row for each pair of prompts.")
    return _Content(table.name, layout, rows, more=next(table.rows, None) is not None)


def _no_hold_out(halves: dict[str, list[Pair]], tokenizer: Tokenizer) -> str:
    """Why no pairs can be held out, if so: there are too few usable ones, or all of them are in one half."""
    usable = {half: len(keep(halves[half], tokenizer, n, many=True).pairs) for half, n in _ENOUGH.items()}
    if usable["all"] < LEAST:
        return f"there are fewer than {LEAST} usable pairs"
    return "" if usable["train"] and usable["test"] else "all usable pairs have the same clean prompt"


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
