"""The HTML page, one self-contained file that needs no server and no network; and ``show``.

The page is the template ``assets/page.html`` with the style sheet, the scripts and the report's data filled
in. The scripts are plain JavaScript, one idea per file, joined in the order of ``SCRIPTS`` without a build step.
A content security policy in the page forbids every request.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradpath.circuit import Circuit, load_circuit
from gradpath.errors import InputError, UsageError
from gradpath.formats.graphs import dot, graphml
from gradpath.graph import pruned
from gradpath.report.data import Report, circuit_report
from gradpath.report.drawing import draw
from gradpath.report.figure import Attention, draw_figure
from gradpath.report.notes import load_notes
from gradpath.report.payload import LIMIT, asset, inside_payload, payload
from gradpath.runtime.files import write_atomically

_SCRIPTS = (
    "graph select format layout paint svg scene view curve controls details inside pattern notes address "
    "search evidence verdict downloads compare theme"
)
SCRIPTS = [f"{name}.js" for name in f"{_SCRIPTS} keys main".split()]


def render(report: Report, limit: int = LIMIT) -> str:
    """Make the page of a report.

    Args:
        report: The report.
        limit: The largest number of edges that can be selected in the page, if the report needs no more.

    Returns:
        The text of an HTML file.
    """
    content = payload(report, limit)
    if isinstance(report.inside, str):
        content["no_inside"] = report.inside
    elif report.inside is not None:
        content["inside"] = inside_payload(report.inside)
    return filled(f"{report.title} · gradpath", content)


def filled(title: str, content: Mapping[str, Any]) -> str:
    """The template with a title and the page's data filled in."""
    data = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":  # so that no prompt can end the script element that holds the data
        data = data.replace(character, f"\\u{ord(character):04x}")
    parts = {
        "title": html.escape(title),
        "style": asset("page.css") + asset("inside.css"),
        "data": data,
        "script": "\n".join(map(asset, SCRIPTS)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], asset("page.html"))


def write(report: Report, file: str | Path, limit: int = LIMIT) -> None:
    """Write the page of a report, atomically.

    Args:
        report: The report.
        file: The file to write.
        limit: The largest number of edges that can be selected in the page, if the report needs no more.
    """
    write_atomically(Path(file), render(report, limit))


WRITERS: dict[str, Callable[[Circuit, Path], None]] = {
    ".html": lambda circuit, file: write(circuit_report(circuit), file),
    ".svg": draw,
    ".png": draw,
    ".pdf": draw,
    ".dot": lambda circuit, file: write_atomically(file, dot(circuit)),
    ".graphml": lambda circuit, file: write_atomically(file, graphml(circuit)),
}
FIGURES = (".svg", ".png", ".pdf")


def show(
    circuit_file: str | Path,
    out_file: str | Path,
    *,
    notes: str | Path | None = None,
    edges: int | None = None,
    rows: bool = False,
    attention: Attention | None = None,
) -> None:
    """Write a saved circuit as a page, a drawing or a graph.

    Args:
        circuit_file: A ``circuit.json``. Edges at spans are drawn once, wherever in the prompt they are.
        out_file: The file to write; its suffix is .html, .svg, .png, .pdf, .dot or .graphml.
        notes: Names, colours and groups that the page saved, for a page or a figure in rows.
        edges: Draw only the first edges of the file, those that lead from ``input`` to ``logits``.
        rows: Draw the nodes of the circuit alone, in rows by their depth, as with notes, and not on the model's grid.
        attention: Attention patterns to draw beside a figure in rows (``figure.draw_figure``).
    """
    out = Path(out_file)
    suffix = out.suffix.lower()
    writer = WRITERS.get(suffix)
    if writer is None:
        raise UsageError(
            f"a circuit cannot be shown as {out.suffix or 'a file without a suffix'!r} ({out.name}): "
            f"name a file that ends in {', '.join(WRITERS)}."
        )
    circuit = load_circuit(circuit_file).anywhere()
    read = None if notes is None else load_notes(notes, circuit.graph)
    if edges is not None:
        circuit = first_edges(circuit, edges)
    if suffix in FIGURES and (read is not None or rows or attention):
        draw_figure(circuit, out, read, attention)
    elif read is not None and suffix != ".html":
        raise UsageError(f"notes are shown in pages and figures (.html, {', '.join(FIGURES)}): got {out.name}.")
    elif read is not None:
        content = {**payload(circuit_report(circuit)), "notes": read.to_json(circuit.graph)}
        write_atomically(out, filled(f"{circuit_report(circuit).title} · gradpath", content))
    else:
        writer(circuit, out)


def first_edges(circuit: Circuit, n: int) -> Circuit:
    """The first edges of a circuit that lie on a way from ``input`` to ``logits`` over them."""
    if not 1 <= n <= len(circuit):
        raise UsageError(f"this circuit has {len(circuit):,} edges, so between 1 and as many can be drawn: got {n:,}.")
    part = replace(circuit, index=circuit.index[:n], scores=circuit.scores[:n])
    kept = pruned(part.graph, part.mask)[part.index[:, 0], part.index[:, 1]]
    if not bool(kept.any()):
        raise InputError(f"the first {n:,} edges of this circuit do not lead from input to logits. Draw more of them.")
    return replace(part, index=part.index[kept], scores=part.scores[kept])
