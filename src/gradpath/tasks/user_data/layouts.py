"""The layouts of data files: the columns of each, and how a row becomes a pair.

Our own layout has everything as text. The others are those of the files that come with EAP-IG (Hanna et al. 2024).
Their ``_idx`` columns are token ids of GPT-2 and are used only with GPT-2's vocabulary. With any other, answers come
from the text columns or, where there are none, from the prompts; a row whose prompts do not contain them is dropped.
A note says which.
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
    """The tokenizer with which the rows of a file are read, and facts about it that are computed once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._years: dict[tuple[str, int], greater_than.Year] = {}

    @cached_property
    def gpt2(self) -> bool:
        """Whether this is GPT-2's vocabulary."""
        return self._tokenizer.continuations(list(_GPT2)) == [[i] for i in _GPT2.values()]

    @cached_property
    def verbs(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The singular and the plural verb forms that count."""
        return sva.verb_forms(self._tokenizer)[0]

    def year(self, number: str, shown: int) -> greater_than.Year:
        """A year after which the prompt ends with ``shown`` digits."""
        if (number, shown) not in self._years:
            self._years[number, shown] = greater_than.read_years([number], self._tokenizer, shown)[number]
        return self._years[number, shown]


@dataclass(frozen=True)
class Layout:
    """One way to write pairs down."""

    name: str
    columns: tuple[str, ...]
    metric: str | None  # None: the number of answers decides
    read: Callable[[Row, AnswerReader], Pair]
    with_ids: str = ""  # where answers come from with GPT-2's vocabulary
    without_ids: str = ""  # and with any other

    @property
    def task(self) -> str | None:
        """The built-in task that the layout belongs to."""
        return None if self.name == "own" else self.name

    def notes(self, reader: AnswerReader) -> list[str]:
        """Where the answers come from, if that is not obvious."""
        if not self.with_ids:
            return []
        return [f"answers are taken from {self.with_ids if reader.gpt2 else self.without_ids}"]


def recognise(columns: Sequence[str], name: str) -> Layout:
    """The first layout whose columns are all there."""
    for layout in LAYOUTS:
        if set(layout.columns) <= set(columns):
            return layout
    shown = ", ".join(column[:40] or "(no name)" for column in columns[:20])
    known = "; ".join(f"{layout.name} ({', '.join(layout.columns)})" for layout in LAYOUTS)
    if len(columns) == 1 and any(mark in columns[0] for mark in ";\t"):
        hint = "The fields have to be separated by commas."
    else:
        nearest = max(LAYOUTS, key=lambda layout: len(set(layout.columns) & set(columns)))
        missing = ", ".join(column for column in nearest.columns if column not in columns)
        hint = f"The layout {nearest.name} would also need {missing}."
    raise InputError(f"the columns of {name} are not understood: found {shown}. {hint} Understood are {known}.")


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
    return _pair(row, reader.verbs[plural], reader.verbs[1 - plural])


def _gender_bias(row: Row, reader: AnswerReader) -> Pair:
    if reader.gpt2:
        right, wrong = (rows.number(row, f"{side}_answer_idx") for side in ("clean", "corrupted"))
        return _pair(row, (right,), (wrong,))
    answers = pronouns(rows.text(row, "clean"), rows.text(row, "corrupted"))
    return _pair(row, (answers[0],), (answers[1],)) if answers else _pair(row, problem=UNREADABLE)


def _capital_country(row: Row, reader: AnswerReader) -> Pair:
    right, wrong = (f" {rows.text(row, column).strip()}" for column in ("country", "corrupted_country"))
    return _pair(row, (right,), (wrong,), by_first=True)


def _hypernymy(row: Row, reader: AnswerReader) -> Pair:
    if reader.gpt2 and {"answers_idx", "corrupted_answers_idx"} <= set(row.values):
        return _pair(row, rows.numbers(row, "answers_idx"), rows.numbers(row, "corrupted_answers_idx"))
    right, wrong = (
        tuple(f" {str(word).strip()}" for word in rows.answers(row, column))
        for column in ("answers", "corrupted_answers")
    )
    return _pair(row, right, wrong)


def _greater_than(row: Row, reader: AnswerReader) -> Pair:
    prompt_year = first_year(rows.text(row, "clean"))
    if prompt_year is None:
        return _pair(row, problem=UNREADABLE)
    number, shown = prompt_year
    if int(number[2:]) != (digits := rows.number(row, "correct_idx")):
        raise InputError(
            f"{row.where} has the year {number} in its prompt and {digits} in 'correct_idx'. "
            "Correct one of them: 'correct_idx' is the year's last two digits."
        )
    year = reader.year(number, shown)
    return _pair(row, year.right, year.wrong, problem=year.problem)


def _pair(
    row: Row,
    right: tuple[str | int, ...] = (),
    wrong: tuple[str | int, ...] = (),
    *,
    by_first: bool = False,
    problem: str = "",
) -> Pair:
    clean, corrupted = rows.text(row, "clean"), rows.text(row, "corrupted")
    return Pair(clean, corrupted, right, wrong, by_first, row.where, problem, rows.spans(row, clean))


_IDS = "the _idx columns: this model has GPT-2's vocabulary"
_OTHER = "the _idx columns are for GPT-2's vocabulary, which this model does not have"
_PROMPTS, _TEXT = f"the prompts: {_OTHER}", f"the text columns: {_OTHER}"
_FIRST = "the text columns, by their first token"
_LOGIT, _PROBABILITY = "logit-difference", "probability-difference"
_CAPITAL_COLUMNS = ("clean", "country", "corrupted", "corrupted_country")
_HYPERNYMY_COLUMNS = ("clean", "answers", "corrupted", "corrupted_answers")
_GENDER_COLUMNS = ("clean", "corrupted", "clean_answer_idx", "corrupted_answer_idx")

LAYOUTS = (
    Layout("own", ("clean", "corrupted", "answers", "wrong_answers"), None, _own),
    Layout("capital-country", _CAPITAL_COLUMNS, _LOGIT, _capital_country, _FIRST, _FIRST),
    Layout("hypernymy", _HYPERNYMY_COLUMNS, _PROBABILITY, _hypernymy, _IDS, _TEXT),
    Layout("ioi", ("clean", "corrupted", "correct_idx", "incorrect_idx"), _LOGIT, _ioi, _IDS, _PROMPTS),
    Layout("gender-bias", _GENDER_COLUMNS, _LOGIT, _gender_bias, _IDS, _PROMPTS),
    Layout("sva", ("clean", "corrupted", "plural"), _PROBABILITY, _sva),
    Layout("greater-than", ("clean", "corrupted", "correct_idx"), _PROBABILITY, _greater_than),
)


def ioi_names(clean: str, corrupted: str) -> tuple[str, str] | None:
    """The indirect object and the subject of an IOI prompt.

    The subject is the name that the corrupted prompt replaces; "and" joins it to the indirect object elsewhere.

    >>> ioi_names("Amy and Laura met, and Laura gave it to", "Amy and Laura met, and Bob gave it to")
    ('Amy', 'Laura')
    """
    changed = _changed_word(clean, corrupted)
    if changed is None or not (subject := re.sub(r"\W", "", changed[0])):
        return None
    before = re.search(rf"(\w+) and {subject}\b", clean)
    after = re.search(rf"\b{subject} and (\w+)", clean)
    names = [match[1] for match in (before, after) if match and match[1][0].isupper() and match[1] != subject]
    return (names[0], subject) if len(names) == 1 else None


def pronouns(clean: str, corrupted: str) -> tuple[str, str] | None:
    """The right and the wrong pronoun of a gender-bias prompt: "man" replaces a "she", and vice versa.

    >>> pronouns("The poet was promoted because", "The man was promoted because")
    (' she', ' he')
    """
    changed = _changed_word(clean, corrupted)
    return {"man": (SHE, HE), "woman": (HE, SHE)}.get(changed[1]) if changed else None


def first_year(clean: str) -> tuple[str, int] | None:
    """The first year of a greater-than prompt, and how many digits of the second year it ends with.

    >>> first_year("The contract lasted from the year 1352 to the year 13")
    ('1352', 2)
    """
    years = re.findall(r"(?<!\d)\d{4}(?!\d)", clean)
    ending = re.search(r"(?<!\d)\d{0,3}$", clean)
    return (years[0], len(ending[0])) if years and ending else None


def _changed_word(clean: str, corrupted: str) -> tuple[str, str] | None:
    """The only word in which two prompts differ, in each of them."""
    words, other_words = clean.split(), corrupted.split()
    changed = [pair for pair in zip(words, other_words, strict=False) if pair[0] != pair[1]]
    return changed[0] if len(words) == len(other_words) and len(changed) == 1 else None
