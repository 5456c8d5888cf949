"""Scores, circuits and results as plots with matplotlib, and as cards in notebooks.

``plot_result``, ``plot_scores`` and ``plot_circuit`` draw on the axes that are passed, or on new ones, and return
them. A circuit is drawn with vector text and a legend. Each node has a cell of a grid as wide as its label, so labels
cannot overlap, however many edges there are. Cards are small HTML without scripts, readable in light and dark.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gradpath.circuit import Circuit
from gradpath.errors import InputError
from gradpath.evaluation.result import Result, interval_text
from gradpath.formats.edges import EDGE_COLOURS, KINDS, column, position
from gradpath.graph import Graph, kind, node_of
from gradpath.recipe import Recipe
from gradpath.report.style import BLUE, FAINT, GREY, INK, MUTED, PAPER, canvas, save_as, styled
from gradpath.scores import Scores
from gradpath.selection.ranking import top

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMN, ROW = 0.56, 0.36  # inches
CELL = 0.84, 0.52  # the part of a column and of a row that a node's box takes
PORTS = {"q": -0.29, "k": 0.0, "v": 0.29}  # where an edge enters a head, in shares of its width
DASHED = (0, (3, 2))  # edges with a negative score
LISTED = 10  # edges on a card


def plot_result(result: Result, ax: Axes | None = None) -> Axes:
    """Plot the metric of every example in the corrupted run, in the circuit and in the model, with the means."""
    ax = _axes(ax, (5.6, 3.4))
    runs = [
        ("corrupted", result.corrupted_values, GREY),
        ("circuit", result.circuit_values, BLUE),
        ("model", result.clean_values, INK),
    ]
    columns = torch.stack([values.cpu() for _, values, _ in runs])
    ax.plot(range(3), columns.numpy(), color=GREY, alpha=0.25, linewidth=0.7, zorder=1)
    for at, (_, values, colour) in enumerate(runs):
        ax.scatter([at] * len(values), values.tolist(), s=12, color=colour, alpha=0.55, linewidths=0, zorder=2)
        mean = float(values.mean())
        ax.plot([at - 0.18, at + 0.18], [mean, mean], color=colour, linewidth=2.5, zorder=3)
        ax.annotate(f"{mean:.2f}", (at + 0.21, mean), color=colour, va="center", fontsize=9)
    ax.set_xticks(range(3), [name for name, _, _ in runs])
    ax.set_xlim(-0.5, 2.6)
    ax.set_ylabel("metric")
    ends = "" if result.interval is None else " ({:.0%} to {:.0%})".format(*result.interval)
    title = f"{result.faithfulness:.0%} of the behaviour{ends}, error {result.error:.2f}"
    ax.set_title(f"{title}, {result.edges_kept:,} edges", fontsize=10, loc="left")
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(colors=MUTED)
    return ax


def plot_scores(scores: Scores, ax: Axes | None = None) -> Axes:
    """Plot the sum of |score| over the outgoing edges of each node, layers by heads and MLP."""
    from matplotlib.colors import PowerNorm

    values, graph = scores.values.detach().cpu().float(), scores.graph
    if not values.isfinite().all():
        raise InputError("scores that are not finite numbers cannot be plotted. Attribute again.")
    ax = _axes(ax, (0.32 * graph.n_heads + 2.4, 0.2 * graph.n_layers + 1.4))
    weight = graph.sources_by_layer(values.abs().sum(1))  # (layer, head and MLP)
    # Colours by the square root, because a few strong cells would leave the others white.
    norm = PowerNorm(0.5, vmin=0, vmax=float(weight.max()))
    image = ax.imshow(weight.numpy(), origin="lower", aspect="auto", cmap="Blues", norm=norm)
    ax.set_xticks(range(graph.n_heads + 1), [*map(str, range(graph.n_heads)), "MLP"], fontsize=8)
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    ax.set_title(
        f"{scores.recipe.method if scores.recipe else 'scores'}: total |score| by node", fontsize=10, loc="left"
    )
    figure = ax.get_figure()
    assert figure is not None
    with styled():
        bar = figure.colorbar(image, ax=ax, fraction=0.05, pad=0.03)
    bar.set_label("summed |score| of outgoing edges", fontsize=8)
    return ax


def plot_circuit(circuit: Circuit, ax: Axes | None = None) -> Axes:
    """Plot a circuit as it is drawn for papers."""
    ax = _axes(ax, inches(circuit.graph))
    draw_on(circuit, ax)
    return ax


def _axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    # The first figure loads the backend. That of notebooks then switches on what shows figures, which has to last.
    figure = plt.figure(figsize=size, layout="constrained")
    with styled():
        ax = figure.add_subplot()
    ax.grid(visible=False)
    return ax


def draw(circuit: Circuit, file: str | Path) -> None:
    """Draw a circuit to an SVG, PNG or PDF file, by its suffix."""
    figure, axes = canvas(inches(circuit.graph))
    draw_on(circuit, axes)
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
    largest = float(circuit.scores.abs().max())
    faint = min(0.5, max(0.05, 2.4 / sqrt(len(circuit))))
    for source, target, score in sorted(circuit.named_edges(), key=lambda edge: abs(edge[2])):  # the strongest on top
        strength = sqrt(abs(score) / largest) if largest else 1.0
        alpha, linewidth = faint + (0.92 - faint) * strength**1.35, 0.5 + 2.6 * strength**1.7
        draw_edge(axes, _curve(circuit.graph, source, target), kind(target), score, alpha=alpha, linewidth=linewidth)


def draw_edge(axes: Axes, points: list[tuple[float, float]], feeds: str, score: float, **style: float) -> None:
    """Draw an edge as Bezier curves, three points for each after the first, in the colour of what it feeds."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Curve

    curve = Curve(points, [Curve.MOVETO, *[Curve.CURVE4] * (len(points) - 1)])
    line: Any = {"edgecolor": EDGE_COLOURS[feeds], "linestyle": DASHED if score < 0 else "solid", **style}
    axes.add_patch(PathPatch(curve, facecolor="none", **line))


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
    end_x += PORTS.get(kind(target), 0.0) * CELL[0]
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

    lines = [Line2D([], [], color=EDGE_COLOURS[name], linewidth=2, label=label) for name, label in KINDS.items()]
    lines.append(Line2D([], [], color=MUTED, linewidth=1, label="positive"))
    lines.append(Line2D([], [], color=MUTED, linewidth=1, linestyle=DASHED, label="negative"))
    by_column = [line for at in range(4) for line in lines[at::4]]  # matplotlib fills columns; people read rows
    style = {"fontsize": 6.5, "frameon": False, "handlelength": 1.8, "labelcolor": INK}
    axes.legend(handles=by_column, loc="lower center", ncols=4, **style)


def result_card(result: Result) -> str:
    """The card of a result: a table of its numbers."""
    n = len(result.clean_values)
    rows = [
        ("behaviour kept", f"<b>{result.faithfulness:.1%}</b> ({interval_text(result.interval, n, '.1%')})"),
        ("error per example", f"{result.error:.3f}"),
        ("metric", f"model {result.clean:.3f}, circuit {result.circuit:.3f}, corrupted {result.corrupted:.3f}"),
        ("edges", f"{result.edges_kept:,} after pruning, {result.edges_requested:,} requested"),
        ("model", result.behaviour),
        ("examples", f"{n:,}"),
    ]
    left = 'style="text-align:left"'
    cells = (f"<tr><td {left}>{name}</td><td {left}>{value}</td></tr>" for name, value in rows)
    return _card("Result", f"<table>{''.join(cells)}</table>")


def scores_card(scores: Scores) -> str:
    """The card of scores: how they were made, and the strongest edges."""
    edges = top(scores).edges[:LISTED]
    values = scores.values.flatten()[edges].tolist()
    names = [scores.graph.edge_at(flat) for flat in edges.tolist()]
    return _card(f"Scores of {scores.graph.n_edges:,} edges", _origin(scores.recipe) + _edges(names, values))


def circuit_card(circuit: Circuit) -> str:
    """The card of a circuit: how it was found, and its first edges."""
    edges = _edges(circuit.edges[:LISTED], circuit.scores[:LISTED].tolist())
    requested = f", {circuit.requested:,} requested" if circuit.requested != len(circuit) else ""
    title = f"Circuit of {len(circuit):,} edges{requested}, of {circuit.graph.n_edges:,}"
    return _card(title, _origin(circuit.recipe) + edges)


def _card(title: str, body: str) -> str:
    return f'<div style="font-family:sans-serif;line-height:1.5"><b>{html.escape(title)}</b>{body}</div>'


def _origin(recipe: Recipe | None) -> str:
    recorded = {name: getattr(recipe, name, None) for name in ("model", "task", "method", "steps", "examples")}
    facts = [f"{name} {value}" for name, value in recorded.items() if value is not None]
    return f'<div style="opacity:.7">{html.escape(" · ".join(facts))}</div>' if facts else ""


def _edges(names: Sequence[str], scores: Sequence[float]) -> str:
    """The strongest edges with a bar each, in the colours of the report."""
    largest, rows = max(map(abs, scores), default=0.0), []
    for edge, score in zip(names, scores, strict=True):
        colour = EDGE_COLOURS[kind(edge.partition("->")[2])]
        width = round(160 * abs(score) / largest) if largest else 0
        bar = f'<span style="display:inline-block;height:.6em;width:{width}px;background:{colour}"></span>'
        cells = f'<code>{html.escape(edge)}</code></td><td style="text-align:right">{score:+.4g}</td>'
        rows.append(f'<tr><td style="text-align:left">{cells}<td style="text-align:left">{bar}</td></tr>')
    return f"<table>{''.join(rows)}</table>"
