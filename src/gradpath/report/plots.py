"""Plots with matplotlib: each draws into the axes it is given, or into new ones, and returns them.

Where in the prompt, and in which layer, a circuit of positions reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradpath.circuit import Circuit
from gradpath.errors import InputError
from gradpath.evaluation.evaluate import Result
from gradpath.graph import QKV
from gradpath.report.drawing import INK, MUTED, draw_on, inches
from gradpath.runtime.files import write_atomically
from gradpath.scores import Scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
        ax.scatter([at] * len(values), values.tolist(), s=12, color=colour, alpha=0.55, linewidths=0, zorder=2)
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
    image = ax.imshow(weight.numpy(), origin="lower", aspect="auto", cmap="Blues", norm=PowerNorm(0.5, vmin=0))
    ax.set_xticks(range(graph.n_heads + 1), [*(str(head) for head in range(graph.n_heads)), "MLP"], fontsize=8)
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


KINDS = (*QKV, "mlp")


def edges_read(circuit: Circuit) -> Tensor:
    """How many of the circuit's edges end in each kind of target, (kind, span, layer)."""
    graph = circuit.graph
    masks = circuit.masks.sum(1)[:, :-1]  # (span, target), the logits apart
    by_layer = masks.view(len(masks), graph.n_layers, -1)
    parts = [*torch.split(by_layer[..., :-1], graph.n_heads, -1), by_layer[..., -1:]]
    return torch.stack([part.sum(-1) for part in parts])


def draw_spans(circuit: Circuit) -> Figure:
    """One panel for queries, keys, values and MLPs each: spans across, layers upwards."""
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    counts = edges_read(circuit)
    across, up = 0.5 * len(circuit.spans) + 0.5, 0.14 * circuit.graph.n_layers + 1.8
    figure = Figure(figsize=(len(KINDS) * across + 1.6, up), layout="constrained")
    panels = figure.subplots(1, len(KINDS), sharey=True, squeeze=False)[0]
    norm = PowerNorm(0.5, vmin=0, vmax=max(1, int(counts.max())))  # or the few strong would leave others white
    for ax, kind, count in zip(panels, KINDS, counts, strict=True):
        image = ax.imshow(count.T.numpy(), origin="lower", aspect="auto", cmap="Blues", norm=norm)
        ax.set_title({"q": "queries", "k": "keys", "v": "values", "mlp": "MLPs"}[kind], fontsize=10)
        ax.set_xticks(range(len(circuit.spans)), circuit.spans, rotation=60, ha="right", fontsize=8)
    panels[0].set_ylabel("layer that reads")
    figure.supxlabel("position in the prompt", fontsize=9)
    figure.colorbar(image, ax=list(panels), label="edges of the circuit", fraction=0.05)
    about = circuit.about
    figure.suptitle(
        f"{about.get('task')} in {about.get('model')}: {len(circuit):,} edges by {about.get('method')}",
        fontsize=11,
        color=INK,
    )
    return figure


def write_spans(circuit: Circuit, folder: Path) -> list[Path]:
    """The figure as PNG and SVG."""
    import io

    figure, files = draw_spans(circuit), []
    for kind in ("png", "svg"):
        made = io.BytesIO()
        figure.savefig(made, format=kind, dpi=160)
        files.append(folder / f"positions.{kind}")
        write_atomically(files[-1], made.getvalue())
    return files
