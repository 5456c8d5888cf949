"""What the library knows of a built-in task before any model is there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks.pair import Candidates


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
    return (resources.files("gradpath.tasks") / "data" / file).read_text(encoding="utf-8")


def read_json(file: str) -> Any:
    """The content of one of the task layer's own JSON files."""
    return json.loads(read_text(file))
