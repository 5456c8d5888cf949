"""Scores, circuits and results as plots with matplotlib, and as cards in notebooks.

``plot_result``, ``plot_scores`` and ``plot_circuit`` draw on the axes that are passed, or on new ones, and return
them. Cards are small HTML without scripts, readable in light and dark.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from gradpath.circuit import Circuit
from gradpath.errors import InputError
from gradpath.evaluation.result import Result, interval_text
from gradpath.formats.edges import EDGE_COLOURS
from gradpath.graph import kind
from gradpath.recipe import Recipe
from gradpath.report.figure import draw_on, fold, layout
from gradpath.report.style import BLUE, GREY, INK, MUTED, styled
from gradpath.scores import Scores
from gradpath.selection.ranking import top

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
