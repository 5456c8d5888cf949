"""Arithmetic with two numbers of two digits, as in MIB's benchmark.

    clean      The sum of 13 and 25 is    -> 38
    corrupted  The sum of 61 and 14 is    (would be: 75)

Both operands change, as in MIB's ``random_counterfactual``. The prompt ends with a space and the answer has none, so
that tokenizers which split numbers into digits have the first digit as the answer, and others the whole number. A pair
whose answers begin with the same token is dropped. No two operands, in either order, are in both splits.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks.builtin import named_task, read_json, templates
from gradpath.tasks.pairs import Candidates, Combinations, Pair

_CITATION = "Mueller et al. 2025, MIB: A Mechanistic Interpretability Benchmark, arXiv:2504.13151"
_NUMBERS = range(10, 100)


@named_task(
    "arithmetic-addition",
    "Sums of two numbers: 'The sum of 13 and 25 is ' -> 38",
    metric="logit-difference",
    citation=_CITATION,
    reworded=True,
    changed="operands",
)
def addition(split: str, tokenizer: Tokenizer) -> Candidates:
    """Every template with every two pairs of operands of the split."""
    return _candidates("arithmetic-addition", split, lambda x, y: x + y)


@named_task(
    "arithmetic-subtraction",
    "Differences of two numbers: 'The difference between 48 and 25 is ' -> 23",
    metric="logit-difference",
    citation=_CITATION,
    reworded=True,
    changed="operands",
)
def subtraction(split: str, tokenizer: Tokenizer) -> Candidates:
    """Every template with every two pairs of operands of the split, the larger one first."""
    return _candidates("arithmetic-subtraction", split, lambda x, y: x - y)


def _candidates(task: str, split: str, result: Callable[[int, int], int]) -> Candidates:
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
