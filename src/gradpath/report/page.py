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
from pathlib import Path
from typing import Any

from gradpath.circuit import Circuit, load_circuit
from gradpath.errors import UsageError
from gradpath.formats.graphs import dot, graphml
from gradpath.report.data import Report, circuit_report
from gradpath.report.drawing import draw
from gradpath.report.inside import inside_payload
from gradpath.report.payload import LIMIT, asset, payload
from gradpath.runtime.files import write_atomically

_SCRIPTS = (
    "graph select format layout paint svg scene view curve controls details inside pattern search evidence "
    "downloads compare theme"
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
    if report.inside is not None:
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


def show(circuit_file: str | Path, out_file: str | Path) -> None:
    """Write a saved circuit as a page, a drawing or a graph.

    Args:
        circuit_file: A ``circuit.json``. Edges at spans are drawn once, wherever in the prompt they are.
        out_file: The file to write; its suffix is .html, .svg, .png, .pdf, .dot or .graphml.
    """
    out = Path(out_file)
    writer = WRITERS.get(out.suffix.lower())
    if writer is None:
        raise UsageError(
            f"a circuit cannot be shown as {out.suffix or 'a file without a suffix'!r} ({out.name}): "
            f"name a file that ends in {', '.join(WRITERS)}."
        )
    writer(load_circuit(circuit_file).anywhere(), out)
