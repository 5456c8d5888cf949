"""What the library knows of a built-in task before any model is there.

The built-in tasks by the name that users type.

Where a task's pairs come from: the library's own tasks, or the user's data.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from gradpath.model.tokenizer import Tokenizer
from gradpath.registry import Registry, owner_of
from gradpath.tasks.pairs import Candidates, Joined, Source


@dataclass(frozen=True)
class TaskKind:
    """One row of ``gradpath ls tasks``, and the function that makes the task's pairs.

    ``candidates`` takes a split, "train" or "test", and a tokenizer, and returns all pairs of that
    half. Pairs that the tokenizer cannot carry may be among them: they are dropped, and counted,
    later and in one place. ``changed`` names the part of a prompt in which a pair differs.
    """

    name: str
    summary: str
    metric: str
    citation: str
    candidates: Callable[[str, Tokenizer], Candidates]
    changed: str


def read_text(file: str) -> str:
    """The text of one of the task layer's own data files."""
    return (resources.files(__name__) / "data" / file).read_text(encoding="utf-8")


def read_json(file: str) -> Any:
    """The content of one of the task layer's own JSON files."""
    return json.loads(read_text(file))


TASKS = Registry[TaskKind](
    "task",
    [
        f"{__name__}.{module}"
        for module in ("ioi", "sva", "gender_bias", "capital_country", "hypernymy", "greater_than")
    ],
)


def register(kind: TaskKind) -> TaskKind:
    """Add a task to those that users can name."""
    return TASKS.add(kind.name, kind, owner_of(kind.candidates))


def describe_tasks() -> list[dict[str, str]]:
    """Name, summary, metric and citation of every built-in task, for tables and JSON."""
    return [
        {"name": kind.name, "summary": kind.summary, "metric": kind.metric, "citation": kind.citation}
        for kind in TASKS.values()
    ]


def built_in(name: str, split: str, tokenizer: Tokenizer) -> Source:
    """One of the library's own tasks; ``all`` is both halves, not pairs across them."""
    kind = TASKS.find(str(name))
    if split == "all":
        train, test = (kind.candidates(part, tokenizer) for part in ("train", "test"))
        found = Candidates(Joined(train.pairs, test.pairs), train.notes)
    else:
        found = kind.candidates(split, tokenizer)
    about = {"source": "gradpath", "citation": kind.citation, "changed": kind.changed}
    return Source(name, kind.metric, found, about)
