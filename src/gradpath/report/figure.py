"""The figure of a small circuit for a paper: its nodes alone, in rows by their depth, with names and groups.

1. Fold: a folded group becomes one box, and edges between the same two boxes that feed the same of q, k, v, MLP or
   logits are summed.
2. Rows: a box is one row above the highest box that it reads.
3. Lanes: an edge that passes a row has a place of its own there, so that no edge lies behind a box that it does not
   touch. It bends only between rows.
4. Places in a row: boxes and lanes move to the mean of their neighbours, weighted by |score|, and are then spread
   apart; this is repeated, so that strong edges cross little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gradpath.circuit import Circuit
from gradpath.errors import InputError
from gradpath.formats.edges import column
from gradpath.graph import Graph, kind, node_of
from gradpath.report.notes import Notes
from gradpath.report.plots import PORTS, draw_edge, legend
from gradpath.report.style import INK, MUTED, PAPER, canvas, save_as

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 150  # boxes: more cannot be read on a page
_GAP, _LANE = 0.16, 0.07  # inches between two boxes, and on each side of a lane
_ROW, _BEND, _MOST_ROW = 0.3, 0.007, 0.55  # inches between rows: at least, for each edge that bends there, at most
_LETTER, _LINE = 0.062, 0.125  # inches: the width of a letter and the height of a line
_PER_LINE = 4  # nodes of a group in a line
_SWEEPS = 40
_INSET = 1.55  # inches: the side of an attention pattern
_LEGEND = 3.2, 0.55  # inches: the width and the height of the legend
Attention = Mapping[str, tuple[Tensor, Sequence[str]]]  # of a head: weights (pos, pos), and the tokens


@dataclass(frozen=True)
class Box:
    """A node or a folded group: its lines of text, its colour, its size in inches, and how deep it is in the model."""

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


def draw_figure(
    circuit: Circuit, file: str | Path, notes: Notes | None = None, attention: Attention | None = None
) -> None:
    """Draw a small circuit to an SVG, PDF or PNG file, by its suffix.

    Args:
        circuit: The circuit.
        file: The file to write.
        notes: Names, colours and groups.
        attention: Patterns to draw on the right: for each head its weights (pos, pos) and the tokens.
    """
    notes = notes or Notes()
    boxes, edges = fold(circuit, notes)
    if not edges:
        raise InputError("this circuit has no edges to draw. Find one with more edges, or unfold a group.")
    if len(boxes) > MOST:
        raise InputError(
            f"a figure can show at most {MOST} nodes: this circuit has {len(boxes)}. Draw fewer of its edges with "
            "--edges, or fold nodes into groups."
        )
    plan, patterns = layout(boxes, edges), attention or {}
    right = max(x + _width(item, boxes) / 2 for item, x in plan.x.items()) + 0.1
    top = plan.bands[-1][1] + 0.3
    width = max(right, _LEGEND[0])
    height = max(top + _LEGEND[1], len(patterns) * (_INSET + 0.75))
    full_width = width + (_INSET + 0.75 if patterns else 0.0)
    left = min(0.0, (right - _LEGEND[0]) / 2)
    figure, axes = canvas((full_width, height), (width / full_width, 1.0))
    axes.set_xlim(left, width + left)
    axes.set_ylim(top - height, top)
    _draw_edges(axes, boxes, edges, plan)
    _draw_boxes(axes, boxes, plan)
    legend(axes)
    for row, (node, (weights, tokens)) in enumerate(patterns.items()):
        _draw_inset(figure, node, weights, tokens, row, notes)
    save_as(figure, Path(file), dpi=220)


def fold(circuit: Circuit, notes: Notes) -> tuple[dict[str, Box], Edges]:
    """The boxes of a circuit, by the name of their node or group, and the edges among them."""
    owner = {node: group for group in notes.groups if group.folded for node in group.nodes}

    def box_of(node: str) -> str:
        return f"group {owner[node].name}" if node in owner else node

    edges: Edges = {}
    for source, target, score in circuit.named_edges():
        ends = box_of(source), box_of(node_of(target))
        if ends[0] != ends[1]:
            key = (*ends, kind(target))
            edges[key] = edges.get(key, 0.0) + score
    shown = {end for source, target, _ in edges for end in (source, target)}
    members: dict[str, list[str]] = {}
    for node in circuit.nodes:
        members.setdefault(box_of(node), []).append(node)
    boxes = {name: _box(circuit.graph, name, nodes, notes) for name, nodes in members.items() if name in shown}
    return boxes, edges


def _box(graph: Graph, name: str, nodes: list[str], notes: Notes) -> Box:
    depths = [graph.layer_of(node) + (0.5 if node.startswith("m") else 0.0) for node in nodes]
    place = sum(depths) / len(depths), sum(column(graph, node) for node in nodes) / len(nodes)
    if name in graph.sources or name == "logits":
        title = notes.name_of(name)
        return Box(title or name, (name,) if title else (), notes.colour_of(name), *place)
    group = notes.group_of(nodes[0])
    assert group is not None
    lines = tuple(" ".join(nodes[at : at + _PER_LINE]) for at in range(0, len(nodes), _PER_LINE))
    return Box(group.name, lines, group.colour, *place)


Item = str | tuple[str, str, int]  # of a row: the name of a box, or the lane of an edge from one box to another


@dataclass(frozen=True)
class Layout:
    """Where everything is, in inches."""

    row: Mapping[str, int]  # of each box, from the bottom
    x: Mapping[Item, float]
    bands: Sequence[tuple[float, float]]  # the bottom and the top of each row

    def place(self, name: str) -> tuple[float, float]:
        """The centre of a box."""
        return self.x[name], sum(self.bands[self.row[name]]) / 2


def layout(boxes: Mapping[str, Box], edges: Edges) -> Layout:
    """Place boxes and the lanes of edges in rows."""
    row = _rows(boxes, edges)
    rows: list[list[Item]] = [[name for name in row if row[name] == at] for at in range(1 + max(row.values()))]
    near: dict[Item, list[tuple[Item, float]]] = {name: [] for name in boxes}
    side: dict[Item, float] = {name: box.side for name, box in boxes.items()}
    for (source, target), weight in _weights(edges).items():
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
    return Layout(row, {item: at - left for item, at in x.items()}, bands)


def _weights(edges: Edges) -> dict[tuple[str, str], float]:
    """The sum of |score| between two boxes, whatever it feeds."""
    weights: dict[tuple[str, str], float] = {}
    for (source, target, _), score in edges.items():
        weights[source, target] = weights.get((source, target), 0.0) + abs(score)
    return weights


def _lanes(row: Mapping[str, int], source: str, target: str) -> list[tuple[str, str, int]]:
    """The lanes of an edge: one in each row that it passes. One that leads down also passes those of its ends."""
    start, end = row[source], row[target]
    return [(source, target, at) for at in (range(start + 1, end) if start < end else range(start, end - 1, -1))]


def _width(item: Item, boxes: Mapping[str, Box]) -> float:
    return boxes[item].width if isinstance(item, str) else 0.0


def route(plan: Layout, boxes: Mapping[str, Box], edge: tuple[str, str, str]) -> list[tuple[float, float]]:
    """The points of an edge's Bezier curves: straight through the rows, bent between them."""
    source, target, feeds = edge
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


def _draw_edges(axes: Axes, boxes: Mapping[str, Box], edges: Edges, plan: Layout) -> None:
    largest = max(abs(score) for score in edges.values())
    for edge, score in sorted(edges.items(), key=lambda item: abs(item[1])):
        strength = sqrt(abs(score) / largest) if largest else 1.0
        style = {"alpha": 0.16 + 0.76 * strength, "linewidth": 0.5 + 2.9 * strength**1.6}
        draw_edge(axes, route(plan, boxes, edge), edge[2], score, **style)


def _draw_boxes(axes: Axes, boxes: Mapping[str, Box], plan: Layout) -> None:
    from matplotlib.colors import to_rgb
    from matplotlib.patches import FancyBboxPatch

    for name, box in boxes.items():
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


def _draw_inset(figure: Figure, node: str, weights: Tensor, tokens: Sequence[str], row: int, notes: Notes) -> None:
    """An attention pattern on the right: a row for each token that attends."""
    width, height = figure.get_size_inches()
    side, top = _INSET, height - (row + 1) * (_INSET + 0.75) + 0.25
    axes = figure.add_axes(((width - side - 0.12) / width, top / height, side / width, side / height))
    axes.imshow(weights.detach().float().cpu().numpy(), cmap="Blues", vmin=0, vmax=1)
    names = [token.strip() or "_" for token in tokens]
    size = min(6.0, 62 * side / max(len(names), 1) * 0.75)
    axes.set_yticks(range(len(names)), names, fontsize=size)
    axes.set_xticks(range(len(names)), names, fontsize=size, rotation=90)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=1.5, colors=MUTED)
    axes.spines[:].set_visible(False)
    group = notes.group_of(node)
    name = notes.name_of(node) or (group.name if group else "")
    axes.set_xlabel(f"{node} ({name})" if name else node, fontsize=7, color=INK)
