"""Figures of curves: faithfulness against sparsity, a panel for each task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from gradpath.report.style import GREY, INK, LINES, MUTED, colour, marker, method_title, panels, task_title
from gradpath.study.bench import Row
from gradpath.study.outcome import grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SELECTION_TITLES = {
    "top": "top-n edges by |score|",
    "greedy": "greedy from the logits",
    "signed": "top-n edges by score, the sign counted",
    "refined": "refined on the circuit itself",
    "learned": "learned as weights of edges",
}


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


def fit(ax: Axes, rows: Sequence[Row]) -> None:
    """Fit the axis to the curves, not to their intervals, which are very wide for circuits of a few edges."""
    values = [100 * row["faithfulness"] for row in rows]
    low, high = min(0.0, *values), max(105.0, *values)
    room = 0.06 * (high - low)
    ax.set_ylim(low - room, high + room)


def _curve_handles(rows: Sequence[Row], random: Sequence[Row]) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    labels, selections = list(grouped(rows, "method")), list(grouped(rows, "selection"))
    handles: list[Any] = []
    for x in labels:
        handles.append(Line2D([], [], color=colour(x, labels), marker=marker(x, labels), label=method_title(x)))
    for name in selections:
        title = SELECTION_TITLES.get(name, name) + (" (band: 95% interval)" if name == selections[0] else "")
        handles.append(Line2D([], [], color=INK, linestyle=LINES.get(name, ":"), label=title))
    if any("paper" in row for row in rows):
        circle: dict[str, Any] = {"marker": "o", "linestyle": "", "markerfacecolor": "none"}
        handles.append(Line2D([], [], color=INK, label="the paper's figure", **circle))
    if random:
        handles.append(Patch(color=GREY, alpha=0.35, label=f"{random[0]['circuits']} random circuits"))
    return handles
