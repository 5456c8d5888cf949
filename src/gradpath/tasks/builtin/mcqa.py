r"""Multiple choice: the letter in front of the right color, as in MIB's benchmark (its copycolors task).

    clean      Question: A box is brown. What color is a box?\nA. gray\nB. brown\nC. red\nD. white\nAnswer:  -> B
    corrupted  Question: A box is brown. What color is a box?\nP. gray\nQ. brown\nR. red\nS. white\nAnswer:  (Q)

The corrupted prompt has other letters and is otherwise the same (MIB's ``symbol_counterfactual``): the circuit of the
difference is that which finds the letter of the right answer, not that which finds the answer. No thing is in both
splits. ``arc`` reads questions of the user's own in the same form.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks.builtin import half, named_task, read_json, templates
from gradpath.tasks.pairs import Candidates, Combinations, Pair

FIRST = "ABCDEFGH"
CHOICES = 4


def prompt(question: str, choices: Sequence[str], symbols: str) -> str:
    """A question with its choices, each behind a symbol."""
    lines = [f"{symbol}. {choice}" for symbol, choice in zip(symbols, choices, strict=True)]
    return "\n".join([f"Question: {question}", *lines, "Answer:"])


@named_task(
    "mcqa",
    "Multiple choice: 'A box is brown. What color is a box? A. gray B. brown ...' -> B",
    metric="logit-difference",
    citation="Mueller et al. 2025, MIB: A Mechanistic Interpretability Benchmark, arXiv:2504.13151; "
    "Wiegreffe et al. 2024, Answer, Assemble, Ace, arXiv:2407.15018",
    reworded=True,
    changed="symbols",
)
def candidates(split: str, tokenizer: Tokenizer) -> Candidates:
    """Every thing of the split with every three other colors, the right one at every place, and all other letters."""
    facts = read_json("mcqa.json")
    things, texts = half(facts["things"], split), templates("mcqa", split, [facts["question"]])
    colors = list(dict.fromkeys(color for _, color in facts["things"]))
    wrong = list(combinations(range(len(colors) - 1), CHOICES - 1))

    def build(text: int, thing: int, others: int, place: int, letters: int) -> Pair:
        name, color = things[thing]
        left = [other for other in colors if other != color]
        choices = [left[i] for i in wrong[others]]
        choices = choices[others % 3 :] + choices[: others % 3]  # or colors would come in one order only
        choices.insert(place, color)
        question = texts[text].format(thing=name[0].upper() + name[1:], again=name, color=color)
        symbols = FIRST[:CHOICES], facts["symbols"][letters]
        clean, corrupted = (prompt(question, choices, each) for each in symbols)
        return Pair(clean, corrupted, (f" {symbols[0][place]}",), (f" {symbols[1][place]}",))

    sizes = (len(texts), len(things), len(wrong), CHOICES, len(facts["symbols"]))
    return Candidates(Combinations(sizes, build))
