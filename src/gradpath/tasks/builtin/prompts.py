"""The built-in tasks: the six of the paper, and MIB's that need no other file. No word is in both splits."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations, product

from gradpath.errors import InputError
from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks.builtin import half, named_task, read_json, read_text, templates
from gradpath.tasks.pairs import Candidates, Combinations, Pair

HE, SHE = " he", " she"
NO_TOKENS = "the year is not in the tokenizer's vocabulary"
ONE_SIDED = "no next token is right, or none is wrong"
UNUSUAL = "the tokenizer splits this year unlike most years"
_MIB = "Mueller et al. 2025, MIB: A Mechanistic Interpretability Benchmark, arXiv:2504.13151"
_NUMBERS = range(10, 100)
LETTERS = "ABCD"


@named_task(
    "ioi",
    "Indirect object: 'When Amy and Laura ..., Laura gave it to' -> Amy",
    metric="logit-difference",
    citation="Wang et al. 2023, Interpretability in the Wild, arXiv:2211.00593",
    reworded=True,
    changed="subject again",
    answers=("indirect object", "subject"),
)
def ioi(split: str, tokenizer: Tokenizer) -> Candidates:
    """Indirect object identification: the receiver is the person who is not the giver.

        clean      When Amy and Laura got a snack at the house, Laura decided to give it to   -> Amy
        corrupted  When Amy and Laura got a snack at the house, Nicholas decided to give it to

    The second mention of the subject becomes a third name, after which both first names are about equally likely.
    The indirect object is first in half of the pairs and second in the other half (ABBA and BABA).
    """
    facts = read_json("ioi.json")
    names = half(facts["names"], split)
    texts, places, objects = templates("ioi", split, facts["templates"]), facts["places"], facts["objects"]

    def build(template: int, order: int, place: int, thing: int, i: int, j: int, k: int) -> Pair:
        left = list(names)
        receiver, subject, third = left.pop(i), left.pop(j), left.pop(k)
        first, second = (receiver, subject) if order == 0 else (subject, receiver)
        words = {"A": first, "B": second, "place": places[place], "object": objects[thing]}
        return Pair(
            clean=texts[template].format(S=subject, **words),
            corrupted=texts[template].format(S=third, **words),
            right=(f" {receiver}",),
            wrong=(f" {subject}",),
        )

    count = len(names)
    sizes = (len(texts), 2, len(places), len(objects), count, count - 1, count - 2)
    return Candidates(Combinations(sizes, build))


@named_task(
    "sva",
    "Subject-verb agreement: 'The song that the chef likes' -> is, not are",
    metric="probability-difference",
    citation="Newman et al. 2021, Refining Targeted Syntactic Evaluation, arXiv:2104.09635",
    reworded=True,
    changed="subject",
)
def sva(split: str, tokenizer: Tokenizer) -> Candidates:
    """Subject-verb agreement: the verb agrees with the subject in number, not with the words between them.

        clean      The song that the chef likes    -> is, has, plays, ...
        corrupted  The songs that the chef likes   (would be: are, have, play, ...)

    Correct answers are all verb forms of the data file that agree with the clean subject, wrong ones those that agree
    with the corrupted one. A verb counts only if both of its forms are single tokens, so that both sums run over the
    same verbs.
    """
    facts = read_json("sva.json")
    nouns, acts = half(facts["nouns"], split), facts["acts"]
    texts = templates("sva", split, facts["templates"])
    # Each template with each verb that it has a place for; templates without a place come once.
    phrases = [(text, act) for text in texts for act in (acts if "{acts}" in text else acts[:1])]
    forms, note = verb_forms(tokenizer)

    def build(phrase: int, number: int, other_number: int, i: int, j: int) -> Pair:
        left = list(nouns)
        subject, other = left.pop(i), left.pop(j)
        template, act = phrases[phrase]
        words = {"other": other[other_number], "acts": act[other_number]}
        return Pair(
            clean=template.format(subject=subject[number], **words),
            corrupted=template.format(subject=subject[1 - number], **words),
            right=forms[number],
            wrong=forms[1 - number],
        )

    sizes = (len(phrases), 2, 2, len(nouns), len(nouns) - 1)
    return Candidates(Combinations(sizes, build), (note,))


def verb_forms(tokenizer: Tokenizer) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], str]:
    """The singular and the plural verb forms that count under a tokenizer, and a note on how many there are."""
    verbs = read_json("sva.json")["verbs"]
    tokens = tokenizer.continuations([f" {form}" for verb in verbs for form in verb])
    single = [len(ids) == 1 for ids in tokens]
    usable = [verb for verb, *both in zip(verbs, single[0::2], single[1::2], strict=True) if all(both)]
    if not usable:
        raise InputError(
            "subject-verb agreement needs verbs whose singular and plural are single tokens: this "
            "model's tokenizer has none of those in the data file. Use another task."
        )
    singular, plural = (tuple(f" {verb[number]}" for verb in usable) for number in (0, 1))
    return (singular, plural), f"{len(usable)} of {len(verbs)} verbs count: both forms are single tokens"


@named_task(
    "gender-bias",
    "Gender bias of professions: 'The banker wished that' -> he, not she",
    metric="logit-difference",
    citation="Vig et al. 2020, Investigating Gender Bias Using Causal Mediation Analysis, arXiv:2004.12265; "
    "Chintam et al. 2023, Identifying and Adapting Components Responsible for Gender Bias, arXiv:2310.12611",
    reworded=True,
    changed="person",
)
def gender_bias(split: str, tokenizer: Tokenizer) -> Candidates:
    """Gender bias: the pronoun that a model predicts for a profession.

        clean      The banker wished that   -> he
        corrupted  The woman wished that    (would be: she)

    The profession becomes "woman" if it is stereotyped as male and "man" if it is stereotyped as female. The correct
    answer is the pronoun of the stereotype.
    """
    facts = read_json("gender_bias.json")
    people = [(person, "woman", HE, SHE) for person in half(facts["male"], split)]
    people += [(person, "man", SHE, HE) for person in half(facts["female"], split)]
    return Candidates(
        [
            Pair(template.format(person=person), template.format(person=opposite), (right,), (wrong,))
            for template in templates("gender-bias", split, facts["templates"])
            for person, opposite, right, wrong in people
        ]
    )


@named_task(
    "capital-country",
    "Countries of capitals: 'Kabul, the capital of' -> Afghanistan",
    metric="logit-difference",
    citation="Hanna et al. 2024, Have Faith in Faithfulness, arXiv:2403.17806",
    reworded=True,
    changed="capital",
)
def capital_country(split: str, tokenizer: Tokenizer) -> Candidates:
    """Capitals and countries: the country that a capital belongs to.

        clean      Kabul, the capital of    -> Afghanistan
        corrupted  London, the capital of   (would be: the United Kingdom)

    The answer is the first token of the country. Countries that are named with an article have it in the prompt
    ("London, the capital of the"), and two countries make a pair only if both or neither have one. The data file leaves
    out capitals that contain the name of their country, such as Mexico City.
    """
    rows = half(list(csv.DictReader(read_text("capital_country.csv").splitlines())), split)
    texts = templates("capital-country", split, ["{capital}, the capital of"])
    pairs = []
    for text, (clean, corrupted) in product(texts, permutations(rows, 2)):
        if clean["article"] == corrupted["article"]:
            prompt = f"{text} {clean['article']}".rstrip()
            right, wrong = (f" {clean['country']}",), (f" {corrupted['country']}",)
            pairs.append(Pair(prompt.format(**clean), prompt.format(**corrupted), right, wrong, by_first=True))
    return Candidates(pairs)


@named_task(
    "hypernymy",
    "Kinds of things: ', gemstones and other' -> stones, jewels",
    metric="probability-difference",
    citation="Hanna et al. 2024, Have Faith in Faithfulness, arXiv:2403.17806",
    reworded=True,
    changed="word",
)
def hypernymy(split: str, tokenizer: Tokenizer) -> Candidates:
    """Hypernymy: the kind that a thing belongs to.

        clean      , gemstones and other        -> stones, jewels
        corrupted  , vice presidents and other  (would be: officials, leaders)

    Correct answers are all names of the clean word's kind, wrong ones all names of the corrupted word's kind. Two kinds
    that share a name never make a pair. No kind is in both splits.
    """
    facts = read_json("hypernymy.json")
    texts = templates("hypernymy", split, facts["templates"])
    names = [tuple(f" {name}" for name in kind["kinds"]) for kind in half(facts["kinds"], split)]
    words = [kind["examples"] for kind in half(facts["kinds"], split)]
    couples = [
        (word, other, a, b)
        for a, b in permutations(range(len(names)), 2)
        if not set(names[a]) & set(names[b])
        for word, other in product(words[a], words[b])
    ]

    def build(template: int, couple: int) -> Pair:
        word, other, a, b = couples[couple]
        clean, corrupted = (texts[template].format(example=example) for example in (word, other))
        return Pair(clean, corrupted, names[a], names[b])

    return Candidates(Combinations((len(texts), len(couples)), build))


@dataclass(frozen=True)
class Year:
    """A year under a tokenizer: the text at the end of the prompt, and the next tokens that are correct and wrong."""

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
def greater_than(split: str, tokenizer: Tokenizer) -> Candidates:
    """Greater-than: the end of an event is later than its beginning.

        clean      The war lasted from the year 1752 to the year 17   -> 53, 54, ..., 99
        corrupted  The war lasted from the year 1701 to the year 17

    The answer is the next token. How many digits of a year that is depends on the tokenizer. For a first year y of the
    century cc00 to cc99:

    1. The prompt ends with the digits of y up to the first token border at or after the century: "17" for tokens of two
       digits and of one, "175" if the tokens are "175" and "2", and nothing if a year is one token.
    2. The next token has as many digits as the token at that place in y itself: "52", "5", "2" or " 1752".
    3. A next token is correct if all years of the century that continue with it are later than y, wrong if none is, and
       neither if some are. After 1752, "53" to "99" are correct and "00" to "52" wrong; with tokens of one digit, "6"
       to "9" are correct, "0" to "4" wrong, and "5" is neither (1753, but also 1751).
    4. In the corrupted prompt, the digits of y that the ending does not show are 01 (or 1, if it hides one digit).

    Years that the tokenizer splits unlike most years are dropped (" 1200" is one token for GPT-2). The pairs are every
    noun of the split with every year of the centuries except the first two and the last.
    """
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

    number, year = next((item for item in years.items() if not item[1].problem), ("", Year("", 0, (), ())))
    digits = f"{year.width} digit{'s' if year.width != 1 else ''} of the year"
    note = f"the next token holds {digits}: after {number!r} the prompt ends with {year.shown!r}"
    return Candidates(Combinations((len(nouns), len(numbers)), build), (note,))


def read_years(numbers: Sequence[str], tokenizer: Tokenizer) -> dict[str, Year]:
    """Each four-digit year under the tokenizer."""
    tokens = tokenizer.continuations([f" {number}" for number in numbers])
    text = {i: tokenizer.decode([i]) for i in sorted({i for ids in tokens for i in ids})}
    return {number: _year(number, [text[i] for i in ids]) for number, ids in zip(numbers, tokens, strict=True)}


def _year(number: str, pieces: list[str]) -> Year:
    """Steps 1 to 3 of the rule, for a year that is split into these pieces."""
    if "".join(pieces) != f" {number}":
        return Year("", 0, (), (), NO_TOKENS)
    borders = {len("".join(pieces[:at]).strip()): at for at in range(len(pieces))}
    # The first token border at or after the century, else the last one before it.
    digits = min((border for border in borders if border >= 2), default=max(borders))
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
    """The next ``width`` digits after the ``shown`` ones: those of later years only, and those of no later year."""
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


@named_task(
    "arithmetic-addition",
    "Sums of two numbers: 'The sum of 13 and 25 is ' -> 38",
    metric="logit-difference",
    citation=_MIB,
    reworded=True,
    changed="operands",
)
def addition(split: str, tokenizer: Tokenizer) -> Candidates:
    """Every template with every two pairs of operands of the split."""
    return _arithmetic("arithmetic-addition", split, lambda x, y: x + y)


@named_task(
    "arithmetic-subtraction",
    "Differences of two numbers: 'The difference between 48 and 25 is ' -> 23",
    metric="logit-difference",
    citation=_MIB,
    reworded=True,
    changed="operands",
)
def subtraction(split: str, tokenizer: Tokenizer) -> Candidates:
    """Every template with every two pairs of operands of the split, the larger one first."""
    return _arithmetic("arithmetic-subtraction", split, lambda x, y: x - y)


def _arithmetic(task: str, split: str, result: Callable[[int, int], int]) -> Candidates:
    """Arithmetic with two numbers of two digits, as in MIB's benchmark.

        clean      The sum of 13 and 25 is    -> 38
        corrupted  The sum of 61 and 14 is    (would be: 75)

    Both operands change, as in MIB's ``random_counterfactual``. The prompt ends with a space and the answer has none,
    so that tokenizers which split numbers into digits have the first digit as the answer, and others the whole number.
    A pair whose answers begin with the same token is dropped. No two operands, in either order, are in both splits.
    """
    texts = templates(task, split, read_json("arithmetic.json")[task])
    # A chequerboard of three by three: the sums and last digits of both splits are alike.
    side = 0 if split == "train" else 1
    operands = [(x, y) for x, y in product(_NUMBERS, repeat=2) if (x // 3 + y // 3) % 2 == side and result(x, y) > 0]

    def build(template: int, i: int, j: int) -> Pair:
        (x, y), (other_x, other_y) = operands[i], operands[j + (j >= i)]
        return Pair(
            clean=texts[template].format(x=x, y=y),
            corrupted=texts[template].format(x=other_x, y=other_y),
            right=(str(result(x, y)),),
            wrong=(str(result(other_x, other_y)),),
            by_first=True,
        )

    return Candidates(Combinations((len(texts), len(operands), len(operands) - 1), build))


@named_task(
    "mcqa",
    "Multiple choice: 'A box is brown. What color is a box? A. gray B. brown ...' -> B",
    metric="logit-difference",
    citation=f"{_MIB}; Wiegreffe et al. 2024, Answer, Assemble, Ace, arXiv:2407.15018",
    reworded=True,
    changed="symbols",
)
def mcqa(split: str, tokenizer: Tokenizer) -> Candidates:
    r"""Multiple choice: the letter in front of the correct color, as in MIB's benchmark (its copycolors task).

        clean      Question: A box is brown. What color is a box?\nA. gray\nB. brown\nC. red\nD. white\nAnswer:  -> B
        corrupted  Question: A box is brown. What color is a box?\nP. gray\nQ. brown\nR. red\nS. white\nAnswer:  (Q)

    The corrupted prompt has other letters and is otherwise the same (MIB's ``symbol_counterfactual``). So the circuit
    finds the letter of the correct answer, not the answer itself. No thing is in both splits.
    """
    facts = read_json("mcqa.json")
    things, texts = half(facts["things"], split), templates("mcqa", split, [facts["question"]])
    colors = list(dict.fromkeys(color for _, color in facts["things"]))
    wrong = list(combinations(range(len(colors) - 1), len(LETTERS) - 1))

    def build(text: int, thing: int, others: int, place: int, letters: int) -> Pair:
        name, color = things[thing]
        other_colors = [other for other in colors if other != color]
        choices = [other_colors[i] for i in wrong[others]]
        choices = choices[others % 3 :] + choices[: others % 3]  # or colors would come in one order only
        choices.insert(place, color)
        question = texts[text].format(thing=name[0].upper() + name[1:], again=name, color=color)

        def prompt(symbols: str) -> str:
            lines = [f"{symbol}. {choice}" for symbol, choice in zip(symbols, choices, strict=True)]
            return "\n".join([f"Question: {question}", *lines, "Answer:"])

        other = facts["symbols"][letters]
        return Pair(prompt(LETTERS), prompt(other), (f" {LETTERS[place]}",), (f" {other[place]}",))

    sizes = (len(texts), len(things), len(wrong), len(LETTERS), len(facts["symbols"]))
    return Candidates(Combinations(sizes, build))
