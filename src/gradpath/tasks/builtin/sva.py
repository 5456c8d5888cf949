"""Subject-verb agreement: the verb agrees with the subject in number, not with the words between them.

    clean      The song that the chef likes    -> is, has, plays, ...
    corrupted  The songs that the chef likes   (would be: are, have, play, ...)

Right answers are all verb forms of the data file that agree with the clean subject, wrong ones those that agree with
the corrupted one. A verb counts only if both of its forms are single tokens, so that both sums run over the same verbs.
No noun is in both splits.
"""

from __future__ import annotations

from gradpath.errors import InputError
from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks.builtin import half, named_task, read_json, templates
from gradpath.tasks.pairs import Candidates, Combinations, Pair


@named_task(
    "sva",
    "Subject-verb agreement: 'The song that the chef likes' -> is, not are",
    metric="probability-difference",
    citation="Newman et al. 2021, Refining Targeted Syntactic Evaluation, arXiv:2104.09635",
    reworded=True,
    changed="subject",
)
def candidates(split: str, tokenizer: Tokenizer) -> Candidates:
    """Every phrase with every two nouns of the split, in both numbers."""
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
