"""How far two lists of scores agree: rank correlation, and the overlap of their largest.

What the paper lacks: each method's scores against what they estimate, exact edge patching.

Rank correlation and the overlap of the largest scores, over all edges of a small model or over a seeded
random sample of those of a large one, and what either costs. Both are taken on the same examples.

Estimated against exact scores: a panel for each task and method, a dot for each edge.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from gradpath.attribution.attribute import attribute
from gradpath.attribution.direct.exact import Edge, exact_scores, passes, sample
from gradpath.grid.bench import Bench
from gradpath.grid.jobs import Advance, CellJob, Job, finished
from gradpath.grid.output import Outcome, markdown, percent
from gradpath.grid.request import MethodSpec, default_tasks
from gradpath.grid.runner import Experiment
from gradpath.grid.store import Key
from gradpath.report.style import INK, MUTED, colour, method_title, panels, task_title
from gradpath.runtime import distributed
from gradpath.tasks import Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Values = Float[Tensor, " edge"]


def ranks(values: Values) -> Values:
    """Places from the smallest to the largest; equal values share the mean of their places.

    >>> ranks(torch.tensor([3.0, 1.0, 3.0])).tolist()
    [1.5, 0.0, 1.5]
    """
    _, group, counts = torch.unique(values, return_inverse=True, return_counts=True)
    middle: Tensor = (counts.cumsum(0) - (counts + 1) / 2).double()
    return middle[group]


def spearman(a: Values, b: Values) -> float:
    """The rank correlation; 0 where one of the two does not vary, and so says nothing about order."""
    x, y = (places - places.mean() for places in (ranks(a), ranks(b)))
    size = float(x.norm() * y.norm())
    return float(x @ y) / size if size else 0.0


def correlation_interval(rho: float, n: int) -> tuple[float, float]:
    """The 95% interval of a rank correlation over n edges, by Fisher's z (Bonett and Wright 2000)."""
    if n < 4 or abs(rho) >= 1:
        return (rho, rho) if abs(rho) >= 1 else (-1.0, 1.0)
    spread = 1.96 * math.sqrt((1 + rho**2 / 2) / (n - 3))
    return math.tanh(math.atanh(rho) - spread), math.tanh(math.atanh(rho) + spread)


def overlap(a: Values, b: Values, n: int) -> float:
    """The share of the n largest |a| that are among the n largest |b|; ties go to the lower index."""
    best = [set(x.abs().sort(descending=True, stable=True).indices[:n].tolist()) for x in (a, b)]
    return len(best[0] & best[1]) / n


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


def _scores_key(bench: Bench, task: str, method: MethodSpec, edges: Sequence[Edge]) -> Key:
    own = {"kind": "estimate", "method": method.name, "options": method.options}
    return {**_key(bench, task, edges), **own}


def _exact_job(bench: Bench, task: str, edges: Sequence[Edge]) -> CellJob:
    pairs, cost = _pairs(bench, task), passes(bench.model, edges)

    def compute(advance: Advance) -> Mapping[str, Any]:
        found = exact_scores(
            bench.model, pairs, edges, limits=bench.request.limits, progress=lambda done: advance(done * cost)
        )
        return {"values": found.tolist(), "forward": cost}

    title = f"{task}: patching {len(edges)} edges"
    return CellJob(title, _exact_key(bench, task, edges), len(pairs) * cost, compute)


def _scores_job(bench: Bench, task: str, method: MethodSpec, edges: Sequence[Edge]) -> CellJob:
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
        seconds = distributed.total_over_ranks(time.process_time() - begin)
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
                row | {"edges_total": bench.model.graph.n_edges} | _agreement(scores, exact) | _costs(cell) | cost
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
    which = f"all {n:,} edges" if n == total else f"{n:,} of {total:,} edges, drawn by seed {bench.request.seed}"
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

Compared = tuple[list[float], list[float]]  # estimated, exact


def draw_exact(rows: Sequence[Mapping[str, Any]], pairs: Mapping[tuple[str, str], Compared], model: str) -> Figure:
    """A panel per row; on the dotted line the estimate is exact."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    labels = list(dict.fromkeys(row["method"] for row in rows))
    size = (3.3 * len(labels) + 0.6, 2.9 * len(tasks) + 0.8)
    figure, axes = panels(len(tasks), len(labels), size)
    for ax, row in zip(axes, rows, strict=True):
        _panel(ax, row, pairs[row["task"], row["method"]], colour(row["method"], labels))
    edges = f"{rows[0]['edges']:,} of {rows[0]['edges_total']:,} edges"
    figure.suptitle(f"Scores against exact patching in {model} ({edges})", fontsize=12, color=INK)
    return figure


def _panel(ax: Axes, row: Mapping[str, Any], values: Compared, paint: str) -> None:
    own, exact = values
    # Most edges do almost nothing: a scale that is linear near zero and logarithmic beyond shows them all.
    limit = max(map(abs, own + exact)) or 1.0
    for scale in (ax.set_xscale, ax.set_yscale):
        scale("symlog", linthresh=limit / 1000)
    ax.plot([-limit, limit], [-limit, limit], color=MUTED, linewidth=0.8, linestyle=":", label="equal")
    ax.scatter(exact, own, s=5, color=paint, alpha=0.45, linewidths=0, label="one edge")
    ticks = [sign * tick for sign in (-1, 1) for tick in _ticks(limit)] + [0.0]
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_ticks(sorted(ticks))
        axis.set_major_formatter(lambda x, _: f"{x:g}")
        axis.set_tick_params(labelsize=7)
    task = f"{task_title(row['task'])}, {row['examples']} examples"
    title = f"{method_title(row['method'])}: {task}\nSpearman {row['spearman']:.2f}"
    ax.set_title(title, fontsize=8.5, color=INK)
    ax.set_xlabel("exact score (loss of the metric)", fontsize=8)
    ax.set_ylabel("estimated score", fontsize=8)
    ax.legend(loc="upper left", fontsize=6.5, frameon=False, handletextpad=0.3)


def _ticks(limit: float) -> list[float]:
    """Two powers of ten below the limit, a hundredfold apart."""
    power = 10.0 ** exponent(limit)
    return [power / 100, power]


def exponent(x: float) -> int:
    """The exponent of the largest power of ten that is not above x.

    >>> exponent(0.3), exponent(20.0)
    (-1, 1)
    """
    return int(f"{x:e}".partition("e")[2])
