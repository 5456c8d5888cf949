"""Three panels over the way from the clean to the corrupted prompt: gradient, score and metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gradpath.experiments.figures import COLOURS, INK, MARKERS, MUTED, panels, task_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]
PANELS = {
    "gradient": "gradient at the target\n$\\|\\partial L/\\partial\\,in_v\\|$ (metric per unit)",
    "score": "the point's score\n$(x_u - x'_u)\\cdot\\partial L/\\partial\\,in_v$ (metric)",
    "metric": "metric $L$\n(task's own unit)",
}
SHADES = {"flat": "#f0efe9", "saturated": "#e8c9b5"}  # the second lies on the first


def draw_saturation(model: str, task: str, cell: Mapping[str, Any], rows: Rows) -> Figure:
    figure, axes = panels(len(PANELS), 1, (7.8, 8.4), sharex=True)
    line = [row for row in rows if row["path"] == "line"]
    for (name, label), ax in zip(PANELS.items(), axes, strict=True):
        _stretches(ax, line)
        _tracks(ax, cell, name)
        _points(ax, rows, name)
        ax.set_ylabel(label)
    _means(axes[1], rows)
    axes[0].set_ylim(bottom=0)
    axes[-1].set_xlabel("share of the path walked (0: clean prompt, 1: corrupted prompt, or EAP-GP's end)")
    where = f"{task_title(task)}, mean over {cell['examples']} examples of {model}"
    figure.suptitle(f"What each method sees of the edge {cell['edge']}\n{where}", fontsize=11.5, color=INK)
    figure.legend(handles=_legend(), loc="outside lower center", ncols=2, fontsize=8.5, frameon=False)
    return figure


def _stretches(ax: Axes, line: Rows) -> None:
    """Shade where the straight line is flat, and where it is saturated."""
    half = 0.5 / (len(line) - 1)
    for word, shade in SHADES.items():
        for row in line:
            if row[word]:
                ends = max(0, row["at"] - half), min(1, row["at"] + half)
                ax.axvspan(*ends, color=shade, linewidth=0, zorder=0)


def _tracks(ax: Axes, cell: Mapping[str, Any], name: str) -> None:
    for track, paint in (("line", COLOURS["eap-ig"]), ("eap-gp", COLOURS["eap-gp"])):
        at, seen = cell[track]["at"], cell[track][name]
        ax.plot(at, seen["mean"], color=paint, linewidth=1.3, linestyle="-" if track == "line" else "--")
        ax.fill_between(at, seen["low"], seen["high"], color=paint, alpha=0.10, linewidth=0)


def _points(ax: Axes, rows: Rows, name: str) -> None:
    """The points at which each method takes its gradient; EAP's is drawn around EAP-IG's first."""
    sizes = {"eap": 110, "eap-ig": 36, "eap-gp": 40}
    for method, size in sizes.items():
        own = [row for row in rows if method in row["point_of"].split()]
        face = "none" if method == "eap" else COLOURS[method]
        ax.scatter(
            [row["at"] for row in own],
            [row[name] for row in own],
            s=size,
            marker=MARKERS[method],
            facecolors=face,
            edgecolors=INK if method == "eap" else COLOURS[method],
            zorder=4,
        )


def _means(ax: Axes, rows: Rows) -> None:
    """A method's score of the edge is the mean of its points: a tick at the right edge."""
    ax.axhline(0, color=MUTED, linewidth=0.8)
    means = {}
    for method in ("eap", "eap-ig", "eap-gp"):
        own = [row["score"] for row in rows if method in row["point_of"].split()]
        means[method] = sum(own) / len(own)
    low, high = ax.get_ylim()
    lowest = low
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}  # the line of zero must not cross the words
    for method, mean in sorted(means.items(), key=lambda item: item[1]):
        paint = INK if method == "eap" else COLOURS[method]
        height = max(mean, lowest)  # labels of equal means would lie on each other
        lowest = height + 0.09 * (high - low)
        ax.plot([1.01, 1.03], [mean, mean], color=paint, linewidth=2.4)
        ax.text(1.04, height, f"{method.upper()} {mean:+.2f}", color=paint, fontsize=8, va="center", bbox=box)
    ax.text(1.01, high, "mean of its points:", color=MUTED, fontsize=7.5, va="top")
    ax.set_xlim(-0.03, 1.21)
    ax.set_xticks([0, 0.2, 0.4, 0.6, 0.8, 1])


def _legend() -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def point(method: str, label: str, **style: Any) -> Line2D:
        return Line2D([], [], marker=MARKERS[method], linestyle="", label=label, **style)

    return [
        point("eap", "EAP: the clean prompt", markerfacecolor="none", markeredgecolor=INK, markersize=9),
        point("eap-ig", "EAP-IG: points of the straight line", color=COLOURS["eap-ig"]),
        point("eap-gp", "EAP-GP: points of GradPath", color=COLOURS["eap-gp"]),
        Line2D([], [], color=COLOURS["eap-ig"], label="straight line (band: middle half of examples)"),
        Line2D([], [], color=COLOURS["eap-gp"], linestyle="--", label="GradPath (band: the same)"),
        Patch(color=SHADES["saturated"], label="straight line saturated: gradient < 10% of its largest"),
        Patch(color=SHADES["flat"], label="straight line flat: the edge's score < 10% of its largest"),
    ]
