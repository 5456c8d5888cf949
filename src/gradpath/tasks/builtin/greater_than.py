"""Greater-than: a thing that began in one year ends in a later one.

    clean      The war lasted from the year 1752 to the year 17   -> 53, 54, ..., 99
    corrupted  The war lasted from the year 1701 to the year 17

The answer is the next token, and how much of a year that is depends on the tokenizer. The rule, for
a first year y of the century cc00 to cc99:

1. The prompt shows the digits of y up to the first token border at or after the century: "17" for
   tokens of two digits and of one, "175" where the tokens are "175" and "2", and nothing where a year
   is one token.
2. A next token is as many digits as the token that follows there in y itself: "52", "5", "2" or " 1752".
3. It is right if all years of the century that go on with it lie above y, wrong if none does, and
   it counts for neither side if some do. After 1752, the tokens "53" to "99" are right and "00" to "52"
   wrong; or, a digit at a time, "6" to "9" are right, "0" to "4" wrong, and "5" is neither (1753, but
   also 1751).
   Years that are split unlike most (" 1200" is one token for GPT-2) are dropped.
4. In the corrupted prompt the digits of y that the prompt hides are 01 (or 1, where it hides one).

No noun is in both splits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks.builtin import TaskKind, read_json, register
from gradpath.tasks.draw import half
from gradpath.tasks.pairs import Candidates, Combinations, Pair

NO_BORDER = "the tokenizer does not split the year where the prompt ends"
ONE_SIDED = "no next token is right, or none is wrong"
UNUSUAL = "the tokenizer splits this year unlike most years"


@dataclass(frozen=True)
class Year:
    """What a tokenizer makes of one year: the text the prompt ends with, and the next tokens that count."""

    shown: str
    width: int  # digits of the next token
    right: tuple[str, ...]
    wrong: tuple[str, ...]
    problem: str = ""


def candidates(split: str, tokenizer: Tokenizer) -> Candidates:
    """Every noun of the split with every year of the centuries, but for the first two and the last."""
    facts = read_json("greater_than.json")
    nouns = half(facts["nouns"], split)
    numbers = [f"{century}{rest:02d}" for century in facts["centuries"] for rest in range(2, 99)]
    years = _alike(read_years(numbers, tokenizer))

    def build(noun: int, at: int) -> Pair:
        number, year = numbers[at], years[numbers[at]]
        stem = facts["template"].format(noun=nouns[noun], year="{}") + year.shown
        return Pair(
            stem.format(number), stem.format(_early(number, year)), year.right, year.wrong, problem=year.problem
        )

    return Candidates(Combinations((len(nouns), len(numbers)), build), (_note(years),))


def read_years(numbers: Sequence[str], tokenizer: Tokenizer, shown: int | None = None) -> dict[str, Year]:
    """Each four-digit year under the tokenizer; ``shown`` fixes how many digits the prompt ends with."""
    tokens = tokenizer.continuations([f" {number}" for number in numbers])
    text = {i: tokenizer.decode([i]) for i in sorted({i for ids in tokens for i in ids})}
    return {number: _year(number, [text[i] for i in ids], shown) for number, ids in zip(numbers, tokens, strict=True)}


def _year(number: str, pieces: list[str], shown: int | None) -> Year:
    """Steps 1 to 3 of the rule, for a year that is split into these pieces of text."""
    borders = {len("".join(pieces[:at]).strip()): at for at in range(len(pieces))}
    digits = _border(borders) if shown is None else shown
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


def _border(borders: Iterable[int]) -> int:
    """The first token border at or after the century, else the last one before."""
    return min((border for border in borders if border >= 2), default=max(borders, default=0))


def _sides(number: str, shown: int, width: int) -> tuple[list[str], list[str]]:
    """The next ``width`` digits after ``shown`` ones that lead to later years only, and to no later one."""
    above: dict[str, set[bool]] = {}
    for year in (f"{number[:2]}{rest:02d}" for rest in range(100)):
        if year.startswith(number[:shown]):
            above.setdefault(year[shown : shown + width], set()).add(year > number)
    right = [token for token, found in above.items() if found == {True}]
    wrong = [token for token, found in above.items() if found == {False}]
    return right, wrong


def _early(number: str, year: Year) -> str:
    """Step 4: the year that the corrupted prompt starts from."""
    visible = max(len(year.shown.strip()), 2)
    return number[:visible] + "01"[visible - 2 :]


def _alike(years: dict[str, Year]) -> dict[str, Year]:
    """Only the commonest way to split a year is used, so that all examples ask the same thing.

    GPT-2 has most years as two tokens of two digits, but " 1200" as one and " 1109" as " 110", "9".
    """
    ways = Counter((len(year.shown), year.width) for year in years.values())
    common = max(ways, key=lambda way: (ways[way], way))
    return {
        number: year if (len(year.shown), year.width) == common else replace(year, problem=UNUSUAL)
        for number, year in years.items()
    }


def _note(years: Mapping[str, Year]) -> str:
    number, year = next((item for item in years.items() if not item[1].problem), ("", Year("", 0, (), ())))
    digits = f"{year.width} digit{'s' if year.width != 1 else ''} of the year"
    return f"the next token holds {digits}: after {number!r} the prompt ends with {year.shown!r}"


KIND = register(
    TaskKind(
        name="greater-than",
        summary="Later years: 'The war lasted from the year 1752 to the year 17' -> 53 and above",
        metric="probability-difference",
        citation="Hanna et al. 2023, How Does GPT-2 Compute Greater-Than?, arXiv:2305.00586",
        candidates=candidates,
        changed="year",
    )
)
