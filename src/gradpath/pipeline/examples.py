"""The examples of a recipe: those for attribution, those for evaluation, and what the user should know about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gradpath.errors import warn
from gradpath.model.tokenizer import prompt_ids
from gradpath.model.transformer import Transformer
from gradpath.recipe import Recipe
from gradpath.tasks.load import NOT_HELD_OUT, WARNING, draw_task, halves, one_pair
from gradpath.tasks.metrics import Metric
from gradpath.tasks.task import Task

Note = Callable[[str], None]  # shows a message to the user
FEW = 20  # pairs for attribution: with fewer, the user is told what to expect


def note_warnings(text: str) -> None:
    """Show those messages for the user that are warnings: all that Python calls show."""
    if text.startswith(WARNING):
        warn(text.removeprefix(WARNING))


def load_examples(
    model: Transformer,
    recipe: Recipe,
    *,
    data: Any = None,
    metric: str | Metric | None = None,
    note: Note = note_warnings,
) -> tuple[Task, Task]:
    """The examples for attribution and those for evaluation."""
    if isinstance(data, Task):
        return _halves(data, model, recipe, note)
    if recipe.clean is not None:
        task = one_pair(model, recipe, metric)
        for line in task.facts["notes"]:
            note(line)
        return task, task
    attributed = measured = draw_task(model, recipe, recipe.attributed_split, data=data, metric=metric)
    if recipe.measured_split != recipe.attributed_split and attributed.facts.get("held_out", True):
        measured = draw_task(model, recipe, recipe.measured_split, data=data, metric=metric)
    for line in notices(attributed, measured):
        note(line)
    return attributed, measured


def _halves(task: Task, model: Transformer, recipe: Recipe, note: Note) -> tuple[Task, Task]:
    """The examples of a ``Task`` for attribution and those for evaluation."""
    task = replace(task, name=recipe.task or task.name, recipe=None)  # its halves cannot be drawn again
    n = len(task) if recipe.examples is None else recipe.examples
    attributed_rows, held_out_rows = halves(map(tuple, prompt_ids(task.clean, model.tokenizer)))
    if recipe.split == "all" or not held_out_rows:
        if recipe.split != "all":
            note(NOT_HELD_OUT)
        return (task[:n],) * 2
    attributed, held_out = task.take(attributed_rows[:n]), task.take(held_out_rows[:n])
    return attributed, attributed if recipe.split == "same" else held_out


def notices(attributed: Task | None, measured: Task) -> list[str]:
    """What the user should know about the pairs: how many are used for what, notes, and which were dropped and why.

    Without ``attributed``, a circuit that was found before is run on ``measured``.
    """
    first = measured if attributed is None else attributed
    facts = first.facts
    lines = list[str]()
    if "rows_read" in facts:
        lines = [_measured_pairs(measured) if attributed is None else _usage(attributed, measured)]
    if attributed is not None and len(attributed) < FEW and attributed.record.clean is None:
        lines.append(
            f"{len(attributed)} {'pair is' if len(attributed) == 1 else 'pairs are'} few for attribution: the circuit "
            f"is fitted to them, may have thousands of edges, and has wide intervals; use {FEW} or more"
        )
    lines += dict.fromkeys(str(note) for task in (first, measured) for note in task.facts.get("notes", []))
    dropped = facts.get("dropped", {})
    rows = sum(drop["count"] for drop in dropped.values())
    listed = [row for drop in dropped.values() for row in drop.get("rows", ())]
    if listed:
        lines.append(f"{rows:,} {'row is' if rows == 1 else 'rows are'} left out:")
        lines += [f"  {line}" for line in listed]
        lines += [f"  ... and {rows - len(listed):,} more"] if rows > len(listed) else []
        return lines
    return lines + [
        f"{drop['count']:,} {'pair was' if drop['count'] == 1 else 'pairs were'} dropped because {reason} "
        f"(first: {drop['first']})"
        for reason, drop in dropped.items()
    ]


def _usage(attributed: Task, measured: Task) -> str:
    """How many pairs of the user's own data are attributed, and how many are measured on."""
    facts, n = attributed.facts, len(attributed)
    if measured is not attributed and facts.get("held_out", True):
        pairs = f"{n:,} pairs for attribution, {len(measured):,} held out"
    else:
        pairs = f"{n:,} {'pair' if n == 1 else 'pairs'} for both attribution and evaluation"
    return f"{_rows_read(facts)}, {pairs}; metric {attributed.record.metric}"


def _measured_pairs(task: Task) -> str:
    """How many pairs of the user's own data a saved circuit is run on, and which."""
    facts, n = task.facts, len(task)
    pairs = f"{n:,} {'pair' if n == 1 else 'pairs'}"
    if facts.get("held_out", True) and facts["split"] != "all":
        half = "attributes" if facts["split"] == "train" else "holds out"
        pairs += f" of the half that find {half} (--split all: of both halves)"
    return f"{_rows_read(facts)}, the circuit is run on {pairs}; metric {task.record.metric}"


def _rows_read(facts: Mapping[str, Any]) -> str:
    return f"{facts['source']}: {facts['rows_read']:,} {'row' if facts['rows_read'] == 1 else 'rows'}"
