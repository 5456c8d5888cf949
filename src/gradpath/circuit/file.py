"""A circuit as a file: readable JSON with one edge per line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gradpath.circuit.circuit import Circuit, circuit_by_names
from gradpath.errors import InputError, reason
from gradpath.graph import graph_from_json
from gradpath.runtime.files import digest_of, write_rows

FORMAT = 1


def write_circuit(circuit: Circuit, file: Path) -> None:
    """Write the circuit, atomically."""
    head = {"gradpath_circuit": FORMAT, "graph": circuit.graph.to_json(), "about": dict(circuit.about)}
    if circuit.spans:
        head["spans"] = list(circuit.spans)
    # Nine digits are enough to give every float32 back exactly.
    scores = [float(f"{score:.9g}") for score in circuit.scores.tolist()]
    write_rows(file, head, "edges", list(zip(circuit.edges, scores, strict=True)))


def is_hub_address(file: str | Path) -> bool:
    """Whether this is the address of a circuit on the hub, and not a file."""
    return isinstance(file, str) and file.startswith("hf://")


def load_circuit(file: str | Path) -> Circuit:
    """Read the circuit that ``Circuit.save`` wrote; every edge is checked.

    Args:
        file: A ``circuit.json``, or the address of one on the Hugging Face hub, such as ``hf://owner/name``,
            ``hf://owner/name@revision`` or ``hf://owner/name/folder``.

    Returns:
        The circuit.
    """
    local = file
    if is_hub_address(file):
        from gradpath.formats.hub import download_circuit

        local = download_circuit(str(file))
    try:
        return _parsed(json.loads(Path(local).read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise InputError(f"there is no file {file}. Give a circuit.json that gradpath find wrote.") from None
    except InputError as problem:
        raise InputError(f"{file} cannot be used as a circuit: {problem}") from None
    except (OSError, ValueError, RecursionError) as problem:
        raise InputError(
            f"{file} cannot be read as a gradpath circuit ({reason(problem)}). "
            "It may be cut off or edited by hand: make it again with gradpath find."
        ) from None


def _parsed(content: Any) -> Circuit:
    if not isinstance(content, dict) or content.get("gradpath_circuit") != FORMAT:
        raise InputError(f'it has no "gradpath_circuit": {FORMAT}. Give a circuit.json that gradpath find wrote.')
    missing = [name for name in ("graph", "edges", "about") if name not in content]
    if missing:
        raise InputError(f"it has no {', '.join(missing)}. Make it again with gradpath find.")
    spans = content.get("spans", [])
    if not isinstance(spans, list) or len(set(map(str, spans))) != len(spans):
        raise InputError(f"its spans have to be a list of different names: got {spans!r}.")
    graph, names = graph_from_json(content["graph"]), tuple(map(str, spans))
    circuit = circuit_by_names(graph, content["edges"], content["about"], names)
    digest = content.pop("digest", None)  # files from before 0.2.0, or from other tools, have none
    if digest not in (None, digest_of(content)):
        raise InputError(
            "it was changed or damaged after it was written. Make it again with gradpath find; if you edited it "
            'yourself, remove its line "digest".'
        )
    return circuit
