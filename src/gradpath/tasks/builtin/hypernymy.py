"""Hypernymy: the kind of thing that a thing is.

    clean      , gemstones and other        -> stones, jewels
    corrupted  , vice presidents and other  (would be: officials, leaders)

Right answers are all names of the clean word's kind, wrong ones all names of the corrupted word's kind. Two kinds that
share a name never make a pair. No kind, and so no word, is in both splits.
"""

from __future__ import annotations

from itertools import permutations, product

from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks.builtin import half, named_task, read_json, templates
from gradpath.tasks.pairs import Candidates, Combinations, Pair


@named_task(
    "hypernymy",
    "Kinds of things: ', gemstones and other' -> stones, jewels",
    metric="probability-difference",
    citation="Hanna et al. 2024, Have Faith in Faithfulness, arXiv:2403.17806",
    reworded=True,
    changed="word",
)
def candidates(split: str, tokenizer: Tokenizer) -> Candidates:
    """Every template with every two words of the split whose kinds share no name."""
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
