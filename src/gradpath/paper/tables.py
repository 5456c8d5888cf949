"""The tables of baselines, and of faithfulness and time at 97.5% sparsity.

Baselines are the metric of the full model on clean and on corrupted prompts: the delta+ and delta- of the paper's
faithfulness score, with bootstrap intervals over examples, and the numbers of pairs that the model's tokenizer kept and
dropped.

Seconds depend on the machine. So the table of times also has the number of forward and backward passes that a method
makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradpath.circuit import Circuit
from gradpath.evaluation import evaluate_many
from gradpath.evaluation.result import mean_and_interval
from gradpath.prepared import PreparedBatches
from gradpath.report.style import task_title
from gradpath.study import method_label
from gradpath.study.bench import Bench, Row
from gradpath.study.faithfulness import READING
from gradpath.study.outcome import Column, Experiment, Outcome, interval_column, nfs, percent, signed, table

DOUBTFUL = (
    "The paper's numbers marked (?) cannot be what their columns say: Capital-Country and Hypernymy look like "
    "the probability and the logit difference swapped."
)
SIDES = ("clean", "corrupted", "difference")
SPARSITY = 0.975  # of the paper's table


def baseline_outcome(bench: Bench) -> Outcome:
    rows = [_baseline_row(bench, name) for name in bench.study.task_names]
    has_paper = any("paper_clean" in row for row in rows)
    return Outcome(
        name="baselines",
        title=f"Clean and corrupted metric of {bench.title}",
        rows=rows,
        text=table([*BASELINE_COLUMNS, *(PAPER_BASELINE_COLUMNS if has_paper else ())], rows),
        notes=(DOUBTFUL,) if has_paper else (),
    )


def _baseline_row(bench: Bench, name: str) -> Row:
    recipe = bench.study.at(name)
    task = bench.task(recipe, "test")

    def compute() -> Mapping[str, Any]:
        prepared = PreparedBatches(bench.model, task, limits=bench.study.limits)
        [result] = evaluate_many(prepared, [Circuit.from_edges(bench.model.graph, ())])
        clean, corrupted = result.clean_values, result.corrupted_values
        values = zip(SIDES, (clean, corrupted, clean - corrupted), strict=True)
        return {side: mean_and_interval(value) for side, value in values}

    cell = bench.store.measured({"kind": "baseline", **bench.task_key(recipe, "test")}, compute)
    row: Row = {"task": name, "metric": task.record.metric, "examples": len(task)}
    row["pairs_dropped"] = sum(drop["count"] for drop in task.facts.get("dropped", {}).values())
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


BASELINE_COLUMNS: Sequence[Column] = [
    ("task", lambda row: task_title(row["task"])),
    ("metric", lambda row: row["metric"]),
    interval_column("clean [95%]", "clean", ".3f"),
    interval_column("corrupted [95%]", "corrupted", ".3f"),
    interval_column("clean - corrupted [95%]", "difference", ".3f"),
    ("pairs kept", lambda row: row["examples"]),
    ("dropped", lambda row: row["pairs_dropped"]),
]
PAPER_BASELINE_COLUMNS = [*_paper_columns("clean"), *_paper_columns("corrupted")]
BASELINES = Experiment("baselines", baseline_outcome)


RUNTIME_COLUMNS: list[Column] = [
    ("task, selection", lambda row: f"{task_title(row['task'])}, {row['selection']}"),
    ("method", lambda row: row["method"]),
    ("NFS [95%]", nfs),
    ("error", lambda row: f"{row['error']:.3f}"),
    ("edges", lambda row: f"{row['edges_kept']:,}"),
    ("forward", lambda row: row["forward_passes"]),
    ("backward", lambda row: row["backward_passes"]),
    ("CPU seconds", lambda row: f"{row['cpu_seconds']:.1f}"),
]
PAPER_RUNTIME_COLUMNS: list[Column] = [
    ("paper NFS", lambda row: percent(row.get("paper"))),
    ("difference", lambda row: signed(row.get("difference"))),
    ("paper seconds", lambda row: f"{row['paper_seconds']:g}" if "paper_seconds" in row else ""),
]


def runtime_outcome(bench: Bench) -> Outcome:
    rows = [row for task in bench.study.task_names for row in _runtime_rows(bench, task)]
    note = (
        "Passes are over the positions from the first differing token on; those of literal EAP-GP are over the whole "
        "prompt. Seconds: CPU time of the scores of all examples."
    )
    paper = (f"Paper: {bench.paper.source}; its seconds are on an NVIDIA A40.",) if bench.paper else ()
    paper_columns = PAPER_RUNTIME_COLUMNS if any("paper_seconds" in row for row in rows) else []
    return Outcome(
        name="runtime",
        title=f"Faithfulness and cost at {100 * SPARSITY:g}% sparsity in {bench.title}",
        rows=rows,
        text=table([*RUNTIME_COLUMNS, *paper_columns], rows),
        notes=(READING, note, *paper),
    )


def _runtime_rows(bench: Bench, task: str) -> list[Row]:
    recipes = list(bench.study.recipes(task, [("sparsity", SPARSITY)]))
    rows = bench.rows(recipes)
    for row, recipe in zip(rows, recipes, strict=True):
        price = bench.price(recipe)
        row |= {f"{kind}_passes": price[kind] for kind in ("forward", "backward")}
        row["cpu_seconds"] = price["cpu_seconds"]
        if paper := bench.paper.runtime(task, method_label(recipe)) if bench.paper else {}:
            row |= {"paper": paper["faithfulness"], "difference": row["faithfulness"] - paper["faithfulness"]}
            row["paper_seconds"] = paper["seconds"]
    return rows


RUNTIME = Experiment("runtime", runtime_outcome)
