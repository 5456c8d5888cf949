"""Where a task's pairs come from: the library's own tasks, or the user's data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradpath.errors import unknown
from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks.pair import Candidates, Joined
from gradpath.tasks.registry import TASKS


@dataclass(frozen=True)
class Source:
    """Pairs on offer, the name they go by, the metric that fits them, and what files record of them."""

    name: str
    metric: str
    found: Candidates
    about: Mapping[str, Any] = field(default_factory=dict)


def built_in(name: str, split: str, tokenizer: Tokenizer) -> Source:
    """One of the library's own tasks; ``all`` is both halves, not pairs across them."""
    kind = TASKS.get(name)
    if kind is None:
        raise unknown("task", str(name), TASKS)
    if split == "all":
        train, test = (kind.candidates(part, tokenizer) for part in ("train", "test"))
        found = Candidates(Joined(train.pairs, test.pairs), train.notes)
    else:
        found = kind.candidates(split, tokenizer)
    about = {"source": "gradpath", "citation": kind.citation, "changed": kind.changed}
    return Source(name, kind.metric, found, about)
