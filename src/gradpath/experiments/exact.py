"""What the paper lacks: each method's scores against what they estimate, exact edge patching.

Rank correlation and the overlap of the largest scores, over all edges of a small model or over a seeded
random sample of those of a large one, and what either costs. Both are taken on the same examples.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gradpath import ranks
from gradpath.attribution import attribute
from gradpath.experiments.agreement import correlation_interval, overlap, spearman
from gradpath.experiments.bench import Bench
from gradpath.experiments.exact_figure import draw_exact
from gradpath.experiments.figures import task_title
from gradpath.experiments.grid import Advance, CellJob, Job, finished
from gradpath.experiments.methods import Method
from gradpath.experiments.output import Outcome
from gradpath.experiments.registry import Experiment
from gradpath.experiments.request import default_tasks
from gradpath.experiments.store import Key
from gradpath.experiments.table import markdown, percent
from gradpath.methods.exact import Edge, exact_scores, passes, sample
from gradpath.tasks import Task

CHUNK = 100  # edges to a cell: what a killed run can lose
SHARES = (0.01, 0.05, 0.25)  # of the edges compared, for the overlap of the largest
Row = dict[str, Any]


def _compared(bench: Bench) -> list[Edge]:
    return sample(bench.model.graph, bench.request.sample, bench.request.seed)


def _pairs(bench: Bench, task: str) -> Task:
    return bench.task(task, "train")


def jobs(bench: Bench) -> list[Job]:
    edges = _compared(bench)
    planned: list[Job] = []
    for task in default_tasks(bench.request):
        planned += [_scores_job(bench, task, method, edges) for method in bench.request.methods]
        planned += [_exact_job(bench, task, chunk) for chunk in _chunks(edges)]
    return planned


def _chunks(edges: Sequence[Edge]) -> list[Sequence[Edge]]:
    return [edges[first : first + CHUNK] for first in range(0, len(edges), CHUNK)]


def _key(bench: Bench, task: str, edges: Sequence[Edge]) -> dict[str, Any]:
    return {**bench.task_key(task, "train"), "edges": [list(edge) for edge in edges]}


def _exact_key(bench: Bench, task: str, edges: Sequence[Edge]) -> Key:
    return {**_key(bench, task, edges), "kind": "exact"}


def _scores_key(bench: Bench, task: str, method: Method, edges: Sequence[Edge]) -> Key:
    own = {"kind": "estimate", "method": method.name, "options": method.options}
    return {**_key(bench, task, edges), **own}


def _exact_job(bench: Bench, task: str, edges: Sequence[Edge]) -> CellJob:
    pairs, cost = _pairs(bench, task), passes(bench.model, edges)

    def compute(advance: Advance) -> Mapping[str, Any]:
        found = exact_scores(
            bench.model,
            pairs,
            edges,
            batch_size=bench.request.batch_size,
            memory=bench.request.memory,
            progress=lambda done: advance(done * cost),
        )
        return {"values": found.tolist(), "forward": cost}

    title = f"{task}: patching {len(edges)} edges"
    return CellJob(title, _exact_key(bench, task, edges), len(pairs) * cost, compute)


def _scores_job(bench: Bench, task: str, method: Method, edges: Sequence[Edge]) -> CellJob:
    pairs = _pairs(bench, task)

    def compute(advance: Advance) -> Mapping[str, Any]:
        begin = time.process_time()
        scores = attribute(
            bench.model,
            pairs,
            method.name,
            batch_size=bench.request.batch_size,
            memory=bench.request.memory,
            progress=lambda done: advance(done * method.cost),
            **method.options,
        )
        seconds = ranks.total(time.process_time() - begin)
        values = [float(f"{scores.values[edge]:.9g}") for edge in edges]
        return {"values": values, "attribution_seconds": round(seconds, 3), **scores.about["passes"]}

    key = _scores_key(bench, task, method, edges)
    return CellJob(f"{task}: scoring with {method.label}", key, len(pairs) * method.cost, compute)


def outcome(bench: Bench) -> Outcome:
    edges = _compared(bench)
    rows, clouds = [], {}
    for task in default_tasks(bench.request):
        parts = [finished(bench, _exact_key(bench, task, chunk)) for chunk in _chunks(edges)]
        exact = torch.tensor([x for part in parts for x in part["values"]], dtype=torch.float64)
        cost = {"exact_forward": round(sum(part["forward"] for part in parts), 1)}
        cost["exact_cpu_seconds"] = round(sum(part["cpu_seconds"] for part in parts), 3)
        for method in bench.request.methods:
            cell = finished(bench, _scores_key(bench, task, method, edges))
            scores = torch.tensor(cell["values"], dtype=torch.float64)
            row: Row = {"task": task, "method": method.label, "examples": len(_pairs(bench, task))}
            rows.append(
                row
                | {"edges_total": bench.model.graph.n_edges}
                | _agreement(scores, exact)
                | _costs(cell)
                | cost
            )
            clouds[task, method.label] = (scores.tolist(), exact.tolist())
    return Outcome(
        name="exact",
        title=f"Scores against exact edge patching in {bench.title}",
        rows=rows,
        text=_text(rows),
        figures={"exact": lambda: draw_exact(rows, clouds, bench.title)},
        notes=(_note(bench, len(edges)),),
    )


def _agreement(scores: torch.Tensor, exact: torch.Tensor) -> Row:
    row: Row = {"edges": len(exact)}
    for name, a, b in (("spearman", scores, exact), ("spearman_size", scores.abs(), exact.abs())):
        row[name] = spearman(a, b)
        row[f"{name}_low"], row[f"{name}_high"] = correlation_interval(row[name], len(exact))
    for share in SHARES:
        row[f"top_{100 * share:g}%"] = overlap(scores, exact, max(1, round(share * len(exact))))
    return row


def _costs(cell: Mapping[str, Any]) -> Row:
    passes = {f"{kind}_passes": cell[kind] for kind in ("forward", "backward")}
    return {**passes, "cpu_seconds": cell["attribution_seconds"]}


def _note(bench: Bench, n: int) -> str:
    total = bench.model.graph.n_edges
    which = (
        f"all {n:,} edges" if n == total else f"{n:,} of {total:,} edges, drawn by seed {bench.request.seed}"
    )
    return (
        f"Over {which}. Exact: the loss of the metric when that edge alone is corrupted. rho: Spearman's "
        "rank correlation over edges, of the signed scores and of their sizes. Top: the share of the "
        "edges of largest |exact| that are among as many of largest |score|. Passes are forward and "
        "backward passes per example: a method's give the scores of every edge of the model, exact "
        "patching's those of the edges compared alone."
    )


def _text(rows: Sequence[Row]) -> str:
    headings = ["task", "method", "rho [95%]", "rho of sizes [95%]"]
    headings += [f"top {100 * share:g}% shared" for share in SHARES]
    headings += ["forward", "backward", "CPU seconds"]
    lines = []
    for task in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == task]
        name = f"{task_title(task)} ({own[0]['examples']} examples)"
        for row in own:
            line = [name, row["method"]]
            for rho in ("spearman", "spearman_size"):
                line.append(f"{row[rho]:.3f} [{row[rho + '_low']:.2f}, {row[rho + '_high']:.2f}]")
            line += [f"{percent(row[f'top_{100 * share:g}%'], 0)}%" for share in SHARES]
            line += [str(row["forward_passes"]), str(row["backward_passes"]), f"{row['cpu_seconds']:.1f}"]
            lines.append(line)
        cost = [f"{own[0]['exact_forward']:,.0f}", "0", f"{own[0]['exact_cpu_seconds']:.1f}"]
        lines.append([name, "exact patching", *[""] * (2 + len(SHARES)), *cost])
    return markdown(headings, lines)


EXPERIMENT = Experiment("exact", jobs, outcome)
