"""Faithfulness against sparsity: the paper's main figure and its three large tables, and ``gradpath curve``.

For every task, method, selection and sparsity: the share of the behaviour that the circuit keeps (NFS) and the
error per example, on examples that were not attributed, with intervals, and the number of edges after pruning.
All methods and selections are compared with one of them on the same examples. On MIB's grid there are its areas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import chain, combinations, product
from typing import TYPE_CHECKING, Any

import torch

from gradpath import defaults
from gradpath.ablation import CORRUPTED
from gradpath.evaluation import mib
from gradpath.evaluation.result import Cell, Difference, distance_difference, error_difference
from gradpath.report.style import GREY, INK, LINES, MUTED, colour, fit, marker, method_title, task_title, tiled
from gradpath.study.bench import Bench, Row
from gradpath.study.outcome import (
    Experiment,
    Outcome,
    grouped,
    markdown,
    mean_of,
    nfs,
    percent,
    signed,
    spread,
    with_interval,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

READING = (
    "NFS: normalized faithfulness in percent, (circuit - corrupted) / (clean - corrupted) on means, with its "
    "95% interval over examples. Error: mean |circuit - clean| / mean |clean - corrupted|, 0 being "
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
# Random circuits of the same sizes: the baseline of every curve.
RANDOM = tuple(f"random+seed={seed}" for seed in range(5))
SELECTION_TITLES = {
    "top": "top-n edges by |score|",
    "greedy": "greedy from the logits",
    "signed": "top-n edges by score, the sign counted",
    "refined": "refined on the circuit itself",
    "learned": "learned as weights of edges",
}


def curve_rows(bench: Bench, task: str) -> list[Row]:
    """The rows of all circuits of the study on a task."""
    return bench.rows(list(bench.study.recipes(task, bench.sizes(task))))


def random_rows(bench: Bench, task: str, rows: Sequence[Row]) -> list[Row]:
    """For every size of some circuits the faithfulness and error of random ones: mean, worst and best."""
    sizes = grouped([row for row in rows if row["edges_requested"]], "seed", "edges_requested")
    recipes = [
        # A cell belongs to scores: to those of the first circuit of this size.
        bench.study.at(task, group[0]["method"], seed).changed(selection=selection, edges=n)
        for ((seed, n), group), selection in product(sizes.items(), RANDOM)
    ]
    measured, found = bench.rows(recipes), list[Row]()
    for i, group in enumerate(sizes.values()):
        names = ["task", "seed", "size", "sparsity", "edges_requested", "examples", "examples_attributed", "held_out"]
        row = {name: group[0][name] for name in names if name in group[0]}
        circuits = measured[i * len(RANDOM) : (i + 1) * len(RANDOM)]
        found.append({**row, "circuits": len(circuits), **spread(circuits, "faithfulness", "error")})
    return found


def outcome(bench: Bench, name: str = "faithfulness") -> Outcome:
    study, rows, random = bench.study, list[Row](), list[Row]()
    for task in study.task_names:
        own = curve_rows(bench, task)
        rows, random = rows + own, random + random_rows(bench, task, own)
    areas, random_areas = (_areas(bench), _random_areas(bench)) if study.measures_mib else ([], [])
    prices = price_rows(bench)
    notes = [READING, *([MIB_READING] if areas else []), PRICE_READING]
    if study.recipe.ablation != CORRUPTED:
        notes.append(
            f"Ablation: {study.recipe.ablation}. Corrupted is the run in which every node is ablated so; "
            "means are over the attributed examples."
        )
    if bench.paper is not None:
        notes.append(f"Paper: {bench.paper.source}; it does not say how its edges were selected.")
    log = study.grid == defaults.MIB_GRID
    told = {"advice": advice(bench, rows)} if name == "curve" else {}
    parts = [
        _methods_table(rows, areas, prices),
        _areas_table(areas, random_areas) if areas else None,
        "## Means\n\n" + _by_method("mean over sparsities", ("NFS", "error"), rows, _means),
        _random_table(random),
        comparison(bench),
    ]
    parts += [_task_section(group) for group in grouped(rows, "task", "selection").values()]
    return Outcome(
        name=name,
        title=f"Faithfulness against sparsity in {bench.title}",
        rows=rows,
        text="\n\n".join(part for part in [*(one["sentence"] for one in told.values()), *parts] if part),
        figures={name: lambda: draw_curves(rows, bench.title, log=log, areas=areas, random=random)},
        notes=tuple(notes),
        facts={
            "random": random,
            "prices": prices,
            **told,
            **({"mib": areas, "mib_random": random_areas} if areas else {}),
        },
    )


def _cells(bench: Bench, task: str, method: str, selection: str) -> Sequence[Cell]:
    """The cells of one curve."""
    return bench.measure(list(bench.study.recipes(task, bench.sizes(task), [method], [selection])))


def _areas(bench: Bench) -> list[Row]:
    """MIB's areas, one row per task, selection and method."""
    study = bench.study
    return [
        {"task": task, "method": method, "selection": name, **asdict(_areas_of(bench, task, method, name))}
        for task, name, method in product(study.task_names, study.selections, study.methods)
    ]


def _areas_of(bench: Bench, task: str, method: str, selection: str) -> mib.Areas:
    cells = _cells(bench, task, method, selection)
    clean, corrupted = (torch.tensor(cells[0][f"{end}_values"]) for end in ("clean", "corrupted"))
    return mib.areas(clean, corrupted, [torch.tensor(cell["values"]) for cell in cells])


def _random_areas(bench: Bench) -> list[Row]:
    """MIB's areas of random rankings, one row per task: mean, smallest and largest."""
    rows = []
    for task in bench.study.task_names:
        areas = [_areas_of(bench, task, bench.study.methods[0], selection) for selection in RANDOM]
        row: Row = {"task": task, "rankings": len(areas)}
        for name in ("cpr", "cmd"):
            values = [getattr(ranking, name) for ranking in areas]
            row |= {name: sum(values) / len(values), f"{name}_range": [min(values), max(values)]}
        rows.append(row)
    return rows


def _areas_table(rows: Sequence[Row], random: Sequence[Row]) -> str:
    def cells(row: Row, ends: str) -> list[str]:
        return [with_interval(row[name], *row[f"{name}_{ends}"]) for name in ("cpr", "cmd")]

    # Random rankings have no method: their line is the same under each.
    n = len(grouped(rows, "method"))
    lines = [[f"{task_title(row['task'])}, random", *cells(row, "range") * n] for row in random]
    reading = f"random: the mean of {random[0]['rankings']} random rankings, and the smallest and largest of them."
    table = _by_method("areas of MIB", ("CPR", "CMD"), rows, lambda group: cells(group[0], "interval"), lines)
    return f"## MIB\n\n{reading}\n\n{table}"


def _means(group: Sequence[Row]) -> list[str]:
    return [percent(mean_of(group, "faithfulness")), f"{mean_of(group, 'error'):.3f}"]


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
    """The passes that each method's scores took, as means over tasks."""
    rows, tasks = [], bench.study.task_names
    for method in bench.study.methods:
        prices = [bench.price(bench.study.at(task, method)) for task in tasks]
        row: Row = {"method": method}
        for kind in ("forward", "backward"):
            row[kind] = sum(price[kind] for price in prices) / len(tasks)
        row["units"] = (row["forward"] + 2 * row["backward"]) / 3
        rows.append(row)
    return rows


def _methods_table(rows: Sequence[Row], areas: Sequence[Row], prices: Sequence[Row]) -> str | None:
    """One line per method and selection: means over tasks and sparsities, and the price of the scores."""
    if len({(row["method"], row["selection"]) for row in rows}) <= 1:
        return None
    price, lines = {row["method"]: row for row in prices}, []
    cmd = grouped(areas, "method", "selection")
    for (method, selection), group in grouped(rows, "method", "selection").items():
        line = [f"{method_title(method)}, {selection}", *_means(group)]
        line += [f"{mean_of(cmd[method, selection], 'cmd'):.3f}"] if areas else []
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
    for (task, selection), group in grouped(rows, "task", "selection").items():
        by_method = grouped(group, "method").values()
        lines.append([f"{task_title(task)}, {selection}", *chain.from_iterable(map(cells, by_method))])
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
    head = f"## {task_title(first['task'])}, {first['selection']}\n\n{examples_of(first)}.\n\n"
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
    study, selections = bench.study, bench.study.selections
    pairs = [(method, selection) for selection, method in product(selections, study.methods)]
    pairs.sort(key=lambda pair: (pair[1] != selections[0], pair[0] != "eap-ig"))
    if len(pairs) <= 1:
        return None
    first, *others = [method if len(selections) == 1 else f"{method}, {selection}" for method, selection in pairs]
    reading = (
        f"Means over sparsities minus those of {first}, on the same examples, with the 95% bootstrap interval of "
        "the difference. Below zero is better; bold where the interval excludes zero."
    )
    cells = {task: [_cells(bench, task, *pair) for pair in pairs] for task in study.task_names}

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


def draw_curves(
    rows: Sequence[Row],
    model: str,
    *,
    log: bool,
    areas: Sequence[Row] = (),
    random: Sequence[Row] = (),
    band: str = "95% interval",
) -> Figure:
    """NFS against sparsity: panels are tasks, colours are methods, line styles are selections.

    The grey band is from the worst to the best of the random circuits; ``band`` says what the others are. Open circles
    are the paper's numbers. Panels list the MIB areas of their lines.
    """
    tasks = grouped(rows, "task")
    figure, axes, columns = tiled(len(tasks), (4.2, 3.3), (1.2, 1.3))
    for (task, group), ax in zip(tasks.items(), axes, strict=False):
        _curve_panel(ax, group, [row for row in random if row["task"] == task], log)
        _list_areas(ax, [row for row in areas if row["task"] == task])
    figure.suptitle(f"Normalized faithfulness of circuits in {model}", fontsize=12, color=INK)
    handles = _curve_handles(rows, random, band)
    figure.legend(handles=handles, loc="outside lower center", ncols=2 * columns, fontsize=8.5, frameon=False)
    return figure


def _curve_panel(ax: Axes, rows: Sequence[Row], random: Sequence[Row], log: bool) -> None:
    def x_of(rows: Sequence[Row]) -> list[float]:
        return [100 * (1 - row["sparsity"]) if log else 100 * row["sparsity"] for row in rows]

    def ends_of(row: Row) -> list[float]:  # not drawn where there is no interval
        ends = (row[f"faithfulness_{end}"] for end in ("low", "high"))
        return [math.nan if end is None else 100 * end for end in ends]

    def band(rows: Sequence[Row], **style: Any) -> None:
        low, high = ([ends_of(row)[at] for row in rows] for at in (0, 1))
        ax.fill_between(x_of(rows), low, high, **style)

    labels, selections = list(grouped(rows, "method")), list(grouped(rows, "selection"))
    ax.axhline(100, color=MUTED, linewidth=0.8, linestyle=":")
    for label, selection in product(labels, selections):
        curve = [row for row in rows if (row["method"], row["selection"]) == (label, selection)]
        y, paint, main = [100 * row["faithfulness"] for row in curve], colour(label, labels), selection == selections[0]
        style: dict[str, Any] = {
            "color": paint,
            "marker": marker(label, labels),
            "linestyle": LINES.get(selection, ":"),
        }
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
        style = {"color": colour(row["method"], labels), "linestyle": LINES.get(row["selection"], ":")}
        handles.append(Line2D([], [], label=f"CPR {row['cpr']:.2f}  CMD {row['cmd']:.2f}", **style))
    if handles:
        ax.legend(handles=handles, fontsize=7, loc="best")


def _curve_handles(rows: Sequence[Row], random: Sequence[Row], band: str) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    labels, selections = list(grouped(rows, "method")), list(grouped(rows, "selection"))
    handles: list[Any] = []
    for x in labels:
        handles.append(Line2D([], [], color=colour(x, labels), marker=marker(x, labels), label=method_title(x)))
    for name in selections:
        title = SELECTION_TITLES.get(name, name) + (f" (band: {band})" if name == selections[0] else "")
        handles.append(Line2D([], [], color=INK, linestyle=LINES.get(name, ":"), label=title))
    if any("paper" in row for row in rows):
        circle: dict[str, Any] = {"marker": "o", "linestyle": "", "markerfacecolor": "none"}
        handles.append(Line2D([], [], color=INK, label="the paper's figure", **circle))
    if random:
        handles.append(Patch(color=GREY, alpha=0.35, label=f"{random[0]['circuits']} random circuits"))
    return handles


def advice(bench: Bench, rows: Sequence[Row]) -> dict[str, Any]:
    """What the curves of one task suggest: the pairs of curves compared, a size and its reason, and a sentence.

    Curves are compared by their mean error over all sizes, on the same examples. The size is the smallest one measured
    at which the curve with the smallest mean error keeps the share that ``find`` looks for.
    """
    [task] = bench.study.task_names
    curves = grouped(rows, "method", "selection")
    ranked = sorted(curves, key=lambda curve: mean_of(curves[curve], "error"))
    cells = {curve: _cells(bench, task, *curve) for curve in ranked}
    pairs = list[dict[str, Any]]()
    for better, worse in combinations(ranked, 2):
        difference = error_difference(cells[better], cells[worse])
        pairs.append(
            {
                "a": ", ".join(better),
                "b": ", ".join(worse),
                "clear": difference.is_clear,
                "error_difference": difference.value,
                "low": difference.low,
                "high": difference.high,
            }
        )
    best = ranked[0]
    size, reason = _suggested(curves[best])
    ties = [pair["b"] for pair in pairs[: len(ranked) - 1] if not pair["clear"]]
    sentence = f"{', '.join(best)} has the smallest mean error ({mean_of(curves[best], 'error'):.3f})"
    if ties:
        sentence += f", which is not clearly smaller than that of {' and '.join(ties)}"
    elif len(ranked) > 1:
        sentence += f", clearly smaller than {'that of the other' if len(ranked) == 2 else 'those of all others'}"
    sentence += f"; suggested size: {size:,} edges, {reason}."
    return {"sentence": sentence, "edges": size, "reason": reason, "pairs": pairs}


def _suggested(rows: Sequence[Row]) -> tuple[int, str]:
    """A number of edges for a curve, and why."""
    share = defaults.FAITHFULNESS
    enough = [row for row in rows if abs(1 - row["faithfulness"]) <= 1 - share]
    if enough:
        row = min(enough, key=lambda row: row["edges_requested"])
        return row["edges_requested"], f"the smallest one measured that keeps {share:.0%} ({row['faithfulness']:.1%})"
    row = min(rows, key=lambda row: row["error"])
    kept = f"no size measured keeps {share:.0%} ({row['faithfulness']:.1%})"
    return row["edges_requested"], f"where the error is smallest ({row['error']:.3f}); {kept}"


FAITHFULNESS = Experiment("faithfulness", outcome)
