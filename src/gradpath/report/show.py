"""Drawing a saved circuit, as the kind of file that its name's suffix asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gradpath.circuit import Circuit, load_circuit
from gradpath.errors import UsageError
from gradpath.files import write_atomically
from gradpath.formats.dot import dot
from gradpath.formats.graphml import graphml
from gradpath.report.data import circuit_report
from gradpath.report.drawing import draw
from gradpath.report.page import write


def _page(circuit: Circuit, file: Path) -> None:
    write(circuit_report(circuit), file)


def _dot(circuit: Circuit, file: Path) -> None:
    write_atomically(file, dot(circuit))


def _graphml(circuit: Circuit, file: Path) -> None:
    write_atomically(file, graphml(circuit))


WRITERS: dict[str, Callable[[Circuit, Path], None]] = {
    ".html": _page,
    ".svg": draw,
    ".png": draw,
    ".pdf": draw,
    ".dot": _dot,
    ".graphml": _graphml,
}


def show(circuit_file: str | Path, out_file: str | Path) -> None:
    """Read a circuit.json and write it as a page, a drawing or a graph, by the suffix of ``out_file``."""
    out = Path(out_file)
    writer = WRITERS.get(out.suffix.lower())
    if writer is None:
        raise UsageError(
            f"a circuit cannot be shown as {out.suffix or 'a file without a suffix'!r} ({out.name}): "
            f"name a file that ends in {', '.join(WRITERS)}."
        )
    writer(load_circuit(circuit_file).anywhere(), out)
