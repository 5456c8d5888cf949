"""Scores, circuits and results as plots with matplotlib, on the axes that are passed or on new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gradpath.circuit import Circuit
from gradpath.errors import InputError
from gradpath.evaluation.result import Result
from gradpath.report.figure import draw_on, fold, layout
from gradpath.report.style import BLUE, GREY, INK, MUTED, styled
from gradpath.scores import Scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
