"""The columns that are understood, and how a row of each layout becomes a pair.

Our own layout holds everything as text. The others are those of the files that came with EAP-IG
(Hanna et al. 2024). Their ``_idx`` columns are GPT-2's token ids, which count as they are with GPT-2's
vocabulary; with any other, answers come from the text columns or, where there are none, from the
prompts. A note says which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from gradpath.errors import InputError
from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks import cells, greater_than, sva
from gradpath.tasks.pair import Pair
from gradpath.tasks.prompts import first_year, ioi_names, pronouns
from gradpath.tasks.rows import Row

UNREADABLE = "the answers cannot be read from the prompts"

# Some answers and their ids in GPT-2's vocabulary: a tokenizer that has all of them is GPT-2's.
_GPT2 = {" he": 339, " she": 673, " Mary": 5335, "52": 4309}


class Reader:
    """What the rows of one file are read with: the tokenizer, and what was found out about it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._years: dict[tuple[str, int], greater_than.Year] = {}

    @cached_property
    def gpt2(self) -> bool:
        """Whether token ids written for GPT-2 mean the same under this tokenizer."""
        return self._tokenizer.continuations(list(_GPT2)) == [[i] for i in _GPT2.values()]

    @cached_property
    def verbs(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], str]:
        return sva.verb_forms(self._tokenizer)

    def year(self, number: str, shown: int) -> greater_than.Year:
        if (number, shown) not in self._years:
            self._years |= {
                (number, shown): greater_than.read_years([number], self._tokenizer, shown)[number]
            }
        return self._years[number, shown]


@dataclass(frozen=True)
class Layout:
    """One way to write pairs down.

    ``task`` is the built-in task it belongs to, if any, ``metric`` None where the number of answers
    decides, and ``ids``, ``without_ids`` say where answers come from with and without GPT-2's vocabulary.
    """

    name: str
    task: str | None
    columns: tuple[str, ...]
    metric: str | None
    read: Callable[[Row, Reader], Pair]
    ids: str = ""
    without_ids: str = ""

    def notes(self, reader: Reader) -> list[str]:
        if not self.ids:
            return []
        return [f"answers are taken from {self.ids if reader.gpt2 else self.without_ids}"]


def recognise(columns: Sequence[str], name: str) -> Layout:
    """The first layout whose columns are all there."""
    for layout in LAYOUTS:
        if set(layout.columns) <= set(columns):
            return layout
    found = ", ".join(column[:40] or "(no name)" for column in columns[:20])
    known = "; ".join(f"{layout.name} ({', '.join(layout.columns)})" for layout in LAYOUTS)
    raise InputError(
        f"the columns of {name} are not understood: found {found}. {_guess(columns)}Understood are {known}."
    )


def _guess(columns: Sequence[str]) -> str:
    """What is probably wrong with a header."""
    if len(columns) == 1 and any(mark in columns[0] for mark in ";\t"):
        return "The fields have to be separated by commas. "
    nearest = max(LAYOUTS, key=lambda layout: len(set(layout.columns) & set(columns)))
    missing = [column for column in nearest.columns if column not in columns]
    return f"The layout {nearest.name} would also need {', '.join(missing)}. "


def _own(row: Row, reader: Reader) -> Pair:
    return _pair(row, cells.answers(row, "answers"), cells.answers(row, "wrong_answers"))


def _ioi(row: Row, reader: Reader) -> Pair:
    if reader.gpt2:
        return _pair(row, (cells.number(row, "correct_idx"),), (cells.number(row, "incorrect_idx"),))
    names = ioi_names(cells.text(row, "clean"), cells.text(row, "corrupted"))
    return _pair(row, (f" {names[0]}",), (f" {names[1]}",)) if names else _pair(row, problem=UNREADABLE)


def _sva(row: Row, reader: Reader) -> Pair:
    plural = cells.number(row, "plural")
    if plural not in (0, 1):
        raise InputError(f"{row.where} must have 0 (singular) or 1 in 'plural': got {plural}. Correct it.")
    forms, _ = reader.verbs
    return _pair(row, forms[plural], forms[1 - plural])


def _gender_bias(row: Row, reader: Reader) -> Pair:
    if reader.gpt2:
        right, wrong = (cells.number(row, f"{side}_answer_idx") for side in ("clean", "corrupted"))
        return _pair(row, (right,), (wrong,))
    found = pronouns(cells.text(row, "clean"), cells.text(row, "corrupted"))
    return _pair(row, (found[0],), (found[1],)) if found else _pair(row, problem=UNREADABLE)


def _capital_country(row: Row, reader: Reader) -> Pair:
    right, wrong = (f" {cells.text(row, column).strip()}" for column in ("country", "corrupted_country"))
    return _pair(row, (right,), (wrong,), by_first=True)


def _hypernymy(row: Row, reader: Reader) -> Pair:
    if reader.gpt2 and {"answers_idx", "corrupted_answers_idx"} <= set(row.values):
        right_ids, wrong_ids = (cells.numbers(row, f"{side}answers_idx") for side in ("", "corrupted_"))
        return _pair(row, right_ids, wrong_ids)
    right, wrong = (
        tuple(f" {word.strip()}" for word in cells.texts(row, f"{side}answers"))
        for side in ("", "corrupted_")
    )
    return _pair(row, right, wrong)


def _greater_than(row: Row, reader: Reader) -> Pair:
    found = first_year(cells.text(row, "clean"))
    if found is None:
        return _pair(row, problem=UNREADABLE)
    number, shown = found
    if int(number[2:]) != (given := cells.number(row, "correct_idx")):
        raise InputError(
            f"{row.where} has the year {number} in its prompt and {given} in 'correct_idx'. "
            "Correct one of them: 'correct_idx' is the year's last two digits."
        )
    year = reader.year(number, shown)
    return _pair(row, year.right, year.wrong, problem=year.problem)


def _pair(
    row: Row,
    right: Sequence[str | int] = (),
    wrong: Sequence[str | int] = (),
    *,
    by_first: bool = False,
    problem: str = "",
) -> Pair:
    clean, corrupted = cells.text(row, "clean"), cells.text(row, "corrupted")
    spans = cells.spans(row, clean)
    return Pair(clean, corrupted, tuple(right), tuple(wrong), by_first, row.where, problem, spans)


_IDS = "the _idx columns: this model has GPT-2's vocabulary"
_PROMPTS = "the prompts: the _idx columns are for GPT-2's vocabulary, which this model does not have"
_TEXT = "the text columns: the _idx columns are for GPT-2's vocabulary, which this model does not have"
_LOGIT, _PROBABILITY = "logit-difference", "probability-difference"

LAYOUTS = (
    Layout("own", None, ("clean", "corrupted", "answers", "wrong_answers"), None, _own),
    Layout(
        "capital-country",
        "capital-country",
        ("clean", "country", "corrupted", "corrupted_country"),
        _LOGIT,
        _capital_country,
        "the text columns, by their first token",
        "the text columns, by their first token",
    ),
    Layout(
        "hypernymy",
        "hypernymy",
        ("clean", "answers", "corrupted", "corrupted_answers"),
        _PROBABILITY,
        _hypernymy,
        _IDS,
        _TEXT,
    ),
    Layout(
        "ioi",
        "ioi",
        ("clean", "corrupted", "correct_idx", "incorrect_idx"),
        _LOGIT,
        _ioi,
        _IDS,
        _PROMPTS,
    ),
    Layout(
        "gender-bias",
        "gender-bias",
        ("clean", "corrupted", "clean_answer_idx", "corrupted_answer_idx"),
        _LOGIT,
        _gender_bias,
        _IDS,
        _PROMPTS,
    ),
    Layout("sva", "sva", ("clean", "corrupted", "plural"), _PROBABILITY, _sva),
    Layout(
        "greater-than", "greater-than", ("clean", "corrupted", "correct_idx"), _PROBABILITY, _greater_than
    ),
)
