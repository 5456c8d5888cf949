"""The HTML page: one file that opens from disk, with no server, no network and no other file.

The page is the template ``assets/page.html`` with the style sheet, the scripts and the report's data put
in. The scripts are plain JavaScript, one idea per file, joined here in the order of ``SCRIPTS``; there is
no build step. A content security policy in the page forbids every request.

Drawing a saved circuit, as the kind of file that its name's suffix asks for.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from gradpath.circuit import Circuit, load_circuit
from gradpath.errors import UsageError
from gradpath.formats.graphs import dot, graphml
from gradpath.report.data import Report, circuit_report
from gradpath.report.drawing import draw
from gradpath.report.payload import LIMIT, payload
from gradpath.runtime.files import write_atomically

SCRIPTS = (
    "graph.js",
    "select.js",
    "format.js",
    "layout.js",
    "paint.js",
    "svg.js",
    "scene.js",
    "view.js",
    "curve.js",
    "controls.js",
    "details.js",
    "search.js",
    "evidence.js",
    "downloads.js",
    "theme.js",
    "keys.js",
    "main.js",
)


def render(report: Report, limit: int = LIMIT) -> str:
    """The report as the text of an HTML file."""
    return _filled(
        _asset("page.html"),
        {
            "title": html.escape(f"{report.title} · gradpath"),
            "style": _asset("page.css"),
            "data": _embedded(payload(report, limit)),
            "script": "\n".join(_asset(name) for name in SCRIPTS),
        },
    )


def write(report: Report, file: str | Path, limit: int = LIMIT) -> None:
    """Write the page, all of it or nothing."""
    write_atomically(Path(file), render(report, limit))


def _embedded(content: Mapping[str, Any]) -> str:
    """JSON that cannot end the script element it stands in, whatever a prompt says."""
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _filled(template: str, parts: Mapping[str, str]) -> str:
    """Put each part in its place, once: what is put in is never searched for places itself."""
    pieces = template.split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        filled += [parts[name], rest]
    return "".join(filled)


def _asset(name: str) -> str:
    return (files("gradpath.report") / "assets" / name).read_text(encoding="utf-8")


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
