"""Where in the prompt, and in which layer, a circuit of positions reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradpath.circuit import Circuit
from gradpath.files import write_atomically
from gradpath.graph import QKV
from gradpath.report.drawing import INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    norm = PowerNorm(
        0.5, vmin=0, vmax=max(1, int(counts.max()))
    )  # or the few strong would leave others white
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
