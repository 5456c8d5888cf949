"""Plots with matplotlib: each draws into the axes it is given, or into new ones, and returns them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gradpath.circuit import Circuit
from gradpath.errors import InputError
from gradpath.evaluation import Result
from gradpath.report.drawing import INK, MUTED, draw_on, inches
from gradpath.scores import Scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, GREY = "#2a5bd7", "#9aa1ab"


def plot_result(result: Result, ax: Axes | None = None) -> Axes:
    """The metric of every example in the corrupted run, in the circuit and in the model, with the means."""
    ax = _axes(ax, (5.6, 3.4))
    low, high = result.interval
    runs = [
        ("corrupted", result.corrupted_values, GREY),
        ("circuit", result.circuit_values, BLUE),
        ("model", result.clean_values, INK),
    ]
    columns = torch.stack([values.cpu() for _, values, _ in runs])
    ax.plot(range(3), columns.numpy(), color=GREY, alpha=0.25, linewidth=0.7, zorder=1)
    for at, (_, values, colour) in enumerate(runs):
        ax.scatter(
            [at] * len(values), values.tolist(), s=12, color=colour, alpha=0.55, linewidths=0, zorder=2
        )
        mean = float(values.mean())
        ax.plot([at - 0.18, at + 0.18], [mean, mean], color=colour, linewidth=2.5, zorder=3)
        ax.annotate(f"{mean:.2f}", (at + 0.21, mean), color=colour, va="center", fontsize=9)
    ax.set_xticks(range(3), [name for name, _, _ in runs])
    ax.set_xlim(-0.5, 2.6)
    ax.set_ylabel("metric")
    ax.set_title(
        f"{result.faithfulness:.0%} of the behaviour ({low:.0%} to {high:.0%}), error {result.error:.2f}, "
        f"{result.edges_kept:,} edges",
        fontsize=10,
        loc="left",
    )
    _quiet(ax)
    return ax


def plot_scores(scores: Scores, ax: Axes | None = None) -> Axes:
    """Where the score is: the sum of |score| over each node's outgoing edges, layers by heads and MLP."""
    from matplotlib.colors import PowerNorm

    values = scores.values.detach().cpu().float()
    if not values.isfinite().all():
        raise InputError("scores that are not finite numbers cannot be plotted. Attribute again.")
    graph = scores.graph
    ax = _axes(ax, (0.32 * graph.n_heads + 2.4, 0.2 * graph.n_layers + 1.4))
    weight = values.abs().sum(1)[1:].view(graph.n_layers, graph.n_heads + 1)  # (layer, head and MLP)
    # Square roots, or the few strong nodes would leave all others white.
    image = ax.imshow(
        weight.numpy(), origin="lower", aspect="auto", cmap="Blues", norm=PowerNorm(0.5, vmin=0)
    )
    ax.set_xticks(
        range(graph.n_heads + 1), [*(str(head) for head in range(graph.n_heads)), "MLP"], fontsize=8
    )
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    ax.set_title(f"{scores.about.get('method', 'scores')}: where the score is", fontsize=10, loc="left")
    figure = ax.get_figure()
    assert figure is not None
    bar = figure.colorbar(image, ax=ax, fraction=0.05, pad=0.03)
    bar.set_label("summed |score| of outgoing edges", fontsize=8)
    return ax


def plot_circuit(circuit: Circuit, ax: Axes | None = None) -> Axes:
    """The circuit as it is drawn for papers."""
    ax = _axes(ax, inches(circuit.graph))
    draw_on(circuit, ax)
    return ax


def _axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    made: Any = plt.subplots(figsize=size, layout="constrained")[1]
    axes: Axes = made
    return axes


def _quiet(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(colors=MUTED)
