"""Answers that a file does not spell out, read from its prompts.

Each function returns None where the prompts do not say: the row is then dropped, and counted.
"""

from __future__ import annotations

import re

from gradpath.tasks.gender_bias import HE, SHE


def ioi_names(clean: str, corrupted: str) -> tuple[str, str] | None:
    """The indirect object and the subject of an IOI prompt.

    The subject is the name whose second mention the corrupted prompt replaces; the indirect object is
    joined to its first mention by "and".

    >>> ioi_names("Amy and Laura met, and Laura gave it to", "Amy and Laura met, and Bob gave it to")
    ('Amy', 'Laura')
    """
    changed = _changed(clean, corrupted)
    if changed is None or not (subject := re.sub(r"\W", "", changed[0])):
        return None
    before = re.search(rf"(\w+) and {subject}\b", clean)
    after = re.search(rf"\b{subject} and (\w+)", clean)
    found = [match[1] for match in (before, after) if match and match[1][0].isupper() and match[1] != subject]
    return (found[0], subject) if len(found) == 1 else None


def pronouns(clean: str, corrupted: str) -> tuple[str, str] | None:
    """The right and the wrong pronoun of a gender-bias prompt: "man" stands in for a "she", and conversely.

    >>> pronouns("The poet was promoted because", "The man was promoted because")
    (' she', ' he')
    """
    changed = _changed(clean, corrupted)
    return {"man": (SHE, HE), "woman": (HE, SHE)}.get(changed[1]) if changed else None


def first_year(clean: str) -> tuple[str, int] | None:
    """The first year of a greater-than prompt and how many digits of the second one it shows.

    >>> first_year("The contract lasted from the year 1352 to the year 13")
    ('1352', 2)
    """
    years = re.findall(r"(?<!\d)\d{4}(?!\d)", clean)
    ending = re.search(r"(?<!\d)\d{0,3}$", clean)
    return (years[0], len(ending[0])) if years and ending else None


def _changed(clean: str, corrupted: str) -> tuple[str, str] | None:
    """The one word in which two prompts differ, as it stands in each."""
    pairs = list(zip(clean.split(), corrupted.split(), strict=False))
    changed = [pair for pair in pairs if pair[0] != pair[1]]
    same_length = len(clean.split()) == len(corrupted.split())
    return changed[0] if same_length and len(changed) == 1 else None
