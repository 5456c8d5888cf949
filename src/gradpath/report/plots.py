"""Plots with matplotlib.

``plot_result``, ``plot_scores`` and ``plot_circuit`` draw on the axes that they are given, or on new ones, and
return them. ``write_spans`` draws where in the prompt a circuit with positions reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradpath.circuit import Circuit
from gradpath.errors import InputError
from gradpath.evaluation.result import Result
from gradpath.report.drawing import draw_on, inches
from gradpath.report.style import BLUE, GREY, INK, MUTED, panels, save
from gradpath.scores import Scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POSITION_FILES = ("positions.png", "positions.svg")  # what ``write_spans`` writes


def plot_result(result: Result, ax: Axes | None = None) -> Axes:
    """Plot the metric of every example in the corrupted run, in the circuit and in the model, with the means."""
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
        ax.scatter([at] * len(values), values.tolist(), s=12, color=colour, alpha=0.55, linewidths=0, zorder=2)
        mean = float(values.mean())
        ax.plot([at - 0.18, at + 0.18], [mean, mean], color=colour, linewidth=2.5, zorder=3)
        ax.annotate(f"{mean:.2f}", (at + 0.21, mean), color=colour, va="center", fontsize=9)
    ax.set_xticks(range(3), [name for name, _, _ in runs])
    ax.set_xlim(-0.5, 2.6)
    ax.set_ylabel("metric")
    title = f"{result.faithfulness:.0%} of the behaviour ({low:.0%} to {high:.0%}), error {result.error:.2f}"
    ax.set_title(f"{title}, {result.edges_kept:,} edges", fontsize=10, loc="left")
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(colors=MUTED)
    return ax


def plot_scores(scores: Scores, ax: Axes | None = None) -> Axes:
    """Plot the sum of |score| over the outgoing edges of each node, layers by heads and MLP."""
    values, graph = scores.values.detach().cpu().float(), scores.graph
    if not values.isfinite().all():
        raise InputError("scores that are not finite numbers cannot be plotted. Attribute again.")
    ax = _axes(ax, (0.32 * graph.n_heads + 2.4, 0.2 * graph.n_layers + 1.4))
    weight = values.abs().sum(1)[1:].view(graph.n_layers, graph.n_heads + 1)  # (layer, head and MLP)
    image = _heat_map(ax, weight, float(weight.max()))
    ax.set_xticks(range(graph.n_heads + 1), [*map(str, range(graph.n_heads)), "MLP"], fontsize=8)
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    ax.set_title(f"{scores.about.get('method', 'scores')}: where the score is", fontsize=10, loc="left")
    figure = ax.get_figure()
    assert figure is not None
    bar = figure.colorbar(image, ax=ax, fraction=0.05, pad=0.03)
    bar.set_label("summed |score| of outgoing edges", fontsize=8)
    return ax


def plot_circuit(circuit: Circuit, ax: Axes | None = None) -> Axes:
    """Plot a circuit as it is drawn for papers."""
    ax = _axes(ax, inches(circuit.graph))
    draw_on(circuit, ax)
    return ax


def write_spans(circuit: Circuit, folder: Path) -> list[Path]:
    """Draw in which layers, and at which spans, the queries, keys, values and MLPs of a circuit read.

    Args:
        circuit: A circuit with edges at spans.
        folder: The folder for ``positions.png`` and ``positions.svg``.

    Returns:
        The two files.
    """
    counts, graph, about = edges_read(circuit), circuit.graph, circuit.about
    width, height = 0.5 * len(circuit.spans) + 0.5, 0.14 * graph.n_layers + 1.8
    figure, axes = panels(1, 4, (4 * width + 1.6, height), sharey=True)
    for ax, title, count in zip(axes, ("queries", "keys", "values", "MLPs"), counts, strict=True):
        image = _heat_map(ax, count.T, max(1, int(counts.max())))
        ax.grid(visible=False)
        ax.set_title(title, fontsize=10)
        ax.set_xticks(range(len(circuit.spans)), circuit.spans, rotation=60, ha="right", fontsize=8)
    axes[0].set_ylabel("layer that reads")
    figure.supxlabel("position in the prompt", fontsize=9)
    figure.colorbar(image, ax=axes, label="edges of the circuit", fraction=0.05)
    title = f"{about.get('task')} in {about.get('model')}: {len(circuit):,} edges by {about.get('method')}"
    figure.suptitle(title, fontsize=11, color=INK)
    return save(figure, folder / "positions")


def edges_read(circuit: Circuit) -> Tensor:
    """The number of edges into queries, keys, values and MLPs, (4, span, layer)."""
    graph = circuit.graph
    targets = circuit.masks.sum(1)[:, : graph.logits]  # (span, target)
    by_layer = targets.view(len(targets), graph.n_layers, -1)
    parts = [*torch.split(by_layer[..., :-1], graph.n_heads, -1), by_layer[..., -1:]]
    return torch.stack([part.sum(-1) for part in parts])


def _axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=size, layout="constrained")[1]


def _heat_map(ax: Axes, values: Tensor, largest: float) -> Any:
    """Rows upwards; colours by the square root, because a few strong cells would leave the others white."""
    from matplotlib.colors import PowerNorm

    norm = PowerNorm(0.5, vmin=0, vmax=largest)
    return ax.imshow(values.numpy(), origin="lower", aspect="auto", cmap="Blues", norm=norm)
