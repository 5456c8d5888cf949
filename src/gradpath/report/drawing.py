"""A circuit as a picture for a paper, drawn with matplotlib: vector text and a legend.

Each node has a cell of a grid as wide as its label, so labels cannot overlap, however many edges there are.
"""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradpath.circuit import Circuit
from gradpath.errors import InputError
from gradpath.formats.graphs import COLOURS, KINDS, column, position
from gradpath.graph import Graph, kind, node_of
from gradpath.report.style import FAINT, INK, MUTED, PAPER, save_as

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMN, ROW = 0.56, 0.36  # inches
CELL = 0.84, 0.52  # the part of a column and of a row that a node's box takes
DASHED = (0, (3, 2))  # edges with a negative score


def draw(circuit: Circuit, file: str | Path) -> None:
    """Draw a circuit to an SVG, PNG or PDF file, by its suffix.

    Args:
        circuit: A circuit with at least one edge.
        file: The file to write.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=inches(circuit.graph))
    draw_on(circuit, figure.add_axes((0, 0, 1, 1)))
    save_as(figure, Path(file), dpi=200)


def inches(graph: Graph) -> tuple[float, float]:
    """The size at which the labels of a drawing are readable."""
    return (graph.n_heads + 3.4) * COLUMN, (graph.n_layers + 3.5) * ROW


def draw_on(circuit: Circuit, axes: Axes) -> None:
    """Draw a circuit on matplotlib axes."""
    if not len(circuit):
        raise InputError("this circuit is empty, so there is nothing to draw. Find one with more edges.")
    if not circuit.scores.isfinite().all():
        raise InputError("a score of this circuit is not a finite number, so it cannot be drawn. Find it again.")
    axes.set_axis_off()
    axes.set_xlim(-1.3, circuit.graph.n_heads + 2.1)
    axes.set_ylim(-2.5, circuit.graph.n_layers + 1.0)
    _draw_edges(circuit, axes)
    _draw_nodes(circuit, axes)
    legend(axes)


def _draw_edges(circuit: Circuit, axes: Axes) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Curve

    largest = float(circuit.scores.abs().max())
    faint = min(0.5, max(0.05, 2.4 / sqrt(len(circuit))))
    codes = [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4]
    for source, target, score in sorted(circuit.named_edges(), key=lambda edge: abs(edge[2])):  # the strongest on top
        strength = sqrt(abs(score) / largest) if largest else 1.0
        patch = PathPatch(
            Curve(_curve(circuit.graph, source, target), codes),
            facecolor="none",
            edgecolor=COLOURS[kind(target)],
            alpha=faint + (0.92 - faint) * strength**1.35,
            linewidth=0.5 + 2.6 * strength**1.7,
            linestyle=DASHED if score < 0 else "solid",
            capstyle="butt",
        )
        axes.add_patch(patch)


def _curve(graph: Graph, source: str, target: str) -> list[tuple[float, float]]:
    """The four points of an edge's Bezier curve, as columns and rows."""
    node = node_of(target)
    (x, y), (end_x, end_y) = position(graph, source), position(graph, node)
    if graph.layer_of(source) == graph.layer_of(node):  # from a head to the MLP on its right
        side = end_x - CELL[0] / 2
        top = y + CELL[1] / 2
        return [(x, top), (x, top + 0.3), (side - 0.5, end_y), (side, end_y)]
    if source == "input" and node != "logits":
        x = _along_bar(graph, node)
    if node == "logits" and source != "input":
        end_x = _along_bar(graph, source)
    end_x += {"q": -0.29, "k": 0.0, "v": 0.29}.get(kind(target), 0.0) * CELL[0]
    y, end_y = y + CELL[1] / 2, end_y - CELL[1] / 2
    rise = 0.42 * (end_y - y)
    bow = _bow(graph, source, node, abs(x - end_x))
    return [(x, y), (x + bow, y + rise), (end_x + bow, end_y - rise), (end_x, end_y)]


def _bar_width(graph: Graph) -> float:
    """The width of ``input`` and ``logits``, which are bars."""
    return max(1.4, (graph.n_heads + 1) * 0.5)


def _along_bar(graph: Graph, other: str) -> float:
    """Where on a bar an edge starts or ends: on the part that is nearest to its other node."""
    share = (column(graph, other) + 0.5) / (graph.n_heads + 1.35)
    return (graph.n_heads - 1) / 2 + (share - 0.5) * _bar_width(graph) * 0.9


def _bow(graph: Graph, source: str, node: str, distance: float) -> float:
    """How far an edge within one column bows out, so that such edges do not cover each other: long ones more."""
    rows = graph.layer_of(node) - graph.layer_of(source)
    if distance > 0.6 or rows < 2:
        return 0.0
    most = 1.3 if source.startswith("m") else 1.0
    return min(most, most * (0.12 + 0.9 * rows / max(8, graph.n_layers)))


def _draw_nodes(circuit: Circuit, axes: Axes) -> None:
    from matplotlib.patches import FancyBboxPatch

    graph = circuit.graph
    active = set(circuit.nodes) | {"input", "logits"}
    others = [position(graph, name) for name in graph.sources if name not in active]
    if others:
        xs, ys = zip(*others, strict=True)
        axes.scatter(xs, ys, s=1.5, color=FAINT, zorder=2)
    box: Any = {"boxstyle": "round,pad=0,rounding_size=0.12", "facecolor": PAPER, "edgecolor": MUTED, "linewidth": 0.6}
    for name in sorted(active):
        x, y = position(graph, name)
        width = _bar_width(graph) if name in ("input", "logits") else CELL[0]
        corner = (x - width / 2, y - CELL[1] / 2)
        axes.add_patch(FancyBboxPatch(corner, width, CELL[1], zorder=3, **box))
        # Points, so that the name fits its cell: a letter is about 0.62 times as wide as high.
        size = min(8.0, CELL[0] * COLUMN * 72 * 0.92 / (0.62 * max(len(name), 2)))
        axes.text(x, y, name, ha="center", va="center", fontsize=size, color=INK, zorder=4)
    for row in range(graph.n_layers):
        axes.text(-0.75, row, str(row), ha="right", va="center", fontsize=6.5, color=MUTED)


def legend(axes: Axes) -> None:
    """The colours of edges by what they feed, and their signs."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=COLOURS[name], linewidth=2, label=label) for name, label in KINDS.items()]
    lines.append(Line2D([], [], color=MUTED, linewidth=1, label="positive"))
    lines.append(Line2D([], [], color=MUTED, linewidth=1, linestyle=DASHED, label="negative"))
    by_column = [line for at in range(4) for line in lines[at::4]]  # matplotlib fills columns; people read rows
    style = {"fontsize": 6.5, "frameon": False, "handlelength": 1.8, "labelcolor": INK}
    axes.legend(handles=by_column, loc="lower center", ncols=4, **style)
