"""The columns that are understood, and how a row of each layout becomes a pair.

Our own layout holds everything as text. The others are those of the files that came with EAP-IG
(Hanna et al. 2024). Their ``_idx`` columns are GPT-2's token ids, which count as they are with GPT-2's
vocabulary; with any other, answers come from the text columns or, where there are none, from the
prompts. A note says which.

Answers that a file does not spell out, read from its prompts.

Each function returns None where the prompts do not say: the row is then dropped, and counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from gradpath.errors import InputError
from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks.builtin import greater_than, sva
from gradpath.tasks.builtin.gender_bias import HE, SHE
from gradpath.tasks.pairs import Pair
from gradpath.tasks.user_data import rows
from gradpath.tasks.user_data.rows import Row

UNREADABLE = "the answers cannot be read from the prompts"

# Some answers and their ids in GPT-2's vocabulary: a tokenizer that has all of them is GPT-2's.
_GPT2 = {" he": 339, " she": 673, " Mary": 5335, "52": 4309}


class AnswerReader:
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
            self._years |= {(number, shown): greater_than.read_years([number], self._tokenizer, shown)[number]}
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
    read: Callable[[Row, AnswerReader], Pair]
    ids: str = ""
    without_ids: str = ""

    def notes(self, reader: AnswerReader) -> list[str]:
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


def _own(row: Row, reader: AnswerReader) -> Pair:
    return _pair(row, rows.answers(row, "answers"), rows.answers(row, "wrong_answers"))


def _ioi(row: Row, reader: AnswerReader) -> Pair:
    if reader.gpt2:
        return _pair(row, (rows.number(row, "correct_idx"),), (rows.number(row, "incorrect_idx"),))
    names = ioi_names(rows.text(row, "clean"), rows.text(row, "corrupted"))
    return _pair(row, (f" {names[0]}",), (f" {names[1]}",)) if names else _pair(row, problem=UNREADABLE)


def _sva(row: Row, reader: AnswerReader) -> Pair:
    plural = rows.number(row, "plural")
    if plural not in (0, 1):
        raise InputError(f"{row.where} must have 0 (singular) or 1 in 'plural': got {plural}. Correct it.")
    forms, _ = reader.verbs
    return _pair(row, forms[plural], forms[1 - plural])


def _gender_bias(row: Row, reader: AnswerReader) -> Pair:
    if reader.gpt2:
        right, wrong = (rows.number(row, f"{side}_answer_idx") for side in ("clean", "corrupted"))
        return _pair(row, (right,), (wrong,))
    found = pronouns(rows.text(row, "clean"), rows.text(row, "corrupted"))
    return _pair(row, (found[0],), (found[1],)) if found else _pair(row, problem=UNREADABLE)


def _capital_country(row: Row, reader: AnswerReader) -> Pair:
    right, wrong = (f" {rows.text(row, column).strip()}" for column in ("country", "corrupted_country"))
    return _pair(row, (right,), (wrong,), by_first=True)


def _hypernymy(row: Row, reader: AnswerReader) -> Pair:
    if reader.gpt2 and {"answers_idx", "corrupted_answers_idx"} <= set(row.values):
        right_ids, wrong_ids = (rows.numbers(row, f"{side}answers_idx") for side in ("", "corrupted_"))
        return _pair(row, right_ids, wrong_ids)
    right, wrong = (
        tuple(f" {word.strip()}" for word in rows.texts(row, f"{side}answers")) for side in ("", "corrupted_")
    )
    return _pair(row, right, wrong)


def _greater_than(row: Row, reader: AnswerReader) -> Pair:
    found = first_year(rows.text(row, "clean"))
    if found is None:
        return _pair(row, problem=UNREADABLE)
    number, shown = found
    if int(number[2:]) != (given := rows.number(row, "correct_idx")):
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
    clean, corrupted = rows.text(row, "clean"), rows.text(row, "corrupted")
    spans = rows.spans(row, clean)
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
    Layout("ioi", "ioi", ("clean", "corrupted", "correct_idx", "incorrect_idx"), _LOGIT, _ioi, _IDS, _PROMPTS),
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
    Layout("greater-than", "greater-than", ("clean", "corrupted", "correct_idx"), _PROBABILITY, _greater_than),
)


def ioi_names(clean: str, corrupted: str) -> tuple[str, str] | None:
    """The indirect object and the subject of an IOI prompt.

    The subject is the name whose second mention the corrupted prompt replaces; the indirect object is
    joined to its first mention by "and".

    >>> ioi_names("Amy and Laura met, and Laura gave it to", "Amy and Laura met, and Bob gave it to")
    ('Amy', 'Laura')
    """
    changed = _changed(clean, corrupted)
    if changed is None or not (subject := re.sub(r"\W", "", changed[0])):
        return None
    before = re.search(rf"(\w+) and {subject}\b", clean)
    after = re.search(rf"\b{subject} and (\w+)", clean)
    found = [match[1] for match in (before, after) if match and match[1][0].isupper() and match[1] != subject]
    return (found[0], subject) if len(found) == 1 else None


def pronouns(clean: str, corrupted: str) -> tuple[str, str] | None:
    """The right and the wrong pronoun of a gender-bias prompt: "man" stands in for a "she", and conversely.

    >>> pronouns("The poet was promoted because", "The man was promoted because")
    (' she', ' he')
    """
    changed = _changed(clean, corrupted)
    return {"man": (SHE, HE), "woman": (HE, SHE)}.get(changed[1]) if changed else None


def first_year(clean: str) -> tuple[str, int] | None:
    """The first year of a greater-than prompt and how many digits of the second one it shows.

    >>> first_year("The contract lasted from the year 1352 to the year 13")
    ('1352', 2)
    """
    years = re.findall(r"(?<!\d)\d{4}(?!\d)", clean)
    ending = re.search(r"(?<!\d)\d{0,3}$", clean)
    return (years[0], len(ending[0])) if years and ending else None


def _changed(clean: str, corrupted: str) -> tuple[str, str] | None:
    """The one word in which two prompts differ, as it stands in each."""
    pairs = list(zip(clean.split(), corrupted.split(), strict=False))
    changed = [pair for pair in pairs if pair[0] != pair[1]]
    same_length = len(clean.split()) == len(corrupted.split())
    return changed[0] if same_length and len(changed) == 1 else None
