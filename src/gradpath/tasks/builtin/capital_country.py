"""Capitals and countries: the country that a capital belongs to.

    clean      Kabul, the capital of    -> Afghanistan
    corrupted  London, the capital of   (would be: the United Kingdom)

The answer is the first token of the country. Countries that are named with an article have it in the prompt ("London,
the capital of the"), and two countries make a pair only if both or neither have one. The data file leaves out capitals
that contain the name of their country, such as Mexico City. No country is in both splits.
"""

from __future__ import annotations

import csv
from itertools import permutations

from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks.builtin import half, named_task, read_text, templates
from gradpath.tasks.pairs import Candidates, Pair


@named_task(
    "capital-country",
    "Countries of capitals: 'Kabul, the capital of' -> Afghanistan",
    metric="logit-difference",
    citation="Hanna et al. 2024, Have Faith in Faithfulness, arXiv:2403.17806",
    reworded=True,
    changed="capital",
)
def candidates(split: str, tokenizer: Tokenizer) -> Candidates:
    """Every ordered pair of countries of the split."""
    rows = half(list(csv.DictReader(read_text("capital_country.csv").splitlines())), split)
    alike = [(a, b) for a, b in permutations(rows, 2) if a["article"] == b["article"]]
    texts = templates("capital-country", split, ["{capital}, the capital of"])
    return Candidates([_pair(text, a, b) for text in texts for a, b in alike])


def _pair(template: str, clean: dict[str, str], corrupted: dict[str, str]) -> Pair:
    text = f"{template} {clean['article']}".rstrip()
    return Pair(
        clean=text.format(capital=clean["capital"]),
        corrupted=text.format(capital=corrupted["capital"]),
        right=(f" {clean['country']}",),
        wrong=(f" {corrupted['country']}",),
        by_first=True,
    )
