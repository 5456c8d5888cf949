"""The tasks of MIB's benchmark that need no other file: arithmetic and multiple choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, product

from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks.builtin import half, named_task, read_json, templates
from gradpath.tasks.pairs import Candidates, Combinations, Pair

_MIB = "Mueller et al. 2025, MIB: A Mechanistic Interpretability Benchmark, arXiv:2504.13151"
_NUMBERS = range(10, 100)
FIRST = "ABCDEFGH"
CHOICES = 4


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


def prompt(question: str, choices: Sequence[str], symbols: str) -> str:
    """A question with its choices, each behind a symbol."""
    lines = [f"{symbol}. {choice}" for symbol, choice in zip(symbols, choices, strict=True)]
    return "\n".join([f"Question: {question}", *lines, "Answer:"])


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
    finds the letter of the correct answer, not the answer itself. No thing is in both splits. The layout "ARC" of
    users' data has the same form.

    The pairs: every thing of the split with every three other colors, the correct color at every place, and every set
    of other letters.
    """
    facts = read_json("mcqa.json")
    things, texts = half(facts["things"], split), templates("mcqa", split, [facts["question"]])
    colors = list(dict.fromkeys(color for _, color in facts["things"]))
    wrong = list(combinations(range(len(colors) - 1), CHOICES - 1))

    def build(text: int, thing: int, others: int, place: int, letters: int) -> Pair:
        name, color = things[thing]
        other_colors = [other for other in colors if other != color]
        choices = [other_colors[i] for i in wrong[others]]
        choices = choices[others % 3 :] + choices[: others % 3]  # or colors would come in one order only
        choices.insert(place, color)
        question = texts[text].format(thing=name[0].upper() + name[1:], again=name, color=color)
        symbols = FIRST[:CHOICES], facts["symbols"][letters]
        clean, corrupted = (prompt(question, choices, each) for each in symbols)
        return Pair(clean, corrupted, (f" {symbols[0][place]}",), (f" {symbols[1][place]}",))

    sizes = (len(texts), len(things), len(wrong), CHOICES, len(facts["symbols"]))
    return Candidates(Combinations(sizes, build))
