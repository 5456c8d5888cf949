"""Pictures with matplotlib: the figure of a circuit, and plots of scores and results.

A circuit is drawn as its nodes alone, in rows by their depth, with the names and groups of its notes:

1. Fold: a group of the notes becomes one box, and edges between the same two boxes that feed the same of q, k, v, MLP
   or logits are summed. The ``MOST`` strongest edges are drawn.
2. Rows: a box is one row above the highest box that it reads.
3. Lanes: an edge that passes a row has a place of its own there, so that no edge lies behind a box that it does not
   touch. It bends only between rows.
4. Places in a row: boxes and lanes move to the mean of their neighbours, weighted by |score|, and are then spread
   apart; this is repeated, so that strong edges cross little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from math import sqrt
from typing import TYPE_CHECKING, Any

import torch

from gradpath.circuit import Circuit
from gradpath.errors import InputError
from gradpath.evaluation.result import Result
from gradpath.formats.edges import EDGE_COLOURS, KINDS, column
from gradpath.graph import kind, node_of
from gradpath.report.data import READABLE
from gradpath.report.style import BLUE, GREY, INK, MUTED, PAPER, canvas, styled
from gradpath.scores import Scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = READABLE  # edges
# Of groups without a colour of their own, in their order; the page has the same ones.
GROUP_COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#d55e00", "#0072b2", "#cc79a7", "#7f7f7f")
PORTS = {"q": -0.29, "k": 0.0, "v": 0.29}  # where an edge enters a head, in shares of its width
DASHED = (0, (3, 2))  # edges with a negative score
_GAP, _LANE = 0.16, 0.07  # inches between two boxes, and on each side of a lane
_ROW, _BEND, _MOST_ROW = 0.3, 0.007, 0.55  # inches between rows: at least, for each edge that bends there, at most
_LETTER, _LINE = 0.062, 0.125  # inches: the width of a letter and the height of a line
_PER_LINE = 4  # nodes of a group in a line
_SWEEPS = 40
_LEGEND = 3.2, 0.55  # inches: the width and the height of the legend
_TITLE = 0.55  # inches


@dataclass(frozen=True)
class Box:
    """A node or a group: its lines of text, its colour, its size in inches, and how deep it is in the model."""

    title: str
    lines: tuple[str, ...]
    colour: str
    depth: float
    side: float  # the mean column of its nodes

    @property
    def width(self) -> float:
        longest = max(len(self.title) * 1.08, *(len(line) * 0.85 for line in self.lines), 3)
        return _LETTER * longest + 0.16

    @property
    def height(self) -> float:
        return _LINE * (1 + len(self.lines)) + 0.08


Edges = dict[tuple[str, str, str], float]  # (box, box, what it feeds) -> score
Item = str | tuple[str, str, int]  # of a row: the name of a box, or the lane of an edge from one box to another


def circuit_figure(circuit: Circuit, title: str = "") -> Figure:
    """Draw a circuit with its notes, and a title above it; ``style.save_as`` writes the figure."""
    plan = layout(*fold(circuit))
    width, height = plan.size
    full_height = height + (_TITLE if title else 0.0)
    figure, axes = canvas((width, full_height), (1.0, height / full_height))
    draw_on(axes, plan)
    if title:
        figure.suptitle(title, fontsize=9.5, color=INK, y=1 - 0.12 / full_height)
    return figure


def fold(circuit: Circuit) -> tuple[dict[str, Box], Edges]:
    """The boxes of a circuit, by the name of their node or group, and the strongest edges among them."""
    if not circuit.scores.isfinite().all():
        raise InputError("a score of this circuit is not a finite number, so it cannot be drawn. Find it again.")
    groups = {node: note["group"] for node, note in circuit.notes.items() if "group" in note}

    def box_of(node: str) -> str:
        return f"group {groups[node]}" if node in groups else node

    every: Edges = {}
    for source, target, score in circuit.named_edges():
        ends = box_of(source), box_of(node_of(target))
        if ends[0] != ends[1]:
            key = (*ends, kind(target))
            every[key] = every.get(key, 0.0) + score
    if not every:
        raise InputError("this circuit has no edges to draw. Find one with more edges, or make its groups smaller.")
    strongest = set(sorted(every, key=lambda edge: -abs(every[edge]))[:MOST])
    edges = {edge: score for edge, score in every.items() if edge in strongest}
    shown = {end for source, target, _ in edges for end in (source, target)}
    members: dict[str, list[str]] = {}
    for node in circuit.nodes:
        if box_of(node) in shown:
            members.setdefault(box_of(node), []).append(node)
    colours = dict(zip(dict.fromkeys(groups.values()), cycle(GROUP_COLOURS)))
    return {name: _box(circuit, nodes, colours) for name, nodes in members.items()}, edges


def _box(circuit: Circuit, nodes: list[str], colours: Mapping[str, str]) -> Box:
    """The box of a node, or of a group of them; ``colours`` are those of groups."""
    graph, notes = circuit.graph, [circuit.notes.get(node, {}) for node in nodes]
    group = notes[0].get("group", "")
    title = group or notes[0].get("name", "")
    lines = tuple(" ".join(nodes[at : at + _PER_LINE]) for at in range(0, len(nodes), _PER_LINE)) if title else ()
    colour = next((note["colour"] for note in notes if "colour" in note), colours.get(group, ""))
    depths = [graph.layer_of(node) + (0.5 if node.startswith("m") else 0.0) for node in nodes]
    side = sum(column(graph, node) for node in nodes) / len(nodes)
    return Box(title or nodes[0], lines, colour, sum(depths) / len(depths), side)


@dataclass(frozen=True)
class Layout:
    """Where everything is, in inches."""

    boxes: Mapping[str, Box]
    edges: Edges
    row: Mapping[str, int]  # of each box, from the bottom
    x: Mapping[Item, float]
    bands: Sequence[tuple[float, float]]  # the bottom and the top of each row

    def place(self, name: str) -> tuple[float, float]:
        """The centre of a box."""
        return self.x[name], sum(self.bands[self.row[name]]) / 2

    @property
    def right(self) -> float:
        return max(x + _width(item, self.boxes) / 2 for item, x in self.x.items()) + 0.1

    @property
    def size(self) -> tuple[float, float]:
        """The width and the height of the drawing, with its legend below."""
        return max(self.right, _LEGEND[0]), self.bands[-1][1] + 0.3 + _LEGEND[1]


def layout(boxes: Mapping[str, Box], edges: Edges) -> Layout:
    """Place boxes and the lanes of edges in rows."""
    row = _rows(boxes, edges)
    rows: list[list[Item]] = [[name for name in row if row[name] == at] for at in range(1 + max(row.values()))]
    near: dict[Item, list[tuple[Item, float]]] = {name: [] for name in boxes}
    side: dict[Item, float] = {name: box.side for name, box in boxes.items()}
    weights: dict[tuple[str, str], float] = {}
    for (source, target, _), score in edges.items():
        weights[source, target] = weights.get((source, target), 0.0) + abs(score)
    for (source, target), weight in weights.items():
        lanes = _lanes(row, source, target)
        for lane in lanes:
            rows[lane[2]].append(lane)
            side[lane], near[lane] = (side[source] + side[target]) / 2, []
        chain: list[Item] = [source, *lanes, target]
        for a, b in pairwise(chain):
            near[a].append((b, weight))
            near[b].append((a, weight))
    x = {item: 0.9 * at for item, at in side.items()}
    for sweep in range(_SWEEPS):
        for items in rows if sweep % 2 else reversed(rows):
            means = {}
            for item in items:
                total = sum(weight for _, weight in near[item])
                means[item] = sum(x[other] * weight for other, weight in near[item]) / total if total else x[item]
            items.sort(key=lambda item: (means[item], side[item], str(item)))
            _spread(items, means, boxes, x)
    left = min(at - _width(item, boxes) / 2 for item, at in x.items()) - 0.1
    bands, y = [], 0.25
    for items in rows:
        height = max(boxes[item].height for item in items if isinstance(item, str))
        bands.append((y, y + height))
        y += height + min(_MOST_ROW, _ROW + _BEND * sum(len(near[item]) for item in items))
    return Layout(boxes, edges, row, {item: at - left for item, at in x.items()}, bands)


def _lanes(row: Mapping[str, int], source: str, target: str) -> list[tuple[str, str, int]]:
    """The lanes of an edge: one in each row that it passes. One that leads down also passes those of its ends."""
    start, end = row[source], row[target]
    return [(source, target, at) for at in (range(start + 1, end) if start < end else range(start, end - 1, -1))]


def _width(item: Item, boxes: Mapping[str, Box]) -> float:
    return boxes[item].width if isinstance(item, str) else 0.0


def route(plan: Layout, edge: tuple[str, str, str]) -> list[tuple[float, float]]:
    """The points of an edge's Bezier curves: straight through the rows, bent between them."""
    source, target, feeds = edge
    boxes = plan.boxes
    (x, y), (end_x, end_y) = plan.place(source), plan.place(target)
    end_x += PORTS.get(feeds, 0.0) * boxes[target].width
    lanes = _lanes(plan.row, source, target)
    up = plan.row[source] < plan.row[target]
    # Straight pieces: where each begins and ends, and whether it leads up (1) or down (-1).
    pieces = [((x, y + boxes[source].height / 2), (x, plan.bands[plan.row[source]][1]), 1)]
    for lane in lanes:
        bottom, top = ((plan.x[lane], at) for at in plan.bands[lane[2]])
        pieces.append((bottom, top, 1) if up else (top, bottom, -1))
    pieces.append(((end_x, plan.bands[plan.row[target]][0]), (end_x, end_y - boxes[target].height / 2), 1))
    points = [pieces[0][0]]
    for (a, b, heading), after in zip(pieces, [*pieces[1:], None], strict=True):
        points += [a, b, b]
        if after is not None:
            to, next_heading = after[0], after[2]
            bend = abs(to[1] - b[1]) / 2 if heading == next_heading else _ROW / 2
            points += [(b[0], b[1] + heading * bend), (to[0], to[1] - next_heading * bend), to]
    return points


def _rows(boxes: Mapping[str, Box], edges: Edges) -> dict[str, int]:
    """The row of each box, from the bottom. Edges against the model's order, which groups can have, do not count."""
    order = sorted(boxes, key=lambda name: (boxes[name].depth, name))
    place = {name: at for at, name in enumerate(order)}
    row = dict.fromkeys(order, 0)
    for target in order:
        below = [row[source] for source, end, _ in edges if end == target and place[source] < place[target]]
        row[target] = 1 + max(below, default=-1)
    if "logits" in row:
        row["logits"] = max([0, *(at + 1 for name, at in row.items() if name != "logits")])
    used = sorted(set(row.values()))
    return {name: used.index(at) for name, at in row.items()}


def _spread(row: list[Item], wish: Mapping[Item, float], boxes: Mapping[str, Box], x: dict[Item, float]) -> None:
    """Place the items of a row as near to their wished places as the distances between them allow."""
    gaps = [
        (_width(a, boxes) + _width(b, boxes)) / 2 + (_GAP if isinstance(a, str) and isinstance(b, str) else _LANE)
        for a, b in pairwise(row)
    ]
    right, left = [wish[row[0]]], [wish[row[-1]]]
    for name, gap in zip(row[1:], gaps, strict=True):
        right.append(max(wish[name], right[-1] + gap))
    for name, gap in zip(row[-2::-1], reversed(gaps), strict=True):
        left.append(min(wish[name], left[-1] - gap))
    for name, a, b in zip(row, reversed(left), right, strict=True):
        x[name] = (a + b) / 2


def draw_on(axes: Axes, plan: Layout) -> None:
    """Draw on matplotlib axes, with a legend below."""
    (width, height), top = plan.size, plan.bands[-1][1] + 0.3
    left = min(0.0, (plan.right - _LEGEND[0]) / 2)
    axes.set_axis_off()
    axes.set_xlim(left, width + left)
    axes.set_ylim(top - height, top)
    _draw_edges(axes, plan)
    _draw_boxes(axes, plan)
    _draw_legend(axes)


def _draw_edges(axes: Axes, plan: Layout) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Curve

    largest = max(map(abs, plan.edges.values()))
    for edge, score in sorted(plan.edges.items(), key=lambda item: abs(item[1])):  # the strongest on top
        strength = sqrt(abs(score) / largest) if largest else 1.0
        points = route(plan, edge)
        curve = Curve(points, [Curve.MOVETO, *[Curve.CURVE4] * (len(points) - 1)])
        line: Any = {"edgecolor": EDGE_COLOURS[edge[2]], "linestyle": DASHED if score < 0 else "solid"}
        line |= {"alpha": 0.16 + 0.76 * strength, "linewidth": 0.5 + 2.9 * strength**1.6}
        axes.add_patch(PathPatch(curve, facecolor="none", **line))


def _draw_boxes(axes: Axes, plan: Layout) -> None:
    from matplotlib.colors import to_rgb
    from matplotlib.patches import FancyBboxPatch

    for name, box in plan.boxes.items():
        x, y = plan.place(name)
        paper, colour = to_rgb(PAPER), to_rgb(box.colour or PAPER)
        face = tuple(0.78 * a + 0.22 * b for a, b in zip(paper, colour, strict=True))
        corner = (x - box.width / 2, y - box.height / 2)
        style: Any = {"facecolor": face, "edgecolor": box.colour or MUTED, "linewidth": 1.0 if box.colour else 0.6}
        rounded = "round,pad=0,rounding_size=0.05"
        axes.add_patch(FancyBboxPatch(corner, box.width, box.height, boxstyle=rounded, zorder=3, **style))
        middle: Any = {"ha": "center", "va": "center", "zorder": 4}
        top = y + _LINE * len(box.lines) / 2
        axes.text(x, top, box.title, fontsize=7, color=INK, fontweight="bold" if box.lines else "normal", **middle)
        for at, line in enumerate(box.lines, start=1):
            axes.text(x, top - at * _LINE, line, fontsize=5.6, color=MUTED, **middle)


def _draw_legend(axes: Axes) -> None:
    """The colours of edges by what they feed, and their signs."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=EDGE_COLOURS[name], linewidth=2, label=label) for name, label in KINDS.items()]
    lines.append(Line2D([], [], color=MUTED, linewidth=1, label="positive"))
    lines.append(Line2D([], [], color=MUTED, linewidth=1, linestyle=DASHED, label="negative"))
    by_column = [line for at in range(4) for line in lines[at::4]]  # matplotlib fills columns; people read rows
    style = {"fontsize": 6.5, "frameon": False, "handlelength": 1.8, "labelcolor": INK}
    axes.legend(handles=by_column, loc="lower center", ncols=4, **style)


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
    plan = layout(*fold(circuit))
    ax = _axes(ax, plan.size)
    draw_on(ax, plan)
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
