"""The HTML page of a report, or of two circuits; and ``show``, which writes a saved circuit as a page or a picture.

The page is one self-contained file that needs no server and no network: the template ``assets/page.html`` with the
style sheet, the scripts and the report's data as JSON (``payload.page_of``). The scripts are plain JavaScript, one
idea per file, joined in the order of ``SCRIPTS`` without a build step. A content security policy in the page forbids
every request.

The page of two circuits has four runs, for all edges, only those in A, in both, and only in B, and the scores and ranks
of both circuits as further columns. Scores of different methods have different scales, so a line is drawn by an edge's
share of its circuit's strongest edge; where both have the edge, by the mean.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradpath.circuit import Circuit, Comparison, load_circuit
from gradpath.errors import InputError, UsageError
from gradpath.formats.edges import dot, graphml
from gradpath.graph import pruned
from gradpath.report.data import SAVED, Chosen, MethodRun, Report, circuit_report
from gradpath.report.figure import circuit_figure
from gradpath.report.payload import LIMIT, asset, facts_of_both, packed, page_of, plain, ranks_and_scores
from gradpath.report.style import save_as
from gradpath.runtime.files import write_atomically

_SCRIPTS = (
    "graph format layout paint svg scene view curve controls details inside pattern notes address "
    "search evidence verdict downloads compare theme keys main"
)
SCRIPTS = [f"{name}.js" for name in _SCRIPTS.split()]
FIGURES = (".svg", ".png", ".pdf")
GRAPHS = {".dot": dot, ".graphml": graphml}


def render(report: Report, limit: int = LIMIT) -> str:
    """The page of a report as the text of an HTML file; ``limit`` as in ``page_of``."""
    return filled(page_of(report, limit))


def filled(page: Mapping[str, Any]) -> str:
    """The template with the page's title and data filled in."""
    data = json.dumps(plain(page), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":  # so that no prompt can end the script element that holds the data
        data = data.replace(character, f"\\u{ord(character):04x}")
    parts = {
        "title": html.escape(f"{page['title']} · gradpath"),
        "style": asset("page.css") + asset("inside.css"),
        "data": data,
        "script": "\n".join(map(asset, SCRIPTS)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], asset("page.html"))


def write(report: Report, file: str | Path) -> None:
    """Write the page of a report, atomically."""
    write_atomically(Path(file), render(report))


def show(circuit_file: str | Path, out_file: str | Path, *, edges: int | None = None) -> None:
    """Write a saved circuit as a page, a drawing or a graph.

    The suffix of ``out_file`` is .html, .svg, .png, .pdf, .dot or .graphml. With ``edges``, only so many are drawn, the
    first of the file; of these, edges on no path from ``input`` to ``logits`` are left out.
    """
    out = Path(out_file)
    suffix, suffixes = out.suffix.lower(), (".html", *FIGURES, *GRAPHS)
    if suffix not in suffixes:
        raise UsageError(
            f"a circuit cannot be shown as {out.suffix or 'a file without a suffix'!r} ({out.name}): "
            f"name a file that ends in {', '.join(suffixes)}."
        )
    circuit = load_circuit(circuit_file)
    if edges is not None:
        circuit = first_edges(circuit, edges)
    if suffix == ".html":
        write(circuit_report(circuit), out)
    elif suffix in FIGURES:
        save_as(circuit_figure(circuit), out, dpi=220)
    else:
        write_atomically(out, GRAPHS[suffix](circuit))


def first_edges(circuit: Circuit, n: int) -> Circuit:
    """Those of the first n edges of a circuit that lie on a path of such edges from ``input`` to ``logits``."""
    if not 1 <= n <= len(circuit):
        raise UsageError(f"this circuit has {len(circuit):,} edges, so between 1 and as many can be drawn: got {n:,}.")
    part = replace(circuit, index=circuit.index[:n], scores=circuit.scores[:n])
    on_path = pruned(part.graph, part.mask).flatten()[part.flat]
    if not bool(on_path.any()):
        raise InputError(f"the first {n:,} edges of this circuit do not lead from input to logits. Draw more of them.")
    return replace(part, index=part.index[on_path], scores=part.scores[on_path])


def render_comparison(comparison: Comparison, names: tuple[str, str] | None = None) -> str:
    """Make the page of a comparison; ``names`` are those of the circuits, by default how they were made."""
    a, b = comparison.a, comparison.b
    if not len(a) and not len(b):
        raise InputError("both circuits are empty, so there is nothing to draw.")
    parts = {"All": a | b, "Only A": comparison.only_a, "Both": comparison.both, "Only B": comparison.only_b}
    sides = [ranks_and_scores(circuit) for circuit in (a, b)]
    method_runs = [MethodRun(None, circuit=_drawn(part, sides), name=name) for name, part in parts.items()]
    model, task = (_joined(a, b, what) for what in ("model", "task"))
    page = page_of(
        Report(f"{task} in {model}", model, task, method_runs, Chosen(len(a | b), SAVED, pruned=False, found=False))
    )
    facts = facts_of_both(a, b)
    cut = "Scores and ranks of both circuits. In Python, a & b, a | b and a - b give the parts as circuits."
    for run, part in zip(page["runs"], parts.values(), strict=True):
        flat = part.flat.sort().values
        columns = [
            {"rank": packed(ranks[flat], "<u4"), "score": packed(scores[flat], "<f4")} for ranks, scores in sides
        ]
        run |= {"sides": columns, "facts": facts, "cut": cut}
    return filled({**page, "compare": {"names": names or _titles(a, b), **comparison.to_json()}})


def _titles(a: Circuit, b: Circuit) -> list[str]:
    """How each of two circuits was made; with its size, if that is the same or not known."""
    made = [None if circuit.recipe is None else str(circuit.recipe) for circuit in (a, b)]
    if None not in made and made[0] != made[1]:
        return [str(text) for text in made]
    return [f"{text or 'a circuit'}, {len(circuit):,} edges" for text, circuit in zip(made, (a, b), strict=True)]


def _joined(a: Circuit, b: Circuit, what: str) -> str:
    """The model or the task of both circuits."""
    names = [getattr(circuit.recipe, what, None) or f"an unnamed {what}" for circuit in (a, b)]
    return " and ".join(dict.fromkeys(names))


def _drawn(part: Circuit, sides: list[tuple[Tensor, Tensor]]) -> Circuit:
    """A part of both circuits: edges by the better of their two ranks, with their shares of the strongest edge."""
    flat = part.flat
    ranks = torch.stack([ranks[flat] for ranks, _ in sides])  # (side, edge)
    shares = torch.stack([scores[flat] / (float(scores.abs().max()) or 1.0) for _, scores in sides])
    strengths = shares.sum(0) / (ranks > 0).sum(0)
    order = ranks.where(ranks > 0, torch.iinfo(torch.long).max).amin(0).sort(stable=True).indices
    return replace(part, index=part.index[order], scores=strengths[order], frequency=None, n_requested=None)
