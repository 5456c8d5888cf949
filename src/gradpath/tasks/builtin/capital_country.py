"""Capitals and countries: the country that a capital belongs to.

    clean      Kabul, the capital of    -> Afghanistan
    corrupted  London, the capital of   (would be: the United Kingdom)

The answer is the first token of the country. Countries that are named with an article get it in the
prompt ("London, the capital of the"), and only two countries of the same kind make a pair. Left out
of the data file are capitals that name their country, such as Mexico City. No country is in both splits.
"""

from __future__ import annotations

import csv
from itertools import permutations

from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks.builtin import TaskKind, read_text, register
from gradpath.tasks.draw import half
from gradpath.tasks.pairs import Candidates, Pair


def candidates(split: str, tokenizer: Tokenizer) -> Candidates:
    """Every two countries of the split, each way round."""
    rows = half(list(csv.DictReader(read_text("capital_country.csv").splitlines())), split)
    return Candidates([_pair(a, b) for a, b in permutations(rows, 2) if a["article"] == b["article"]])


def _pair(clean: dict[str, str], corrupted: dict[str, str]) -> Pair:
    ending = f", the capital of {clean['article']}".rstrip()
    return Pair(
        clean=clean["capital"] + ending,
        corrupted=corrupted["capital"] + ending,
        right=(f" {clean['country']}",),
        wrong=(f" {corrupted['country']}",),
        by_first=True,
    )


KIND = register(
    TaskKind(
        name="capital-country",
        summary="Countries of capitals: 'Kabul, the capital of' -> Afghanistan",
        metric="logit-difference",
        citation="Hanna et al. 2024, Have Faith in Faithfulness, arXiv:2403.17806",
        candidates=candidates,
        changed="capital",
    )
)
