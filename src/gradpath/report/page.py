"""The HTML page: one file that opens from disk, with no server, no network and no other file.

The page is the template ``assets/page.html`` with the style sheet, the scripts and the report's data put
in. The scripts are plain JavaScript, one idea per file, joined here in the order of ``SCRIPTS``; there is
no build step. A content security policy in the page forbids every request.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from gradpath.files import write_atomically
from gradpath.report.data import Report
from gradpath.report.payload import LIMIT, payload

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
