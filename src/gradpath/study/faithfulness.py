"""Faithfulness against sparsity: the paper's main figure and its three large tables, and ``gradpath curve``.

For every task, method, selection and sparsity: the share of the behaviour that the circuit keeps (NFS) and the
error per example, on examples that were not attributed, with intervals, and the number of edges after pruning.
All methods and selections are compared with one of them on the same examples. On MIB's grid there are its areas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from typing import TYPE_CHECKING, Any

import torch

from gradpath import defaults
from gradpath.ablation import CORRUPTED
from gradpath.evaluation import mib
from gradpath.evaluation.result import Cell, distance_difference, error_difference
from gradpath.report.style import GREY, INK, LINES, MUTED, colour, fit, marker, method_title, task_title, tiled
from gradpath.study.bench import Bench, Row
from gradpath.study.outcome import Experiment, Outcome, grouped, markdown, mean_of, spread, with_interval
from gradpath.study.tables import comparison_table, means_table, size_tables, way_of

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
# Random circuits of the same sizes: the baseline of every curve.
RANDOM = tuple(f"random+seed={seed}" for seed in range(5))
Way = tuple[str, str]  # a method and a selection
AREAS = ("cpr", "cmd")
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
    areas = _areas(bench) if study.measures_mib else []
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
    ways = _ways(bench)
    if name == "curve":  # one task: its best way is what the others are compared with
        errors = {way: mean_of(group, "error") for way, group in grouped(rows, "method", "selection").items()}
        ways.sort(key=lambda way: errors[way])
    differences = [row for task in study.task_names for row in _differences(bench, task, ways)]
    told = {"advice": advice(rows, ways, differences)} if name == "curve" else {}
    shown, random_shown = (
        [{**row, "model": bench.title, "size": f"{100 * row['sparsity']:.4g}% sparsity"} for row in some]
        for some in (rows, [{**row, "method": "random", "selection": ""} for row in random])
    )
    more = {kind: {row["method"]: f"{row[kind]:.4g}" for row in prices} for kind in ("forward", "backward", "units")}
    parts = [
        *(one["sentence"] for one in told.values()),
        means_table(shown, random_shown, more),
        *([_areas_table(areas)] if areas else []),
        *([comparison_table(", ".join(ways[0]), differences)] if differences else []),
        *size_tables(shown, random_shown),
    ]
    return Outcome(
        name=name,
        title=f"Faithfulness against sparsity in {bench.title}",
        rows=rows,
        text="\n\n".join(parts),
        figures={name: lambda: draw_curves(rows, bench.title, log=log, random=random)},
        notes=tuple(notes),
        facts={
            "random": random,
            "prices": prices,
            "compared": differences,
            **told,
            **({"mib": areas} if areas else {}),
        },
    )


def _ways(bench: Bench) -> list[Way]:
    """All methods with all selections; EAP-IG with the first selection comes first, if it is among them."""
    first = bench.study.selections[0]
    ways = [(method, selection) for selection, method in product(bench.study.selections, bench.study.methods)]
    return sorted(ways, key=lambda way: (way[1] != first, way[0] != "eap-ig"))


def _cells(bench: Bench, task: str, method: str, selection: str) -> Sequence[Cell]:
    """The cells of one curve."""
    return bench.measure(list(bench.study.recipes(task, bench.sizes(task), [method], [selection])))


def _differences(bench: Bench, task: str, ways: Sequence[Way]) -> list[Row]:
    """Every way minus the first one: means over sizes, with bootstrap intervals over the examples that both ran on."""
    baseline, *others = (_cells(bench, task, *way) for way in ways)
    rows = []
    for (method, selection), cells in zip(ways[1:], others, strict=True):
        row: Row = {"model": bench.title, "task": task, "method": method, "selection": selection}
        for name, function in (("error", error_difference), ("distance", distance_difference)):
            found = function(cells, baseline)
            row |= {f"{name}_difference": found.value, f"{name}_low": found.low, f"{name}_high": found.high}
            row[f"{name}_clear"] = found.is_clear
        rows.append(row)
    return rows


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


def _areas_table(rows: Sequence[Row]) -> str:
    lines = [
        [f"{task_title(row['task'])}: {way_of(row)}", *(with_interval(row[x], *row[f"{x}_interval"]) for x in AREAS)]
        for row in rows
    ]
    return "## MIB\n\n" + markdown(["", *map(str.upper, AREAS)], lines)


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


def draw_curves(
    rows: Sequence[Row], model: str, *, log: bool, random: Sequence[Row] = (), band: str = "95% interval"
) -> Figure:
    """NFS against sparsity: panels are tasks, colours are methods, line styles are selections.

    The grey band is from the worst to the best of the random circuits; ``band`` says what the others are. Open circles
    are the paper's numbers.
    """
    tasks = grouped(rows, "task")
    figure, axes, columns = tiled(len(tasks), (4.2, 3.3), (1.2, 1.3))
    for (task, group), ax in zip(tasks.items(), axes, strict=False):
        _curve_panel(ax, group, [row for row in random if row["task"] == task], log)
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


def advice(rows: Sequence[Row], ways: Sequence[Way], differences: Sequence[Row]) -> dict[str, Any]:
    """What the curves of one task suggest: a size, its reason, and a sentence.

    ``ways`` are sorted by their mean error over all sizes. The size is the smallest one measured at which the best way
    keeps the share that ``find`` looks for.
    """
    best = grouped(rows, "method", "selection")[ways[0]]
    size, reason = _suggested(best)
    ties = [way_of(row) for row in differences if not row["error_clear"]]
    sentence = f"{', '.join(ways[0])} has the smallest mean error ({mean_of(best, 'error'):.3f})"
    if ties:
        sentence += f", which is not clearly smaller than that of {' and '.join(ties)}"
    elif differences:
        sentence += f", clearly smaller than {'that of the other' if len(ways) == 2 else 'those of all others'}"
    sentence += f"; suggested size: {size:,} edges, {reason}."
    return {"sentence": sentence, "edges": size, "reason": reason}


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
