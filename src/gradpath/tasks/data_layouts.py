"""The layouts of data files: the columns of each, and how a row becomes a pair.

Our own layout has everything as text. The others are those of the files that come with EAP-IG (Hanna et al. 2024).
Their ``_idx`` columns are token ids of one vocabulary, which the file does not name. They are not used: answers come
from the text columns or, where there are none, from the prompts, so that a file is read alike for every model. A row
whose prompts do not contain the answers is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gradpath.errors import InputError
from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks import data_rows as rows
from gradpath.tasks.builtin.prompts import HE, LETTERS, SHE, Year, choice_prompt, read_years, verb_forms
from gradpath.tasks.data_rows import Row, Table
from gradpath.tasks.pairs import Pair

UNREADABLE = "the answers cannot be read from the prompts"


class AnswerReader:
    """The tokenizer with which the rows of a file are read, and facts about it that are computed once.

    Without a tokenizer, the cells of rows can be checked before a model is loaded; the answers are not filled in.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._years: dict[tuple[str, int], Year] = {}

    @cached_property
    def verbs(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The singular and the plural verb forms that count."""
        return ((), ()) if self._tokenizer is None else verb_forms(self._tokenizer)[0]

    def year(self, number: str, shown: int) -> Year:
        """A year after which the prompt ends with ``shown`` digits."""
        if self._tokenizer is None:
            return Year("", 0, (), ())
        if (number, shown) not in self._years:
            self._years[number, shown] = read_years([number], self._tokenizer, shown)[number]
        return self._years[number, shown]


@dataclass(frozen=True)
class Layout:
    """One way to write pairs down."""

    name: str
    columns: tuple[str, ...]
    metric: str | None  # None: the number of answers decides
    read: Callable[[Row, AnswerReader], Pair]
    origin: str = ""  # where answers come from, for a note


def recognise(table: Table) -> Layout:
    """The first layout whose columns are all there."""
    columns, name = table.columns, table.name
    for layout in LAYOUTS:
        if set(layout.columns) <= set(columns):
            return layout
    shown = ", ".join(table.headers.get(column, column)[:40] or "(no name)" for column in columns[:20])
    known = "; ".join(f"{layout.name} ({', '.join(layout.columns)})" for layout in LAYOUTS)
    if len(columns) == 1 and any(mark in columns[0] for mark in ";\t"):
        hint = "The fields have to be separated by commas."
    else:
        nearest = max(LAYOUTS, key=lambda layout: len(set(layout.columns) & set(columns)))
        missing = ", ".join(column for column in nearest.columns if column not in columns)
        hint = f"The layout {nearest.name} would also need {missing}."
    raise InputError(f"{name} has no known layout: its columns are {shown}. {hint} Known layouts: {known}.")


def _text_answers(row: Row, reader: AnswerReader) -> Pair:
    return _pair(row, rows.answers(row, "answers"), rows.answers(row, "wrong_answers"))


def _from_prompts(row: Row, find: Callable[[str, str], tuple[str, str] | None]) -> Pair:
    """A pair with one answer on each side, found in the two prompts."""
    answers = find(rows.text(row, "clean"), rows.text(row, "corrupted"))
    return _pair(row, answers[:1], answers[1:]) if answers else _pair(row, problem=UNREADABLE)


def _ioi(row: Row, reader: AnswerReader) -> Pair:
    return _from_prompts(row, ioi_names)


def _gender_bias(row: Row, reader: AnswerReader) -> Pair:
    return _from_prompts(row, pronouns)


def _sva(row: Row, reader: AnswerReader) -> Pair:
    plural = rows.number(row, "plural")
    if plural not in (0, 1):
        raise InputError(f"{row.where} must have 0 (singular) or 1 in 'plural': got {plural}. Correct it.")
    return _pair(row, reader.verbs[plural], reader.verbs[1 - plural])


def _capital_country(row: Row, reader: AnswerReader) -> Pair:
    right, wrong = (f" {rows.text(row, column).strip()}" for column in ("country", "corrupted_country"))
    return _pair(row, (right,), (wrong,), by_first=True)


def _hypernymy(row: Row, reader: AnswerReader) -> Pair:
    right, wrong = (
        tuple(f" {str(word).strip()}" for word in rows.answers(row, column)) for column in _HYPERNYMY_COLUMNS[1::2]
    )
    return _pair(row, right, wrong)


def _greater_than(row: Row, reader: AnswerReader) -> Pair:
    column = "correct_idx" if "correct_idx" in row.values else "label"
    try:
        digits = rows.number(row, column)
    except InputError as problem:
        if column != "label":
            raise
        raise InputError(
            f"{problem} The columns clean, corrupted, label mean greater-than data, whose label is a year's last two "
            "digits. In your own data, name the answers in the columns answers and wrong_answers."
        ) from None
    prompt_year = last_year(rows.text(row, "clean"))
    if prompt_year is None:
        return _pair(row, problem=UNREADABLE)
    number, shown = prompt_year
    if int(number[2:]) != digits:
        raise InputError(
            f"{row.where} has the year {number} in its prompt and {digits} in {column!r}. "
            f"Correct one of them: {column!r} is the year's last two digits."
        )
    year = reader.year(number, shown)
    return _pair(row, year.right, year.wrong, problem=year.problem)


def _choices(row: Row, reader: AnswerReader) -> Pair:
    """A question with its choices, as in ARC; the corrupted prompt has other letters in front of them."""
    choices, key = row.values.get("choices"), row.values.get("answerkey")
    texts, labels = (choices.get(name) if isinstance(choices, dict) else None for name in ("text", "label"))
    if not (isinstance(texts, list) and isinstance(labels, list) and 2 <= len(texts) == len(labels) <= len(LETTERS)):
        raise InputError(
            f"{row.where} needs 'choices' with two to {len(LETTERS)} entries in 'text' and as many in 'label': got "
            f"{str(choices)[:80]}. Correct it."
        )
    names = [str(label) for label in labels]
    place = key if isinstance(key, int) else names.index(str(key)) if str(key) in names else -1
    if not 0 <= place < len(texts):
        raise InputError(f"{row.where} has the answer {key!r}, and the labels are {', '.join(names)}. Correct it.")
    question = rows.text(row, "question")
    begin = len(LETTERS) + sum(question.encode()) % (26 - 2 * len(LETTERS))  # the same letters in every run
    symbols = LETTERS[: len(texts)], "".join(chr(ord("A") + begin + i) for i in range(len(texts)))
    clean, corrupted = (choice_prompt(question, [str(text) for text in texts], each) for each in symbols)
    rows.check_unicode(row, "choices", clean)
    return Pair(clean, corrupted, (f" {symbols[0][place]}",), (f" {symbols[1][place]}",), where=row.where)


def _mib(row: Row, reader: AnswerReader) -> Pair:
    """A row of MIB's data: a prompt with its choices, and the same of a counterfactual."""

    def read(values: Any) -> tuple[str, str]:
        rows.check_unicode(row, "prompt", str(values["prompt"]))
        key = values["answerkey" if "answerkey" in values else "answerKey"]
        return str(values["prompt"]), f" {values['choices']['label'][key]}"

    try:
        (clean, right), (corrupted, wrong) = read(row.values), read(row.values["symbol_counterfactual"])
    except (KeyError, TypeError, IndexError):
        raise InputError(
            f"{row.where} does not have MIB's form: a prompt, choices with labels, the number of the correct one in "
            "answerKey, and the same in symbol_counterfactual. Correct it."
        ) from None
    return Pair(clean, corrupted, (right,), (wrong,), where=row.where)


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


_LOGIT, _PROBABILITY = "logit-difference", "probability-difference"
_CAPITAL_COLUMNS = ("clean", "country", "corrupted", "corrupted_country")
_HYPERNYMY_COLUMNS = ("clean", "answers", "corrupted", "corrupted_answers")
_PROMPTS, _TEXT = "the prompts", "the text columns"
_FIRST = f"{_TEXT}, by their first token"

LAYOUTS = (
    Layout("own", ("clean", "corrupted", "answers", "wrong_answers"), None, _text_answers),
    Layout("capital-country", _CAPITAL_COLUMNS, _LOGIT, _capital_country, _FIRST),
    Layout("hypernymy", _HYPERNYMY_COLUMNS, _PROBABILITY, _hypernymy, _TEXT),
    Layout("ioi", ("clean", "corrupted", "correct_idx", "incorrect_idx"), _LOGIT, _ioi, _PROMPTS),
    Layout(
        "gender-bias",
        ("clean", "corrupted", "clean_answer_idx", "corrupted_answer_idx"),
        _LOGIT,
        _gender_bias,
        _PROMPTS,
    ),
    Layout("MIB", ("prompt", "choices", "answerkey", "symbol_counterfactual"), _LOGIT, _mib),
    Layout("ARC", ("question", "choices", "answerkey"), _LOGIT, _choices),
    Layout("sva", ("clean", "corrupted", "plural"), _PROBABILITY, _sva),
    Layout("greater-than", ("clean", "corrupted", "correct_idx"), _PROBABILITY, _greater_than),
    Layout("greater-than", ("clean", "corrupted", "label"), _PROBABILITY, _greater_than),
)


def ioi_names(clean: str, corrupted: str) -> tuple[str, str] | None:
    """The indirect object and the subject of an IOI prompt.

    The subject is the name that the corrupted prompt replaces; "and" joins it to the indirect object elsewhere.

    >>> ioi_names("Amy and Laura met, and Laura gave it to", "Amy and Laura met, and Bob gave it to")
    (' Amy', ' Laura')
    """
    changed = _changed_word(clean, corrupted)
    if changed is None or not (subject := re.sub(r"\W", "", changed[0])):
        return None
    before = re.search(rf"(\w+) and {subject}\b", clean)
    after = re.search(rf"\b{subject} and (\w+)", clean)
    names = [match[1] for match in (before, after) if match and match[1][0].isupper() and match[1] != subject]
    return (f" {names[0]}", f" {subject}") if len(names) == 1 else None


def pronouns(clean: str, corrupted: str) -> tuple[str, str] | None:
    """The correct and the wrong pronoun of a gender-bias prompt: "man" replaces a "she", and vice versa.

    >>> pronouns("The poet was promoted because", "The man was promoted because")
    (' she', ' he')
    """
    changed = _changed_word(clean, corrupted)
    return {"man": (SHE, HE), "woman": (HE, SHE)}.get(changed[1]) if changed else None


def last_year(clean: str) -> tuple[str, int] | None:
    """The last whole year of a greater-than prompt, and how many digits of the next year it ends with.

    >>> last_year("The contract lasted from the year 1352 to the year 13")
    ('1352', 2)
    >>> last_year("1208, 1216, 1223, 1233, 1256, 12")
    ('1256', 2)
    """
    years = re.findall(r"(?<!\d)\d{4}(?!\d)", clean)
    ending = re.search(r"(?<!\d)\d{0,3}$", clean)
    return (years[-1], len(ending[0])) if years and ending and years[-1].startswith(ending[0]) else None


def _changed_word(clean: str, corrupted: str) -> tuple[str, str] | None:
    """The only word in which two prompts differ, in each of them."""
    words, other_words = clean.split(), corrupted.split()
    changed = [pair for pair in zip(words, other_words, strict=False) if pair[0] != pair[1]]
    return changed[0] if len(words) == len(other_words) and len(changed) == 1 else None
