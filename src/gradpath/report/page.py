"""The HTML page of a report, or of two circuits; and ``show``, which writes a saved circuit as a page or a picture.

The page is one self-contained file that needs no server and no network: the template ``assets/page.html`` with the
style sheet, the scripts and the report's data filled in. The scripts are plain JavaScript, one idea per file, joined in
the order of ``SCRIPTS`` without a build step. A content security policy in the page forbids every request.

The data is one JSON object (``payload``), small enough to send to a colleague. Edges are stored as two columns:
positions in the flattened (source, target) matrix (uint32) and scores (float32), both little-endian in base64, sorted
by position. A model can have millions of edges, so a run keeps only those that can appear among the first ``LIMIT`` of
a selection: the union of the first LIMIT of ``top``, ``greedy`` and ``signed``. Orders are
shipped, too, except those that follow from the scores.

The page of two circuits has four runs, for all edges, only those in A, in both, and only in B, and the scores and ranks
of both circuits as further columns. Scores of different methods have different scales, so a line is drawn by an edge's
share of its circuit's strongest edge; where both have the edge, by the mean.
"""

from __future__ import annotations

import base64
import html
import json
import math
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, astuple, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradpath._version import __version__
from gradpath.circuit import Circuit, Comparison, load_circuit
from gradpath.errors import InputError, UsageError
from gradpath.explanation import Inside
from gradpath.formats.edges import dot, graphml
from gradpath.graph import pruned
from gradpath.report.data import IN_PAGE, SAVED, Chosen, MethodRun, Report, circuit_report
from gradpath.report.figure import Attention, draw_figure, load_notes
from gradpath.report.plots import draw
from gradpath.runtime.files import write_atomically
from gradpath.scores import Scores
from gradpath.selection import SELECTIONS
from gradpath.verdict import NAMES, QUESTIONS, sentence
from gradpath.verdict.checks import NULLS, limit_of

LIMIT = 30_000
_BY_SCORE = ("top", "signed")  # orders that are not shipped: the page sorts edges by score itself
_POINT = ("how", "asked", "kept", "faithfulness", "low", "high", "error")  # the page's names for a CurvePoint
_DIGITS = 4  # of the numbers of roles: a page has thousands of them
_SCRIPTS = (
    "graph select format layout paint svg scene view curve controls details inside pattern notes address "
    "search evidence verdict downloads compare theme keys main"
)
SCRIPTS = [f"{name}.js" for name in _SCRIPTS.split()]
_PASSED_ON = ("--data", "--task", "--metric", "--plugin", "--seed")  # from find to test
_FOLDER = "FOLDER"  # where a command did not name the folder that the page is in
FIGURES = (".svg", ".png", ".pdf")
GRAPHS = {".dot": dot, ".graphml": graphml}


def payload(report: Report, limit: int = LIMIT) -> dict[str, Any]:
    """The object that the page reads: values that strict JSON can represent.

    ``limit`` is the largest number of edges that can be selected in the page, if the report needs no more.
    """
    _check(report)
    graph, chosen = report.runs[0].graph, report.chosen
    limit = min(graph.n_edges, max(limit, chosen.edges))
    run = report.runs[chosen.run]
    saved = run.circuit if chosen.how == SAVED and run.smallest is None else None
    content = {
        "version": __version__,
        "title": report.title,
        "model": report.model,
        "task": report.task,
        "graph": graph.to_json(),
        "edges_total": graph.n_edges,
        "runs": [_run(run, limit) for run in report.runs],
        "chosen": {**asdict(chosen), "asked": chosen.edges if saved is None else saved.asked},
        "examples": [asdict(example) for example in report.examples],
        "about": report.about,
        "command": report.command,
        "bibtex": bibtex(run.origin.provenance.method or "" for run in report.runs),
    }
    if report.checks:
        content["verdict"] = _verdict(report)
    result: dict[str, Any] = plain(content)
    return result


def _verdict(report: Report) -> dict[str, Any]:
    """The tests as the page lists them, and the command for those that were not run."""
    checks = report.checks
    rows = [
        {
            "name": name,
            "question": QUESTIONS[name],
            **replace(check, details={}).to_json(),
            "null_is": NULLS.get(name),
            "limit": limit_of(name, check),
        }
        for name, check in checks.items()
    ]
    missing = [name for name in NAMES if name not in checks]
    command = _test_command(report) if missing else ""
    where = f", with the folder of this page for {_FOLDER}" if _FOLDER in command else ""
    note = f"Not tested here: {', '.join(missing)}. For the whole verdict{where}: " if missing else ""
    summary = sentence(checks)
    return {
        "checks": rows,
        "sentence": summary[0].upper() + summary[1:],
        "note": note,
        "command": command,
        "effects": None if report.effects is None else report.effects.to_json(),
    }


def _test_command(report: Report) -> str:
    """The ``gradpath test`` of the requested circuit: its folder, and the options that its file cannot name."""
    options_of_find: dict[str, list[str]] = {}
    words: Iterator[str] = iter(())
    with suppress(ValueError):  # a text from Python that no shell would take
        words = iter(shlex.split(report.command))
    for word in words:
        name, equals, value = word.partition("=")
        if name in ("--out", *_PASSED_ON):
            options_of_find.setdefault(name, []).append(value if equals else next(words, ""))
    if "--data" not in options_of_find:
        options_of_find.pop("--task", None)  # the file names it
        if report.runs[report.chosen.run].origin.provenance.own_data:
            options_of_find["--data"] = ["FILE"]
    folder = options_of_find.get("--out", [_FOLDER])[-1]
    options = [part for name in _PASSED_ON for value in options_of_find.get(name, ()) for part in (name, value)]
    file, page = (os.path.join(folder, name) for name in ("circuit.json", "verdict.html"))
    return shlex.join(["gradpath", "test", file, *options, "--out", page])


def _check(report: Report) -> None:
    if not report.runs:
        raise UsageError("a report needs at least one method that was run: got none.")
    for run in report.runs:
        if run.graph != report.runs[0].graph:
            raise InputError(
                "the methods of one report must have run on the same model: "
                f"got {report.runs[0].graph} and {run.graph}. Make one report for each."
            )
        parts = [run.scores.values] if run.scores is not None else []
        parts += [run.circuit.scores] if run.circuit is not None else []
        bad = sum(int((~values.isfinite()).sum()) for values in parts)
        if bad:
            raise InputError(
                f"{bad:,} scores of {run.label} are not finite numbers, so they cannot be ranked or drawn. "
                "Attribute again in float32, or leave out examples with extreme logits."
            )
    chosen = report.chosen
    if not 0 <= chosen.run < len(report.runs):
        raise UsageError(f"run {chosen.run} was chosen, but the report has {len(report.runs)} runs.")
    selections = report.runs[chosen.run].selections
    if chosen.how not in selections:
        raise UsageError(
            f"the page cannot select by {chosen.how!r} here, only by {', '.join(selections)}. "
            f"Give the run that circuit and choose {SAVED!r}."
        )


def _run(run: MethodRun, limit: int) -> dict[str, Any]:
    orders = {} if run.circuit is None else {SAVED: run.circuit.flat}
    if run.scores is not None:
        values = run.scores.values.detach().cpu().float()
        orders |= {how: SELECTIONS[how].function(Scores(run.graph, values), limit) for how in IN_PAGE}
    else:
        assert run.circuit is not None
        values = _ranks_and_scores(run.circuit)[1]
    flat = torch.unique(torch.cat(list(orders.values())))
    shipped = {how: order for how, order in orders.items() if how not in _BY_SCORE}
    content = {
        "name": run.label,
        "about": run.origin.about,
        "selections": run.selections,
        "limit": limit if run.scores is not None else len(flat),
        "edges": len(flat),
        "index": packed(flat, "<u4"),
        "scores": packed(values.flatten()[flat], "<f4"),
        "orders": {how: packed(torch.searchsorted(flat, order), "<u4") for how, order in shipped.items()},
        "curve": [dict(zip(_POINT, astuple(point), strict=True)) for point in run.curve],
        "areas": {how: asdict(areas) for how, areas in run.areas.items()},
    }
    if run.circuit is not None:
        content["saved"] = {
            "edges": len(run.circuit),
            "asked": run.circuit.asked,
            "how": run.circuit.provenance.how or SAVED,
            "smallest": run.smallest,
        }
    return content


def packed(values: Tensor, dtype: str) -> str:
    """A column as little-endian numbers in base64."""
    return base64.b64encode(values.numpy().astype(dtype).tobytes()).decode("ascii")


def plain(value: Any, digits: int | None = None) -> Any:
    """A value as strict JSON can represent it: None for NaN, the text of other objects; floats with so many digits."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return value if digits is None else float(f"{value:.{digits}g}")
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item, digits) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, digits) for item in value]
    return str(value)


def bibtex(methods: Iterable[str]) -> str:
    """The BibTeX entries to cite for some methods and for gradpath, each once."""
    blocks = asset("citations.bib").replace("VERSION", __version__).strip().split("\n\n")
    entries = dict[str, str]()  # a block is a comment with the names of the methods, and an entry
    for names, _, entry in (block.partition("\n") for block in blocks):
        entries |= dict.fromkeys(names.removeprefix("% ").split(), entry)
    return "\n\n".join(dict.fromkeys(entries[name] for name in [*methods, "gradpath"] if name in entries))


def asset(name: str) -> str:
    """The text of a file in ``report/assets``."""
    return (files("gradpath.report") / "assets" / name).read_text(encoding="utf-8")


def _inside(inside: Inside) -> dict[str, Any]:
    """What the page shows of single examples, as one JSON object with the same columns."""
    number = {token: at for at, token in enumerate(inside.texts)}
    tokens = [number[token] for token in inside.tokens.flatten().tolist()]
    explanation = inside.explanation
    return {
        "nodes": [plain(role.to_json(), _DIGITS) for role in explanation],
        "parts": list(explanation.parts),
        "answers": list(explanation.answers) if inside.answers is not None else None,
        "sources": inside.sources,
        "heads": inside.heads,
        "edges": packed(inside.circuit.flat, "<u4"),
        "effects": packed(inside.effects, "<f4"),
        "patterns": [packed(pattern, "u1") for pattern in inside.patterns],
        "vocabulary": list(inside.texts.values()),
        "tokens": packed(torch.tensor(tokens, device="cpu"), "<u4"),
        "logits": packed(inside.logits, "<f4"),
        "sides": None if inside.answers is None else packed(inside.answers, "<f4"),
    }


def render(report: Report, limit: int = LIMIT) -> str:
    """The page of a report as the text of an HTML file; ``limit`` as in ``payload``."""
    content = payload(report, limit)
    if isinstance(report.inside, str):
        content["no_inside"] = report.inside
    elif report.inside is not None:
        content["inside"] = _inside(report.inside)
    return filled(report.title, content)


def filled(title: str, content: Mapping[str, Any]) -> str:
    """The template with the report's title and the page's data filled in."""
    data = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":  # so that no prompt can end the script element that holds the data
        data = data.replace(character, f"\\u{ord(character):04x}")
    parts = {
        "title": html.escape(f"{title} · gradpath"),
        "style": asset("page.css") + asset("inside.css"),
        "data": data,
        "script": "\n".join(map(asset, SCRIPTS)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], asset("page.html"))


def write(report: Report, file: str | Path) -> None:
    """Write the page of a report, atomically."""
    write_atomically(Path(file), render(report))


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
        circuit_file: A ``circuit.json``.
        out_file: The file to write; its suffix is .html, .svg, .png, .pdf, .dot or .graphml.
        notes: Names, colours and groups that the page saved, for a page or a figure in rows.
        edges: The number of edges to draw, the first of the file. Of these, edges on no path from ``input`` to
            ``logits`` are left out.
        rows: Draw a figure with the circuit's nodes only, in rows by depth. Notes and attention imply it.
        attention: Attention patterns to draw on the right of a figure in rows (``figure.draw_figure``).
    """
    out = Path(out_file)
    suffix, suffixes = out.suffix.lower(), (".html", *FIGURES, *GRAPHS)
    if suffix not in suffixes:
        raise UsageError(
            f"a circuit cannot be shown as {out.suffix or 'a file without a suffix'!r} ({out.name}): "
            f"name a file that ends in {', '.join(suffixes)}."
        )
    circuit = load_circuit(circuit_file)
    node_notes = None if notes is None else load_notes(notes, circuit.graph)
    if edges is not None:
        circuit = first_edges(circuit, edges)
    if suffix == ".html":
        report = circuit_report(circuit)
        noted = {} if node_notes is None else {"notes": node_notes.to_json(circuit.graph)}
        write_atomically(out, filled(report.title, {**payload(report), **noted}))
    elif suffix in FIGURES and (node_notes is not None or rows or attention):
        draw_figure(circuit, out, node_notes, attention)
    elif node_notes is not None:
        raise UsageError(f"notes are shown in pages and figures (.html, {', '.join(FIGURES)}): got {out.name}.")
    elif suffix in FIGURES:
        draw(circuit, out)
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


def render_comparison(comparison: Comparison, names: tuple[str, str] = ("A", "B")) -> str:
    """Make the page of a comparison; ``names`` are those of the circuits, such as their files."""
    a, b = comparison.a, comparison.b
    if not len(a) and not len(b):
        raise InputError("both circuits are empty, so there is nothing to draw.")
    parts = {"All": a | b, "Only A": comparison.only_a, "Both": comparison.both, "Only B": comparison.only_b}
    sides = [_ranks_and_scores(circuit) for circuit in (a, b)]
    runs = [MethodRun(None, circuit=_drawn(part, sides), name=name) for name, part in parts.items()]
    model, task = (_joined(a, b, what) for what in ("model", "task"))
    report = Report(f"{task} in {model}", model, task, runs, Chosen(len(parts["All"]), SAVED, pruned=False))
    content = payload(report)
    for run, part in zip(content["runs"], parts.values(), strict=True):
        flat = part.flat.sort().values
        run["sides"] = [
            {"rank": packed(ranks[flat], "<u4"), "score": packed(scores[flat], "<f4")} for ranks, scores in sides
        ]
    abouts = [{**circuit.about, **circuit.provenance.selection} for circuit in (a, b)]
    content["compare"] = plain({**comparison.to_json(), "names": names, "about": abouts})
    return filled(report.title, content)


def _joined(a: Circuit, b: Circuit, what: str) -> str:
    """The model or the task of both circuits."""
    names = [getattr(circuit.provenance, what) or f"an unnamed {what}" for circuit in (a, b)]
    return " and ".join(dict.fromkeys(names))


def _ranks_and_scores(circuit: Circuit) -> tuple[Tensor, Tensor]:
    """The rank, from 1, and the score of every (source, target), flattened; 0 outside the circuit."""
    ranks = torch.zeros(circuit.graph.n_pairs, dtype=torch.long, device="cpu")
    scores = torch.zeros(circuit.graph.n_pairs, dtype=torch.float32, device="cpu")
    ranks[circuit.flat] = torch.arange(1, len(circuit) + 1, device="cpu")
    scores[circuit.flat] = circuit.scores.cpu()
    return ranks, scores


def _drawn(part: Circuit, sides: list[tuple[Tensor, Tensor]]) -> Circuit:
    """A part of both circuits: edges by the better of their two ranks, with their shares of the strongest edge."""
    flat = part.flat
    ranks = torch.stack([ranks[flat] for ranks, _ in sides])  # (side, edge)
    shares = torch.stack([scores[flat] / (float(scores.abs().max()) or 1.0) for _, scores in sides])
    strengths = shares.sum(0) / (ranks > 0).sum(0)
    order = ranks.where(ranks > 0, torch.iinfo(torch.long).max).amin(0).sort(stable=True).indices
    return Circuit(part.graph, part.index[order], strengths[order], part.about)
