"""Each method's scores against exact edge patching, which they estimate. The paper has no such table.

Rank correlation and the overlap of the largest scores, over all edges or a seeded random sample of them, and the cost
of each. Both kinds of scores are computed on the same examples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from gradpath.attribution.exact import Edge, exact_scores, passes, sample
from gradpath.report.style import INK, MUTED, colour, method_title, task_title, tiled
from gradpath.runtime.progress import progress_bar
from gradpath.study.bench import Bench, Cell, Row
from gradpath.study.outcome import Column, Experiment, Outcome, grouped, interval_column, markdown, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Values = Float[Tensor, " edge"]
CHUNK = 100  # edges in a cell: a killed run loses at most these
SHARES = (0.01, 0.05, 0.25)  # of the compared edges, for the overlap of the largest


def spearman(a: Values, b: Values) -> float:
    """Spearman's rank correlation; 0 where one of the two is constant.

    >>> round(spearman(torch.tensor([3.0, 1.0, 3.0]), torch.tensor([2.0, 1.0, 9.0])), 3)
    0.866
    """
    from scipy.stats import spearmanr

    if any(bool((values == values[0]).all()) for values in (a, b)):
        return 0.0
    return float(spearmanr(a.numpy(), b.numpy()).statistic)


def correlation_interval(rho: float, n: int) -> tuple[float, float]:
    """The 95% interval of a rank correlation over n edges, by Fisher's z (Bonett and Wright 2000)."""
    if n < 4 or abs(rho) >= 1:
        return (rho, rho) if abs(rho) >= 1 else (-1.0, 1.0)
    spread = 1.96 * math.sqrt((1 + rho**2 / 2) / (n - 3))
    return math.tanh(math.atanh(rho) - spread), math.tanh(math.atanh(rho) + spread)


def overlap(a: Values, b: Values, n: int) -> float:
    """The share of the n largest |a| that are among the n largest |b|; ties go to the lower index."""
    x, y = (set(values.abs().sort(descending=True, stable=True).indices[:n].tolist()) for values in (a, b))
    return len(x & y) / n


def _patched(bench: Bench, task: str, edges: Sequence[Edge]) -> list[Cell]:
    """The exact scores of the edges, in cells of ``CHUNK`` edges."""
    recipe, limits = bench.study.at(task), bench.study.limits
    train, cells = bench.task(recipe, "train"), list[Cell]()
    chunks = [edges[first : first + CHUNK] for first in range(0, len(edges), CHUNK)]
    with progress_bar(f"{task}: patching edges", len(chunks), unit="chunk") as bar:
        for chunk in chunks:

            def compute(chunk: Sequence[Edge] = chunk) -> Mapping[str, Any]:
                scores = exact_scores(bench.model, train, chunk, limits=limits)
                return {"values": scores.tolist(), "forward": passes(bench.model, chunk)}

            key = {"kind": "exact", **bench.task_key(recipe, "train"), "edges": [list(edge) for edge in chunk]}
            cells.append(bench.store.measured(key, compute))
            bar.update()
    return cells


def outcome(bench: Bench) -> Outcome:
    study, graph = bench.study, bench.model.graph
    edges = sample(graph, study.sample, study.seeds[0])
    rows, points = [], []
    for task in study.task_names:
        cells = _patched(bench, task, edges)
        exact = torch.tensor([x for cell in cells for x in cell["values"]], dtype=torch.float64)
        for method in study.methods:
            recipe = study.at(task, method)
            scores, price = bench.scores(recipe).values, bench.price(recipe)
            own = torch.stack([scores[edge] for edge in edges]).double()
            row: Row = {"task": task, "method": method, "examples": len(bench.task(recipe, "train"))}
            row |= {"edges_total": graph.n_edges, **_agreement(own, exact)}
            row |= {f"{kind}_passes": price[kind] for kind in ("forward", "backward")}
            row["cpu_seconds"] = price["cpu_seconds"]
            row["exact_forward"] = round(sum(cell["forward"] for cell in cells), 1)
            row["exact_cpu_seconds"] = round(sum(cell["cpu_seconds"] for cell in cells), 3)
            rows.append(row)
            points.append((own.tolist(), exact.tolist()))
    return Outcome(
        name="exact",
        title=f"Scores against exact edge patching in {bench.title}",
        rows=rows,
        text=_text(rows),
        figures={"exact": lambda: draw_exact(rows, points, bench.title)},
        notes=(_note(bench, len(edges)),),
    )


def _agreement(scores: Tensor, exact: Tensor) -> Row:
    row: Row = {"edges": len(exact)}
    for name, a, b in (("spearman", scores, exact), ("spearman_size", scores.abs(), exact.abs())):
        row[name] = spearman(a, b)
        row[f"{name}_low"], row[f"{name}_high"] = correlation_interval(row[name], len(exact))
    for share in SHARES:
        row[f"top_{100 * share:g}%"] = overlap(scores, exact, max(1, round(share * len(exact))))
    return row


def _note(bench: Bench, n: int) -> str:
    total = bench.model.graph.n_edges
    which = f"all {n:,} edges" if n == total else f"{n:,} of {total:,} edges, drawn by seed {bench.study.seeds[0]}"
    return (
        f"Over {which}. Exact: the loss of the metric when that edge alone is corrupted. rho: Spearman's "
        "rank correlation over edges, of the signed scores and of their sizes. Top: the share of the "
        "edges of largest |exact| that are among as many of largest |score|. Passes are forward and "
        "backward passes per example: those of a method give the scores of every edge of the model, those of "
        "exact patching only the scores of the compared edges."
    )


def _shared(share: str) -> Column:
    return f"top {share} shared", lambda row: f"{percent(row[f'top_{share}'], 0)}%"


COLUMNS: list[Column] = [
    ("task", lambda row: f"{task_title(row['task'])} ({row['examples']} examples)"),
    ("method", lambda row: row["method"]),
    interval_column("rho [95%]", "spearman"),
    interval_column("rho of sizes [95%]", "spearman_size"),
    *(_shared(f"{100 * share:g}%") for share in SHARES),
    ("forward", lambda row: row["forward_passes"]),
    ("backward", lambda row: row["backward_passes"]),
    ("CPU seconds", lambda row: f"{row['cpu_seconds']:.1f}"),
]


def _text(rows: Sequence[Row]) -> str:
    lines = []
    for group in grouped(rows, "task").values():
        lines += [[cell(row) for _, cell in COLUMNS] for row in group]
        first, empty = group[0], [""] * (2 + len(SHARES))
        cost = [f"{first['exact_forward']:,.0f}", "0", f"{first['exact_cpu_seconds']:.1f}"]
        lines.append([COLUMNS[0][1](first), "exact patching", *empty, *cost])
    return markdown([heading for heading, _ in COLUMNS], lines)


EXACT = Experiment("exact", outcome)
Points = tuple[list[float], list[float]]  # estimated and exact scores


def draw_exact(rows: Sequence[Row], points: Sequence[Points], model: str) -> Figure:
    """A panel for each row, a dot for each edge; on the dotted line the estimate is exact."""
    tasks, labels = list(grouped(rows, "task")), list(grouped(rows, "method"))
    columns = len(labels) if len(tasks) > 1 else min(4, len(labels))
    figure, axes, _ = tiled(len(rows), (3.3, 2.9), (0.6, 0.8), columns)
    for ax, row, scores in zip(axes, rows, points, strict=False):
        _panel(ax, row, scores, colour(row["method"], labels))
    edges = f"{rows[0]['edges']:,} of {rows[0]['edges_total']:,} edges"
    figure.suptitle(f"Scores against exact patching in {model} ({edges})", fontsize=12, color=INK)
    return figure


def _panel(ax: Axes, row: Row, points: Points, paint: str) -> None:
    estimated, exact = points
    # Most edges do almost nothing: a scale that is linear near zero and logarithmic beyond shows them all.
    limit = max(map(abs, estimated + exact)) or 1.0
    for scale in (ax.set_xscale, ax.set_yscale):
        scale("symlog", linthresh=limit / 1000)
    ax.plot([-limit, limit], [-limit, limit], color=MUTED, linewidth=0.8, linestyle=":", label="equal")
    many = len(exact) > 2000  # as vector shapes they would make the file megabytes large
    ax.scatter(exact, estimated, s=5, color=paint, alpha=0.45, linewidths=0, label="one edge", rasterized=many)
    power = 10.0 ** int(f"{limit:e}".partition("e")[2])  # the largest power of ten that is not above the limit
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_ticks([-power, -power / 100, 0.0, power / 100, power])
        axis.set_major_formatter(lambda x, _: f"{x:g}")
        axis.set_tick_params(labelsize=7)
    title = f"{method_title(row['method'])}: {task_title(row['task'])}, {row['examples']} examples\n"
    title += f"Spearman {row['spearman']:.2f}, of sizes {row['spearman_size']:.2f}"
    ax.set_title(title, fontsize=8.5, color=INK)
    ax.set_xlabel("exact score (loss of the metric)", fontsize=8)
    ax.set_ylabel("estimated score", fontsize=8)
    ax.legend(loc="upper left", fontsize=6.5, frameon=False, handletextpad=0.3)
