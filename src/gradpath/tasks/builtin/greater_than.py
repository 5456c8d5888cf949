"""Greater-than: the end of an event is later than its beginning.

    clean      The war lasted from the year 1752 to the year 17   -> 53, 54, ..., 99
    corrupted  The war lasted from the year 1701 to the year 17

The answer is the next token. How many digits of a year that is depends on the tokenizer. For a first year y of the
century cc00 to cc99:

1. The prompt ends with the digits of y up to the first token border at or after the century: "17" for tokens of two
   digits and of one, "175" if the tokens are "175" and "2", and nothing if a year is one token.
2. The next token has as many digits as the token at that place in y itself: "52", "5", "2" or " 1752".
3. A next token is right if all years of the century that continue with it are later than y, wrong if none is, and
   neither if some are. After 1752, "53" to "99" are right and "00" to "52" wrong; with tokens of one digit, "6" to "9"
   are right, "0" to "4" wrong, and "5" is neither (1753, but also 1751).
4. In the corrupted prompt, the digits of y that the ending does not show are 01 (or 1, if it hides one digit).

Years that the tokenizer splits unlike most years are dropped (" 1200" is one token for GPT-2). No noun is in both
splits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks.builtin import half, named_task, read_json, templates
from gradpath.tasks.pairs import Candidates, Combinations, Pair

NO_BORDER = "the tokenizer does not split the year where the prompt ends"
ONE_SIDED = "no next token is right, or none is wrong"
UNUSUAL = "the tokenizer splits this year unlike most years"


@dataclass(frozen=True)
class Year:
    """One year under a tokenizer: the text at the end of the prompt, and the next tokens that count."""

    shown: str
    width: int  # digits of the next token
    right: tuple[str, ...]
    wrong: tuple[str, ...]
    problem: str = ""


@named_task(
    "greater-than",
    "Later years: 'The war lasted from the year 1752 to the year 17' -> 53 and above",
    metric="probability-difference",
    citation="Hanna et al. 2023, How Does GPT-2 Compute Greater-Than?, arXiv:2305.00586",
    reworded=True,
    changed="year",
)
def candidates(split: str, tokenizer: Tokenizer) -> Candidates:
    """Every noun of the split with every year of the centuries except the first two and the last."""
    facts = read_json("greater_than.json")
    nouns = half(facts["nouns"], split)
    numbers = [f"{century}{rest:02d}" for century in facts["centuries"] for rest in range(2, 99)]
    years = _split_alike(read_years(numbers, tokenizer))

    [text] = templates("greater-than", split, [facts["template"]])

    def build(noun: int, at: int) -> Pair:
        number, year = numbers[at], years[numbers[at]]
        visible = max(len(year.shown.strip()), 2)
        early = number[:visible] + "01"[visible - 2 :]  # step 4
        stem = text.format(noun=nouns[noun], year="{}") + year.shown
        return Pair(stem.format(number), stem.format(early), year.right, year.wrong, problem=year.problem)

    return Candidates(Combinations((len(nouns), len(numbers)), build), (_note(years),))


def read_years(numbers: Sequence[str], tokenizer: Tokenizer, shown: int | None = None) -> dict[str, Year]:
    """Each four-digit year under the tokenizer; ``shown`` sets the number of digits at the end of the prompt."""
    tokens = tokenizer.continuations([f" {number}" for number in numbers])
    text = {i: tokenizer.decode([i]) for i in sorted({i for ids in tokens for i in ids})}
    return {number: _year(number, [text[i] for i in ids], shown) for number, ids in zip(numbers, tokens, strict=True)}


def _year(number: str, pieces: list[str], shown: int | None) -> Year:
    """Steps 1 to 3 of the rule, for a year that is split into these pieces."""
    borders = {len("".join(pieces[:at]).strip()): at for at in range(len(pieces))}
    # The first token border at or after the century, else the last one before it.
    first = min((border for border in borders if border >= 2), default=max(borders, default=0))
    digits = first if shown is None else shown
    if "".join(pieces) != f" {number}" or digits not in borders:
        return Year("", 0, (), (), NO_BORDER)
    at = borders[digits]
    following = pieces[at]
    width = len(following.strip())
    right, wrong = _sides(number, digits, width)
    space = following.removesuffix(following.strip())
    return Year(
        shown="".join(pieces[:at]),
        width=width,
        right=tuple(space + token for token in right),
        wrong=tuple(space + token for token in wrong),
        problem="" if right and wrong else ONE_SIDED,
    )


def _sides(number: str, shown: int, width: int) -> tuple[list[str], list[str]]:
    """The next ``width`` digits after ``shown`` ones that lead to later years only, and to no later year."""
    later: dict[str, set[bool]] = {}
    for year in (f"{number[:2]}{rest:02d}" for rest in range(100)):
        if year.startswith(number[:shown]):
            later.setdefault(year[shown : shown + width], set()).add(year > number)
    right = [token for token, values in later.items() if values == {True}]
    wrong = [token for token, values in later.items() if values == {False}]
    return right, wrong


def _split_alike(years: dict[str, Year]) -> dict[str, Year]:
    """Mark years that are not split in the most common way, so that all examples have the same form.

    GPT-2 has most years as two tokens of two digits, but " 1200" as one and " 1109" as " 110", "9".
    """
    splits = Counter((len(year.shown), year.width) for year in years.values())
    common = max(splits, key=lambda split: (splits[split], split))
    return {
        number: year if (len(year.shown), year.width) == common else replace(year, problem=UNUSUAL)
        for number, year in years.items()
    }


def _note(years: Mapping[str, Year]) -> str:
    number, year = next((item for item in years.items() if not item[1].problem), ("", Year("", 0, (), ())))
    digits = f"{year.width} digit{'s' if year.width != 1 else ''} of the year"
    return f"the next token holds {digits}: after {number!r} the prompt ends with {year.shown!r}"
