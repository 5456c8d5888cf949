"""The figure of faithfulness against sparsity: panels are tasks, colours methods, line styles selections."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gradpath.experiments.figures import INK, LINES, MUTED, colour, marker, method_title, panels, task_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]


def draw_curves(rows: Rows, model: str, *, log: bool, areas: Rows = ()) -> Figure:
    """NFS with its interval. The paper's own figures, where rows have them, are open circles.

    ``areas`` are MIB's, which each panel then lists for its lines.
    """
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    columns = min(3, len(tasks))
    lines = math.ceil(len(tasks) / columns)
    figure, axes = panels(lines, columns, (4.2 * columns + 1.2, 3.3 * lines + 1.3))
    for task, ax in zip(tasks, axes, strict=False):
        _panel(ax, [row for row in rows if row["task"] == task], log)
        _list_areas(ax, [row for row in areas if row["task"] == task])
    for ax in axes[len(tasks) :]:
        ax.set_visible(False)
    figure.suptitle(f"Normalized faithfulness of circuits in {model}", fontsize=12, color=INK)
    figure.legend(
        handles=_legend(rows), loc="outside lower center", ncols=2 * columns, fontsize=8.5, frameon=False
    )
    return figure


def _panel(ax: Axes, rows: Rows, log: bool) -> None:
    labels = list(dict.fromkeys(row["method"] for row in rows))
    hows = list(dict.fromkeys(row["how"] for row in rows))
    ax.axhline(100, color=MUTED, linewidth=0.8, linestyle=":")
    for label in labels:
        for how in hows:
            own = [row for row in rows if (row["method"], row["how"]) == (label, how)]
            look = {"color": colour(label, labels), "marker": marker(label, labels)}
            _curve(ax, own, {**look, "linestyle": LINES.get(how, ":")}, band=how == hows[0], log=log)
    first = rows[0]
    ax.set_title(f"{task_title(first['task'])}  ({first['examples']} held-out examples)", color=INK)
    ax.set_xlabel("edges kept (% of all edges)" if log else "edge sparsity (% of edges left out)")
    ax.set_ylabel("NFS (% of clean - corrupted)")
    if log:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    else:
        ax.invert_xaxis()
    fit(ax, rows)


def _curve(ax: Axes, rows: Rows, look: dict[str, Any], *, band: bool, log: bool) -> None:
    x = [100 * (1 - row["sparsity"]) if log else 100 * row["sparsity"] for row in rows]
    y = [100 * row["faithfulness"] for row in rows]
    size: Any = {"markersize": 4, "linewidth": 1.6} if band else {"markersize": 3, "linewidth": 1.1}
    ax.plot(x, y, **look, **size)
    if band:
        low, high = ([100 * row[f"faithfulness_{end}"] for row in rows] for end in ("low", "high"))
        ax.fill_between(x, low, high, color=look["color"], alpha=0.13, linewidth=0)
        paper = [(at, 100 * row["paper"]) for at, row in zip(x, rows, strict=True) if "paper" in row]
        if paper:
            at, value = zip(*paper, strict=True)
            ax.scatter(at, value, s=34, facecolors="none", edgecolors=look["color"], linewidths=1.1)


def _list_areas(ax: Axes, areas: Rows) -> None:
    """CPR and CMD of every line, beside a piece of it."""
    from matplotlib.lines import Line2D

    labels = list(dict.fromkeys(row["method"] for row in areas))
    handles = [
        Line2D(
            [],
            [],
            color=colour(row["method"], labels),
            linestyle=LINES.get(row["how"], ":"),
            label=f"CPR {row['cpr']:.2f}  CMD {row['cmd']:.2f}",
        )
        for row in areas
    ]
    if handles:
        ax.legend(handles=handles, fontsize=7, loc="best")


def fit(ax: Axes, rows: Rows) -> None:
    """Show the curves: an interval that is far out, as at a handful of edges, must not flatten them."""
    values = [100 * row["faithfulness"] for row in rows]
    low, high = min(0.0, *values), max(105.0, *values)
    room = 0.06 * (high - low)
    ax.set_ylim(low - room, high + room)


def _legend(rows: Rows) -> list[Any]:
    from matplotlib.lines import Line2D

    labels = list(dict.fromkeys(row["method"] for row in rows))
    hows = list(dict.fromkeys(row["how"] for row in rows))
    handles = [
        Line2D([], [], color=colour(x, labels), marker=marker(x, labels), label=method_title(x))
        for x in labels
    ]
    names = {"top": "top-n edges by |score|", "greedy": "greedy from the logits"}
    names["signed"] = "top-n edges by score, the sign counted"
    names |= {"balanced": "balanced by sign", "refined": "refined on the circuit itself"}
    names |= {"ratio": "six positive edges to four", "stable": "of a stable sign"}
    names["exchanged"] = "refined, then edges exchanged"
    for how in hows:
        shown = names.get(how, how) + (" (band: 95% interval)" if how == hows[0] else "")
        handles.append(Line2D([], [], color=INK, linestyle=LINES.get(how, ":"), label=shown))
    if any("paper" in row for row in rows):
        circle: dict[str, Any] = {"marker": "o", "linestyle": "", "markerfacecolor": "none"}
        handles.append(Line2D([], [], color=INK, label="the paper's figure", **circle))
    return handles
