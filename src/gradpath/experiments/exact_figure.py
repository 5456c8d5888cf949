"""Estimated against exact scores: a panel for each task and method, a dot for each edge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gradpath.experiments.figures import INK, MUTED, colour, method_title, panels, task_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Values = tuple[list[float], list[float]]  # estimated, exact


def draw_exact(
    rows: Sequence[Mapping[str, Any]], pairs: Mapping[tuple[str, str], Values], model: str
) -> Figure:
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


def _panel(ax: Axes, row: Mapping[str, Any], values: Values, paint: str) -> None:
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
