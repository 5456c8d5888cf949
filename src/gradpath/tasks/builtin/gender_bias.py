"""Gender bias: the pronoun that a model predicts for a profession.

    clean      The banker wished that   -> he
    corrupted  The woman wished that    (would be: she)

The profession becomes "woman" if it is stereotyped as male and "man" if it is stereotyped as female. The right answer
is the pronoun of the stereotype. No profession is in both splits.
"""

from __future__ import annotations

from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks.builtin import half, named_task, read_json, templates
from gradpath.tasks.pairs import Candidates, Pair

HE, SHE = " he", " she"


@named_task(
    "gender-bias",
    "Gender bias of professions: 'The banker wished that' -> he, not she",
    metric="logit-difference",
    citation="Vig et al. 2020, Investigating Gender Bias Using Causal Mediation Analysis, arXiv:2004.12265; "
    "Chintam et al. 2023, Identifying and Adapting Components Responsible for Gender Bias, arXiv:2310.12611",
    reworded=True,
    changed="person",
)
def candidates(split: str, tokenizer: Tokenizer) -> Candidates:
    """Every template with every profession of the split."""
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
