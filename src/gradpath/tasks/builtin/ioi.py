"""Indirect object identification: the receiver is the person who is not the giver.

    clean      When Amy and Laura got a snack at the house, Laura decided to give it to   -> Amy
    corrupted  When Amy and Laura got a snack at the house, Nicholas decided to give it to

The second mention of the subject becomes a third name, after which both first names are about equally likely (appendix
of the paper, after Wang et al.). The indirect object is first in half of the pairs and second in the other half (ABBA
and BABA). No name is in both splits.
"""

from __future__ import annotations

from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks.builtin import half, named_task, read_json, templates
from gradpath.tasks.pairs import Candidates, Combinations, Pair


@named_task(
    "ioi",
    "Indirect object: 'When Amy and Laura ..., Laura gave it to' -> Amy",
    metric="logit-difference",
    citation="Wang et al. 2023, Interpretability in the Wild, arXiv:2211.00593",
    reworded=True,
    changed="subject again",
    answers=("indirect object", "subject"),
)
def candidates(split: str, tokenizer: Tokenizer) -> Candidates:
    """Every template, order, place and object with every three names of the split."""
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
