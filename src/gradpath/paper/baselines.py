"""The table of baselines: the metric of the full model on clean and on corrupted prompts.

These are the delta+ and delta- of the paper's faithfulness score, with bootstrap intervals over examples, and the
numbers of pairs that the model's tokenizer kept and dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gradpath.circuit import Circuit
from gradpath.evaluation import evaluate
from gradpath.evaluation.result import mean_and_interval
from gradpath.grid.bench import Bench, Key
from gradpath.grid.experiment import Column, Experiment, Outcome, Row, interval_column, table
from gradpath.grid.jobs import Advance, CellJob, Job, finished, scaled
from gradpath.report.style import task_title

DOUBTFUL = (
    "The paper's numbers marked (?) cannot be what their columns say: Capital-Country and Hypernymy look like "
    "the probability and the logit difference swapped."
)
SIDES = ("clean", "corrupted", "difference")


def jobs(bench: Bench) -> list[Job]:
    return [_job(bench, name) for name in bench.request.task_names]


def _key(bench: Bench, name: str) -> Key:
    return {"kind": "baseline", **bench.task_key(name, "test")}


def _job(bench: Bench, name: str) -> CellJob:
    task = bench.task(name, "test")

    def compute(advance: Advance) -> Mapping[str, Any]:
        result = evaluate(
            bench.model,
            Circuit(bench.model.graph, torch.zeros(0, 2, dtype=torch.long), torch.zeros(0)),
            task,
            batch_size=bench.request.batch_size,
            memory=bench.request.memory,
            progress=scaled(advance, 2.0),
        )
        clean, corrupted = result.clean_values, result.corrupted_values
        values = zip(SIDES, (clean, corrupted, clean - corrupted), strict=True)
        return {side: mean_and_interval(value) for side, value in values}

    return CellJob(f"{name}: baselines", _key(bench, name), 2.0 * len(task), compute)


def outcome(bench: Bench) -> Outcome:
    rows = [_row(bench, name) for name in bench.request.task_names]
    has_paper = any("paper_clean" in row for row in rows)
    return Outcome(
        name="baselines",
        title=f"Clean and corrupted metric of {bench.title}",
        rows=rows,
        text=table([*COLUMNS, *(PAPER_COLUMNS if has_paper else ())], rows),
        notes=(DOUBTFUL,) if has_paper else (),
    )


def _row(bench: Bench, name: str) -> Row:
    task, cell = bench.task(name, "test"), finished(bench, _key(bench, name))
    row: Row = {"task": name, "metric": task.about.get("metric"), "examples": len(task)}
    row["pairs_dropped"] = sum(drop["count"] for drop in task.about.get("dropped", {}).values())
    for side in SIDES:
        row[side], row[f"{side}_low"], row[f"{side}_high"] = cell[side]
    if paper := bench.paper.baseline(name) if bench.paper else {}:
        row |= {f"paper_{side}": paper[side] for side in SIDES[:2]}
        row["paper_doubtful"] = bool(paper.get("doubtful"))
        row |= {f"{side}_minus_paper": row[side] - paper[side] for side in SIDES[:2]}
    return row


def _paper_columns(side: str) -> Sequence[Column]:
    def number(row: Row) -> str:
        return f"{row[f'paper_{side}']:g}" + " (?)" * row["paper_doubtful"] if f"paper_{side}" in row else ""

    def difference(row: Row) -> str:
        return f"{row[f'{side}_minus_paper']:+.3f}" if f"paper_{side}" in row else ""

    return (f"paper {side}", number), ("difference", difference)


COLUMNS: Sequence[Column] = [
    ("task", lambda row: task_title(row["task"])),
    ("metric", lambda row: row["metric"]),
    interval_column("clean [95%]", "clean", ".3f"),
    interval_column("corrupted [95%]", "corrupted", ".3f"),
    interval_column("clean - corrupted [95%]", "difference", ".3f"),
    ("pairs kept", lambda row: row["examples"]),
    ("dropped", lambda row: row["pairs_dropped"]),
]
PAPER_COLUMNS = [*_paper_columns("clean"), *_paper_columns("corrupted")]
EXPERIMENT = Experiment("baselines", jobs, outcome)
