"""Faithfulness against sparsity: the paper's main figure and its three large tables, and ``gradpath curve``.

For every task, method, selection and sparsity: the share of the behaviour that the circuit keeps (NFS) and the
error per example, on examples that were not attributed, with intervals, and the number of edges after pruning.
All methods and selections are compared with one of them on the same examples. On MIB's grid there are its areas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import chain, product
from typing import TYPE_CHECKING, Any

import torch

from gradpath import defaults
from gradpath.ablation import CORRUPTED
from gradpath.evaluation import mib
from gradpath.evaluation.result import Cell, Difference, distance_difference, error_difference
from gradpath.grid.bench import Bench
from gradpath.grid.experiment import (
    Experiment,
    Outcome,
    Row,
    grouped,
    markdown,
    mean_of,
    nfs,
    percent,
    signed,
    spread,
    with_interval,
)
from gradpath.grid.jobs import CircuitJob, Job, circuit_cell
from gradpath.grid.request import MethodSpec
from gradpath.report.style import GREY, INK, LINES, MUTED, colour, marker, method_title, panels, task_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

READING = (
    "NFS: normalized faithfulness in percent, (circuit - corrupted) / (clean - corrupted) on means, with its "
    "95% bootstrap interval over examples. Error: mean |circuit - clean| / mean |clean - corrupted|, 0 being "
    "the model's behaviour. Edges: left after pruning."
)
MIB_READING = (
    "CPR: area under the faithfulness over the shares of edges .001 to 1, on a linear scale; CMD: area under "
    "its distance from 1; both with 95% intervals. top ranks by |score|, signed by the score with its sign."
)
PRICE_READING = (
    "Forward, backward: passes that the scores take, as a mean over tasks. Units: one forward and one backward pass, "
    "a backward pass counting as two forward passes. Passes are over the positions from the first differing token "
    "on, those of literal eap-gp over the whole prompt."
)
# The two quantities that methods and selections are compared by.
DIFFERENCES: dict[str, Callable[[Sequence[Cell], Sequence[Cell]], Difference]] = {
    "Error": error_difference,
    "|1 - NFS|": distance_difference,
}
SELECTION_TITLES = {
    "top": "top-n edges by |score|",
    "greedy": "greedy from the logits",
    "signed": "top-n edges by score, the sign counted",
    "refined": "refined on the circuit itself",
    "learned": "learned as weights of edges",
}


# Random circuits of the same sizes: the baseline of every curve.
RANDOM = tuple(f"random+seed={seed}" for seed in range(5))


def jobs(bench: Bench) -> list[Job]:
    return [job for task in bench.request.task_names for job in task_jobs(bench, task, bench.sizes(task))]


def task_jobs(bench: Bench, task: str, sizes: tuple[int, ...]) -> list[Job]:
    """One job per method, which measures all its circuits on a task, and then random circuits of the same sizes."""
    request = bench.request
    jobs: list[Job] = [CircuitJob(task, (method,), request.hows, sizes) for method in request.methods]
    return [*jobs, CircuitJob(task, request.methods[:1], RANDOM, sizes)]


def random_rows(bench: Bench) -> list[Row]:
    """For every task and sparsity the faithfulness and error of random circuits: mean, worst and best."""
    rows = []
    for task in bench.request.task_names:
        for sparsity in bench.sparsities(task):
            n = bench.edges(sparsity)
            cells = [circuit_cell(bench, task, bench.request.methods[0], how, n) for how in RANDOM]
            row: Row = {"task": task, "sparsity": sparsity, "edges_requested": n, "circuits": len(cells)}
            rows.append({**row, **spread(cells, "faithfulness", "error")})
    return rows


def outcome(bench: Bench, name: str = "faithfulness") -> Outcome:
    request = bench.request
    rows = [
        row
        for task in request.task_names
        for how, method in product(request.hows, request.methods)
        for row in curve(bench, task, method, how)
    ]
    areas, random, prices = _areas(bench) if request.measures_mib else [], random_rows(bench), price_rows(bench)
    random_areas = _random_areas(bench) if areas else []
    notes = [READING, *([MIB_READING] if areas else []), *([PRICE_READING] if prices else [])]
    if request.ablation != CORRUPTED:
        notes.append(
            f"Ablation: {request.ablation}. Corrupted is the run in which every node is ablated so; "
            "means are over the attributed examples."
        )
    if bench.paper is not None:
        notes.append(f"Paper: {bench.paper.source}; it does not say how its edges were selected.")
    log = request.grid == defaults.MIB_GRID
    parts = [
        _methods_table(rows, areas, prices),
        _areas_table(areas, random_areas) if areas else None,
        _means_table(rows),
        _random_table(random),
        comparison(bench),
    ]
    parts += [_task_section(group) for group in grouped(rows, "task", "how").values()]
    return Outcome(
        name=name,
        title=f"Faithfulness against sparsity in {bench.title}",
        rows=rows,
        text="\n\n".join(part for part in parts if part),
        figures={name: lambda: draw_curves(rows, bench.title, log=log, areas=areas, random=random)},
        notes=tuple(notes),
        facts={"random": random, "prices": prices, **({"mib": areas, "mib_random": random_areas} if areas else {})},
    )


def curve(bench: Bench, task: str, method: MethodSpec, how: str) -> list[Row]:
    """The circuits of a method and selection: one for each sparsity."""
    return [circuit_row(bench, task, method, how, sparsity) for sparsity in bench.sparsities(task)]


def circuit_row(bench: Bench, task: str, method: MethodSpec, how: str, sparsity: float) -> Row:
    """One measured circuit of a sparsity, with the paper's number if there is one."""
    row = measured_row(bench, task, method, how, bench.edges(sparsity), sparsity=sparsity)
    paper = None if bench.paper is None else bench.paper.faithfulness(task, sparsity, method.label)
    return row if paper is None else {**row, "paper": paper, "difference": row["faithfulness"] - paper}


def measured_row(bench: Bench, task: str, method: MethodSpec, how: str, n: int, **size: float) -> Row:
    """One measured circuit of n edges; ``size`` is the column of its sparsity, if there is one."""
    cell = circuit_cell(bench, task, method, how, n)
    row: Row = {"task": task, "method": method.label, "steps": method.steps, "how": how, **size}
    row |= {name: cell[name] for name in ("edges_requested", "edges_kept", "clean", "corrupted", "circuit")}
    for name in ("faithfulness", "error"):
        row[name] = cell[name]
        row[f"{name}_low"], row[f"{name}_high"] = cell[f"{name}_interval"] or (None, None)
    row["examples"] = len(bench.task(task, "test"))
    row["examples_attributed"] = len(bench.task(task, "train"))
    if not bench.task(task, "test").facts.get("held_out", True):
        row["held_out"] = False  # the user's data has too few pairs
    return row


def _areas(bench: Bench) -> list[Row]:
    """MIB's areas, one row per task, selection and method."""
    return [
        {"task": task, "method": method.label, "how": how, **asdict(_areas_of(bench, task, method, how))}
        for task, how, method in product(bench.request.task_names, bench.request.hows, bench.request.methods)
    ]


def _areas_of(bench: Bench, task: str, method: MethodSpec, how: str) -> mib.Areas:
    cells = _cells(bench, task, method, how)
    clean, corrupted = (torch.tensor(cells[0][f"{end}_values"]) for end in ("clean", "corrupted"))
    return mib.areas(clean, corrupted, [torch.tensor(cell["values"]) for cell in cells])


def _random_areas(bench: Bench) -> list[Row]:
    """MIB's areas of random rankings, one row per task: mean, smallest and largest."""
    rows = []
    for task in bench.request.task_names:
        areas = [_areas_of(bench, task, bench.request.methods[0], how) for how in RANDOM]
        row: Row = {"task": task, "rankings": len(areas)}
        for name in ("cpr", "cmd"):
            values = [getattr(ranking, name) for ranking in areas]
            row |= {name: sum(values) / len(values), f"{name}_range": [min(values), max(values)]}
        rows.append(row)
    return rows


def _cells(bench: Bench, task: str, method: MethodSpec, how: str) -> list[Cell]:
    return [circuit_cell(bench, task, method, how, n) for n in bench.sizes(task)]


def _areas_table(rows: Sequence[Row], random: Sequence[Row]) -> str:
    def cells(row: Row, ends: str) -> list[str]:
        return [with_interval(row[name], *row[f"{name}_{ends}"]) for name in ("cpr", "cmd")]

    # Random rankings have no method: their line is the same under each.
    n = len(grouped(rows, "method"))
    lines = [[f"{task_title(row['task'])}, random", *cells(row, "range") * n] for row in random]
    reading = f"random: the mean of {random[0]['rankings']} random rankings, and the smallest and largest of them."
    table = _by_method("areas of MIB", ("CPR", "CMD"), rows, lambda group: cells(group[0], "interval"), lines)
    return f"## MIB\n\n{reading}\n\n{table}"


def _means_table(rows: Sequence[Row]) -> str:
    def cells(group: Sequence[Row]) -> list[str]:
        return [percent(mean_of(group, "faithfulness")), f"{mean_of(group, 'error'):.3f}"]

    return "## Means\n\n" + _by_method("mean over sparsities", ("NFS", "error"), rows, cells)


def _random_table(rows: Sequence[Row]) -> str:
    """The faithfulness and error of random circuits of the same sizes: a line per task, means over sparsities."""
    lines = []
    for task, group in grouped(rows, "task").items():
        line = [task_title(task)]
        for name, text in (("faithfulness", percent), ("error", lambda x: f"{x:.3f}")):
            low, value, high = (text(mean_of(group, key)) for key in (f"{name}_low", name, f"{name}_high"))
            line.append(f"{value} ({low} to {high})")
        lines.append(line)
    headings = [f"mean over sparsities, {rows[0]['circuits']} circuits each", "NFS (from, to)", "error (from, to)"]
    return "## Random circuits\n\nWith as many edges, drawn at random and pruned.\n\n" + markdown(headings, lines)


def price_rows(bench: Bench) -> list[Row]:
    """The passes that each method's scores took, as means over tasks; no rows if scores were deleted."""
    rows, tasks = [], bench.request.task_names
    for method in bench.request.methods:
        if not all(bench.store.has_scores(bench.scores_key(task, method)) for task in tasks):
            return []
        passes = [bench.scores(task, method).facts.passes for task in tasks]
        row: Row = {"method": method.label}
        for kind in ("forward", "backward"):
            row[kind] = sum(counts[kind] for counts in passes) / len(tasks)
        row["units"] = (row["forward"] + 2 * row["backward"]) / 3
        rows.append(row)
    return rows


def _methods_table(rows: Sequence[Row], areas: Sequence[Row], prices: Sequence[Row]) -> str | None:
    """One line per method and selection: means over tasks and sparsities, and the price of the scores."""
    if len({(row["method"], row["how"]) for row in rows}) <= 1:
        return None
    price, lines = {row["method"]: row for row in prices}, []
    cmd = grouped(areas, "method", "how")
    for (method, how), group in grouped(rows, "method", "how").items():
        line = [f"{method_title(method)}, {how}"]
        line += [percent(mean_of(group, "faithfulness")), f"{mean_of(group, 'error'):.3f}"]
        line += [f"{mean_of(cmd[method, how], 'cmd'):.3f}"] if areas else []
        if method in price:
            line += [f"{price[method][key]:.4g}" for key in ("forward", "backward", "units")]
        lines.append(line)
    headings = ["mean over tasks and sparsities", "NFS", "error", *(["CMD"] if areas else [])]
    headings += ["forward", "backward", "units"] if prices else []
    return "## Methods\n\n" + markdown(headings, lines)


def _by_method(
    title: str,
    names: Sequence[str],
    rows: Sequence[Row],
    cells: Callable[[Sequence[Row]], list[str]],
    more: Sequence[list[str]] = (),
) -> str:
    """A table with a line per task and selection, and the ``cells`` of each method in it; then the lines ``more``."""
    lines = []
    for (task, how), group in grouped(rows, "task", "how").items():
        by_method = grouped(group, "method").values()
        lines.append([f"{task_title(task)}, {how}", *chain.from_iterable(map(cells, by_method))])
    headings = [title, *(f"{label} {name}" for label in grouped(rows, "method") for name in names)]
    return markdown(headings, [*lines, *more])


def examples_of(row: Row) -> str:
    """The numbers of examples that were attributed and measured, as text."""
    if not row.get("held_out", True):
        return f"{row['examples']} examples for both attribution and evaluation: nothing is held out"
    return f"{row['examples_attributed']} examples for attribution, {row['examples']} held out"


def _task_section(rows: Sequence[Row]) -> str:
    """The circuits of one task and selection, a line per sparsity."""
    first = rows[0]
    head = f"## {task_title(first['task'])}, {first['how']}\n\n{examples_of(first)}.\n\n"
    labels = {label: any("paper" in row for row in group) for label, group in grouped(rows, "method").items()}
    headings = ["sparsity", "edges requested"]
    for label, has_paper in labels.items():
        headings += [f"{label} NFS [95%]", "error", "edges"] + (["paper", "difference"] if has_paper else [])
    lines = []
    for sparsity, group in grouped(rows, "sparsity").items():
        line = [f"{100 * sparsity:.4g}%", f"{group[0]['edges_requested']:,}"]
        for row in {row["method"]: row for row in group}.values():
            line += [nfs(row), f"{row['error']:.3f}", f"{row['edges_kept']:,}"]
            line += [percent(row.get("paper")), signed(row.get("difference"))] if labels[row["method"]] else []
        lines.append(line)
    return head + markdown(headings, lines)


def comparison(bench: Bench) -> str | None:
    """Tables of the differences from EAP-IG with the first selection, in error and in |1 - NFS|.

    Without EAP-IG the baseline is the first method. None if there is nothing to compare.
    """
    request, hows = bench.request, bench.request.hows
    pairs = [(method, how) for how, method in product(hows, request.methods)]
    pairs.sort(key=lambda pair: (pair[1] != hows[0], pair[0].label != "eap-ig"))
    if len(pairs) <= 1:
        return None
    first, *others = [method.label if len(hows) == 1 else f"{method.label}, {how}" for method, how in pairs]
    reading = (
        f"Means over sparsities minus those of {first}, on the same examples, with the 95% bootstrap interval of "
        "the difference. Below zero is better; bold where the interval excludes zero."
    )
    cells = {task: [_cells(bench, task, method, how) for method, how in pairs] for task in request.task_names}

    def text(difference: Difference) -> str:
        value = with_interval(difference.value, difference.low, difference.high, "+.3f", "+.3f")
        return f"**{value}**" if difference.is_clear else value

    tables = []
    for name, difference in DIFFERENCES.items():
        lines = [
            [task_title(task), *(text(difference(x, baseline)) for x in compared)]
            for task, (baseline, *compared) in cells.items()
        ]
        tables.append(markdown([name, *others], lines))
    return "\n\n".join([f"## Compared with {first}", reading, *tables])


FAITHFULNESS = Experiment("faithfulness", jobs, outcome)


def draw_curves(
    rows: Sequence[Row], model: str, *, log: bool, areas: Sequence[Row] = (), random: Sequence[Row] = ()
) -> Figure:
    """NFS against sparsity: panels are tasks, colours are methods, line styles are selections.

    The grey band is from the worst to the best of the random circuits. The other bands are 95% intervals. Open circles
    are the paper's numbers. Panels list the MIB areas of their lines.
    """
    tasks = grouped(rows, "task")
    figure, axes, columns = tiled(len(tasks), (4.2, 3.3), (1.2, 1.3))
    for (task, group), ax in zip(tasks.items(), axes, strict=False):
        _curve_panel(ax, group, [row for row in random if row["task"] == task], log)
        _list_areas(ax, [row for row in areas if row["task"] == task])
    figure.suptitle(f"Normalized faithfulness of circuits in {model}", fontsize=12, color=INK)
    handles = _curve_handles(rows, random)
    figure.legend(handles=handles, loc="outside lower center", ncols=2 * columns, fontsize=8.5, frameon=False)
    return figure


def tiled(
    n: int, size: tuple[float, float], margin: tuple[float, float], columns: int = 3
) -> tuple[Figure, list[Axes], int]:
    """A figure of n panels in up to so many columns, the others hidden. Returns the number of columns, too."""
    columns = min(columns, n)
    lines = -(-n // columns)
    figure, axes = panels(lines, columns, (size[0] * columns + margin[0], size[1] * lines + margin[1]))
    for ax in axes[n:]:
        ax.set_visible(False)
    return figure, axes, columns


def _curve_panel(ax: Axes, rows: Sequence[Row], random: Sequence[Row], log: bool) -> None:
    def x_of(rows: Sequence[Row]) -> list[float]:
        return [100 * (1 - row["sparsity"]) if log else 100 * row["sparsity"] for row in rows]

    def ends_of(row: Row) -> list[float]:  # not drawn where there is no interval
        ends = (row[f"faithfulness_{end}"] for end in ("low", "high"))
        return [math.nan if end is None else 100 * end for end in ends]

    def band(rows: Sequence[Row], **style: Any) -> None:
        low, high = zip(*map(ends_of, rows), strict=True)
        ax.fill_between(x_of(rows), low, high, **style)

    labels, hows = list(grouped(rows, "method")), list(grouped(rows, "how"))
    ax.axhline(100, color=MUTED, linewidth=0.8, linestyle=":")
    for label, how in product(labels, hows):
        curve = [row for row in rows if (row["method"], row["how"]) == (label, how)]
        y, paint, main = [100 * row["faithfulness"] for row in curve], colour(label, labels), how == hows[0]
        style: dict[str, Any] = {"color": paint, "marker": marker(label, labels), "linestyle": LINES.get(how, ":")}
        style |= {"markersize": 4, "linewidth": 1.6} if main else {"markersize": 3, "linewidth": 1.1}
        ax.plot(x_of(curve), y, **style, clip_on=False)  # whole markers at the end of the axis
        if main:
            band(curve, color=paint, alpha=0.13, linewidth=0)
            if len(curve) == 1:  # a band has no width at one size
                ax.plot(2 * x_of(curve), ends_of(curve[0]), color=paint, marker="_", markersize=9, linewidth=1.2)
            if paper := [row for row in curve if "paper" in row]:
                y = [100 * row["paper"] for row in paper]
                ax.scatter(x_of(paper), y, s=34, facecolors="none", edgecolors=paint, linewidths=1.1)
    kind = "held-out examples" if rows[0].get("held_out", True) else "examples"
    ax.set_title(f"{task_title(rows[0]['task'])}  ({rows[0]['examples']} {kind})", color=INK)
    ax.set_xlabel("edges kept (% of all edges)" if log else "edge sparsity (% of edges left out)")
    ax.set_ylabel("NFS (% of clean - corrupted)")
    if log:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    fit(ax, rows)
    band(random, color=GREY, alpha=0.35, linewidth=0.8, zorder=0)
    if not log:
        first, last = ax.get_xlim()  # no circuit leaves out fewer edges than none, or more than all
        ax.set_xlim(min(100.0, last), max(0.0, first))


def _list_areas(ax: Axes, areas: Sequence[Row]) -> None:
    """A legend with the CPR and CMD of every line."""
    from matplotlib.lines import Line2D

    labels = list(grouped(areas, "method"))
    handles = []
    for row in areas:
        style = {"color": colour(row["method"], labels), "linestyle": LINES.get(row["how"], ":")}
        handles.append(Line2D([], [], label=f"CPR {row['cpr']:.2f}  CMD {row['cmd']:.2f}", **style))
    if handles:
        ax.legend(handles=handles, fontsize=7, loc="best")


def fit(ax: Axes, rows: Sequence[Row]) -> None:
    """Fit the axis to the curves, not to their intervals, which are very wide for circuits of a few edges."""
    values = [100 * row["faithfulness"] for row in rows]
    low, high = min(0.0, *values), max(105.0, *values)
    room = 0.06 * (high - low)
    ax.set_ylim(low - room, high + room)


def _curve_handles(rows: Sequence[Row], random: Sequence[Row]) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    labels, hows = list(grouped(rows, "method")), list(grouped(rows, "how"))
    handles: list[Any] = []
    for x in labels:
        handles.append(Line2D([], [], color=colour(x, labels), marker=marker(x, labels), label=method_title(x)))
    for how in hows:
        title = SELECTION_TITLES.get(how, how) + (" (band: 95% interval)" if how == hows[0] else "")
        handles.append(Line2D([], [], color=INK, linestyle=LINES.get(how, ":"), label=title))
    if any("paper" in row for row in rows):
        circle: dict[str, Any] = {"marker": "o", "linestyle": "", "markerfacecolor": "none"}
        handles.append(Line2D([], [], color=INK, label="the paper's figure", **circle))
    if random:
        handles.append(Patch(color=GREY, alpha=0.35, label=f"{random[0]['circuits']} random circuits"))
    return handles
