"""The table of baselines: what the whole model scores on clean and on corrupted prompts.

delta+ and delta- of the paper's score of faithfulness, with bootstrap intervals over examples, and how many
pairs the model's tokenizer kept and dropped on the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gradpath.circuit import Circuit
from gradpath.evaluation.bootstrap import mean_and_interval
from gradpath.evaluation.evaluate import evaluate
from gradpath.grid.bench import Bench
from gradpath.grid.jobs import Advance, CellJob, Job, finished
from gradpath.grid.output import Outcome, markdown
from gradpath.grid.request import default_tasks
from gradpath.grid.runner import Experiment
from gradpath.grid.store import Key
from gradpath.paper.published import PAPER_BASELINES
from gradpath.report.style import task_title

DOUBTFUL = (
    "The paper's figures marked (?) cannot be what its columns say: Capital-Country and Hypernymy look like "
    "the probability and the logit difference swapped."
)


def jobs(bench: Bench) -> list[Job]:
    return [_job(bench, name) for name in default_tasks(bench.request)]


def _key(bench: Bench, name: str) -> Key:
    return {"kind": "baseline", **bench.task_key(name, "test")}


def _job(bench: Bench, name: str) -> CellJob:
    task = bench.task(name, "test")

    def compute(advance: Advance) -> Mapping[str, Any]:
        nothing = Circuit(bench.model.graph, torch.zeros(0, 2, dtype=torch.long), torch.zeros(0))
        result = evaluate(
            bench.model,
            nothing,
            task,
            batch_size=bench.request.batch_size,
            memory=bench.request.memory,
            progress=lambda done: advance(2.0 * done),
        )
        sides = {"clean": result.clean_values, "corrupted": result.corrupted_values}
        sides["difference"] = result.clean_values - result.corrupted_values
        return {side: mean_and_interval(values) for side, values in sides.items()}

    return CellJob(f"{name}: baselines", _key(bench, name), 2.0 * len(task), compute)


def outcome(bench: Bench) -> Outcome:
    rows = [_row(bench, name) for name in default_tasks(bench.request)]
    beside = bench.paper is not None and bench.paper.name in PAPER_BASELINES
    return Outcome(
        name="baselines",
        title=f"Clean and corrupted metric of {bench.title}",
        rows=rows,
        text=_text(rows, beside),
        notes=(DOUBTFUL,) if beside else (),
    )


def _row(bench: Bench, name: str) -> dict[str, Any]:
    task, cell = bench.task(name, "test"), finished(bench, _key(bench, name))
    row: dict[str, Any] = {"task": name, "metric": task.about.get("metric"), "examples": len(task)}
    row["pairs_dropped"] = sum(drop["count"] for drop in task.about.get("dropped", {}).values())
    for side in ("clean", "corrupted", "difference"):
        row |= dict(zip((side, f"{side}_low", f"{side}_high"), cell[side], strict=True))
    ours = PAPER_BASELINES.get(bench.paper.name, {}).get(name) if bench.paper else None
    if ours is not None:
        row |= {"paper_clean": ours.clean, "paper_corrupted": ours.corrupted, "paper_doubtful": ours.doubtful}
        row |= {"clean_minus_paper": row["clean"] - ours.clean}
        row |= {"corrupted_minus_paper": row["corrupted"] - ours.corrupted}
    return row


def _text(rows: Sequence[Mapping[str, Any]], beside: bool) -> str:
    headings = ["task", "metric", "clean [95%]", "corrupted [95%]", "clean - corrupted [95%]"]
    headings += ["pairs kept", "dropped"]
    headings += ["paper clean", "difference", "paper corrupted", "difference"] if beside else []
    lines = []
    for row in rows:
        line = [task_title(row["task"]), str(row["metric"])]
        for side in ("clean", "corrupted", "difference"):
            line.append(f"{row[side]:.3f} [{row[side + '_low']:.3f}, {row[side + '_high']:.3f}]")
        line += [str(row["examples"]), str(row["pairs_dropped"])]
        if beside and "paper_clean" in row:
            mark = " (?)" if row["paper_doubtful"] else ""
            for side in ("clean", "corrupted"):
                line += [f"{row['paper_' + side]:g}{mark}", f"{row[side + '_minus_paper']:+.3f}"]
        lines.append(line)
    return markdown(headings, lines)


EXPERIMENT = Experiment("baselines", jobs, outcome)
