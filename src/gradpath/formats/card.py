"""The card of a circuit on the hub: a README.md with metadata, made from the circuit's provenance."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from gradpath.circuit import Circuit
from gradpath.model.packaged import PACKAGED
from gradpath.runtime.files import ELSEWHERE

CARD = "README.md"


def card(circuit: Circuit, address: str, files: Sequence[str]) -> str:
    """The card's text.

    Args:
        circuit: The circuit.
        address: Its place on the hub.
        files: The names of the files beside the card.

    Returns:
        Markdown after a block of YAML metadata, whose values are written as JSON.
    """
    made, about, graph = circuit.provenance, circuit.about, circuit.graph
    base = _hub_name(made.model)
    tags = ["gradpath", "mechanistic-interpretability", "circuit", *filter(None, (made.task, made.method))]
    metadata: dict[str, Any] = {"library_name": "gradpath", "tags": tags}
    if base is not None:
        metadata["base_model"] = base
    selection = made.selection
    options = about.get("options")
    facts = {
        "model": base or made.model,
        "weights": about.get("weights"),
        "task": made.task,
        "metric": _inside(about.get("data"), "metric"),
        "method": made.method,
        "steps": about.get("steps"),
        "options": ", ".join(f"{name}={value}" for name, value in options.items()) if isinstance(options, dict) else "",
        "selection": made.how,
        "ablation": made.ablation,
        "examples attributed": about.get("examples"),
        "seed": _inside(about.get("data"), "seed"),
        "edges": f"{len(circuit):,} of {graph.n_edges * max(1, len(circuit.spans)):,}",
        "edges requested": selection.get("edges_asked"),
        "plug-ins": ", ".join(map(str, about["plugins"])) if isinstance(about.get("plugins"), dict) else "",
        "gradpath": about.get("version"),
    }
    lines = [f"| {name} | {_cell(value)} |" for name, value in facts.items() if value not in (None, "")]
    title = " in ".join(_cell(part) for part in (made.task or "A circuit", base or made.model) if part)
    return "\n".join(
        [
            "---",
            *(f"{name}: {json.dumps(value)}" for name, value in metadata.items()),
            "---",
            "",
            f"# {title}",
            "",
            f"A circuit of {len(circuit):,} edges, found with gradpath. Its files are {', '.join(files)}.",
            "",
            "```python",
            "import gradpath as gp",
            "",
            f'circuit = gp.load_circuit("hf://{address}")',
            "```",
            "",
            "```bash",
            f"gradpath pull {address}",
            "```",
            "",
            "| made with | |",
            "|---|---|",
            *lines,
            "",
        ]
    )


def _hub_name(model: str | None) -> str | None:
    """The model's name on the hub, if it has one."""
    if model in PACKAGED:
        return PACKAGED[model].hub_name
    is_name = model is not None and model.count("/") == 1 and not model.startswith((".", "/", "~", ELSEWHERE))
    return model if is_name and not os.path.exists(str(model)) else None


def _inside(data: Any, name: str) -> Any:
    return data.get(name) if isinstance(data, dict) else None


def _cell(value: Any) -> str:
    """A value in a table: a file can put anything into its provenance, and it stays one line of text."""
    text = " ".join(str(value).split())[:200]
    for sign in ("\\", "|", "`", "*", "_", "[", "<"):
        text = text.replace(sign, f"\\{sign}")
    return text
