"""The registry of built-in tasks. Each is a function that returns all pairs of one split."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, TypeVar

from gradpath import defaults
from gradpath.errors import UsageError
from gradpath.model.tokenizer import Tokenizer
from gradpath.registry import Registry, owner_of
from gradpath.tasks.pairs import Candidates, Combinations, Source

Item = TypeVar("Item")
# From a split, "train", "test" or "reworded", and a tokenizer to all pairs of the split. ``usable_pairs`` later drops
# and counts those that the tokenizer cannot represent.
MakeCandidates = Callable[[str, Tokenizer], Candidates]


@dataclass(frozen=True)
class NamedTask:
    """One row of ``gradpath ls tasks``, and the function that makes the pairs of the task."""

    name: str
    summary: str
    metric: str
    citation: str
    changed: str
    candidates: MakeCandidates
    reworded: bool
    answers: tuple[str, str] | None = None


TASKS = Registry[NamedTask]("task", [f"{__name__}.prompts"])
PAPER_TASKS = ("ioi", "sva", "gender-bias", "capital-country", "hypernymy", "greater-than")


def named_task(
    name: str,
    summary: str,
    *,
    metric: str,
    citation: str,
    changed: str,
    reworded: bool = False,
    answers: tuple[str, str] | None = None,
) -> Callable[[MakeCandidates], MakeCandidates]:
    """Register a function of a split and a tokenizer that returns the ``Candidates`` as a task.

    Args:
        name: The name of the task.
        summary: One line for ``gradpath ls tasks``.
        metric: The name of the task's metric.
        citation: The source of the task.
        changed: The name of the part of a prompt in which the two prompts of a pair differ, such as "subject".
        reworded: Whether the task has other templates, for the split "reworded".
        answers: What the correct and the wrong answer are called, if the prompt contains them.
    """

    def register(candidates: MakeCandidates) -> MakeCandidates:
        task = NamedTask(name, summary, metric, citation, changed, candidates, reworded, answers)
        TASKS.add(name, task, owner_of(candidates))
        return candidates

    return register


def describe_tasks() -> list[dict[str, str]]:
    """Name, summary, metric and citation of every built-in task, for tables and JSON."""
    fields = ("name", "summary", "metric", "citation")
    return [{field: getattr(task, field) for field in fields} for task in TASKS.values()]


def read_built_in(name: str, split: str, tokenizer: Tokenizer) -> Source:
    """The pairs of a built-in task; the split "all" joins both halves, without pairs across them."""
    task = TASKS.find(name)
    if split == defaults.REWORDED and not task.reworded:
        known = ", ".join(other.name for other in TASKS.values() if other.reworded)
        raise UsageError(f"the task {name!r} has no other templates, which {known} have: take the split 'test'.")
    if split == "all":
        train, test = (task.candidates(half, tokenizer) for half in ("train", "test"))
        a, b = train.pairs, test.pairs
        pairs = Combinations((len(a) + len(b),), lambda i: a[i] if i < len(a) else b[i - len(a)])
        candidates = Candidates(pairs, train.notes)
    else:
        candidates = task.candidates(split, tokenizer)
    facts = {"citation": task.citation, "changed": task.changed}
    return Source(name, task.metric, candidates, facts)


def templates(task: str, split: str, usual: Sequence[str]) -> Sequence[str]:
    """The templates of a split: the usual ones, or for "reworded" those that no other split has."""
    return read_json("reworded.json")[task] if split == defaults.REWORDED else usual


def read_text(file: str) -> str:
    """The text of a data file of the built-in tasks."""
    return (resources.files(__name__) / "data" / file).read_text(encoding="utf-8")


def read_json(file: str) -> Any:
    """The content of a JSON file of the built-in tasks."""
    return json.loads(read_text(file))


def half(items: Sequence[Item], split: str) -> Sequence[Item]:
    """Every other entry of a data file: the 1st, 3rd, ... for train, the 2nd, 4th, ... for test.

    This depends on neither seed nor tokenizer, so held-out entries are the same in all runs, and a file that grows at
    its end keeps its halves. The split "reworded" has the words of the test split.
    """
    return items[0::2] if split == "train" else items[1::2]
