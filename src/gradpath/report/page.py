"""The HTML page of a report, or of two circuits; and ``show``, which writes a saved circuit as a page or a picture.

The page is one self-contained file that needs no server and no network: the template ``assets/page.html`` with the
style sheet, the scripts and the report's data filled in. The scripts are plain JavaScript, one idea per file, joined in
the order of ``SCRIPTS`` without a build step. A content security policy in the page forbids every request.

The data is one JSON object (``payload``), small enough to send to a colleague. Edges are stored as two columns:
positions in the flattened (source, target) matrix (uint32) and scores (float32), both little-endian in base64, sorted
by position. A model can have millions of edges, so a run keeps only those that can appear among the first ``LIMIT`` of
a selection: the union of the first LIMIT of ``top``, ``greedy`` and ``signed``. No circuit changes by that, because the
best of all candidates is also the best of those in the file.

The page of two circuits has four runs, for all edges, only those in A, in both, and only in B, and the scores and ranks
of both circuits as further columns. Scores of different methods have different scales, so a line is drawn by an edge's
share of its circuit's strongest edge; where both have the edge, by the mean.
"""

from __future__ import annotations

import base64
import html
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
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
from gradpath.verdict import NAMES, QUESTIONS, Check, sentence

LIMIT = 30_000
_POINT = ("how", "asked", "kept", "faithfulness", "low", "high", "error")  # the page's names for a CurvePoint
_DIGITS = 4  # of the numbers of roles
_SCRIPTS = (
    "graph select format layout paint svg scene view curve controls details inside pattern notes address "
    "search evidence verdict downloads compare theme"
)
SCRIPTS = [f"{name}.js" for name in f"{_SCRIPTS} keys main".split()]
FIGURES = (".svg", ".png", ".pdf")


def payload(report: Report, limit: int = LIMIT) -> dict[str, Any]:
    """The object that the page reads.

    Args:
        report: The report.
        limit: The largest number of edges that can be selected in the page, if the report needs no more.

    Returns:
        Values that strict JSON can represent.
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
        "bibtex": bibtex(str(run.origin.about.get("method", "")) for run in report.runs),
    }
    if report.checks:
        effects = None if report.effects is None else report.effects.to_json()
        content["verdict"] = {**_verdict(report.checks), "effects": effects}
    result: dict[str, Any] = plain(content)
    return result


def _verdict(checks: Mapping[str, Check]) -> dict[str, Any]:
    """The tests as the page lists them, and how to make those that are missing."""
    rows = [
        {"name": name, "question": QUESTIONS[name], **asdict(replace(check, details={}))}
        for name, check in checks.items()
    ]
    missing = [name for name in NAMES if name not in checks]
    note = f"Not tested here: {', '.join(missing)}. For the whole verdict: " if missing else ""
    command = "gradpath test circuit.json --out verdict.html" if missing else ""
    said = sentence(checks)
    return {"checks": rows, "sentence": said[0].upper() + said[1:], "note": note, "command": command}


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
    flat, scores = _edges(run, limit)
    content = {
        "name": run.label,
        "about": run.origin.about,
        "selections": run.selections,
        "limit": limit if run.scores is not None else len(flat),
        "edges": len(flat),
        "index": packed(flat, "<u4"),
        "scores": packed(scores, "<f4"),
        "curve": [dict(zip(_POINT, astuple(point), strict=True)) for point in run.curve],
        "areas": {how: asdict(areas) for how, areas in run.areas.items()},
    }
    if run.circuit is not None:
        content["saved"] = {
            "order": packed(torch.searchsorted(flat, flat_index(run.circuit)), "<u4"),
            "edges": len(run.circuit),
            "asked": run.circuit.asked,
            "how": run.circuit.provenance.how or SAVED,
            "smallest": run.smallest,
        }
    return content


def _edges(run: MethodRun, limit: int) -> tuple[Tensor, Tensor]:
    """The flat positions of the edges in the file, ascending, and their scores."""
    in_circuit = [] if run.circuit is None else [flat_index(run.circuit)]
    if run.scores is None:
        assert run.circuit is not None
        flat, order = in_circuit[0].sort()
        return flat, run.circuit.scores.cpu().float()[order]
    scores = Scores(run.scores.graph, run.scores.values.detach().cpu().float())
    orders = [SELECTIONS[how].order(scores, limit) for how in IN_PAGE]
    flat = torch.unique(torch.cat(orders + in_circuit))
    return flat, scores.values.flatten()[flat]


def flat_index(circuit: Circuit) -> Tensor:
    """The positions of a circuit's edges in the flattened (source, target) matrix, (edge,)."""
    return circuit.index[:, 0].cpu() * circuit.graph.n_targets + circuit.index[:, 1].cpu()


def packed(values: Tensor, dtype: str) -> str:
    """A column as little-endian numbers in base64."""
    return base64.b64encode(values.numpy().astype(dtype).tobytes()).decode("ascii")


def plain(value: Any) -> Any:
    """A value as strict JSON can represent it: None for NaN, the text of other objects."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
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


def inside_payload(inside: Inside) -> dict[str, Any]:
    """What the page knows of single examples, as one JSON object with the same columns.

    Args:
        inside: What the circuit does on the examples of the report.

    Returns:
        Values that strict JSON can represent.
    """
    number = {token: at for at, token in enumerate(inside.texts)}
    used = inside.tokens.flatten().tolist()
    explanation = inside.explanation
    return {
        "nodes": [_rounded(role.to_json()) for role in explanation],
        "parts": list(explanation.parts),
        "answers": list(explanation.answers) if inside.answers is not None else None,
        "sources": inside.sources,
        "heads": inside.heads,
        "edges": packed(flat_index(inside.circuit), "<u4"),
        "effects": packed(inside.effects, "<f4"),
        "patterns": [packed(pattern, "u1") for pattern in inside.patterns],
        "vocabulary": list(inside.texts.values()),
        "tokens": packed(torch.tensor([number[token] for token in used], device="cpu"), "<u4"),
        "logits": packed(inside.logits, "<f4"),
        "sides": None if inside.answers is None else packed(inside.answers, "<f4"),
    }


def _rounded(value: Any) -> Any:
    """Floats with a few digits: a page has thousands of them."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value


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


def write_comparison(comparison: Comparison, file: Path, names: tuple[str, str] = ("A", "B")) -> None:
    """Write the page of a comparison, atomically.

    Args:
        comparison: Two circuits. Edges at spans are drawn once, wherever in the prompt they are.
        file: The HTML file to write.
        names: What to call the circuits, such as their files.
    """
    write_atomically(file, render_comparison(comparison, names))


def render_comparison(comparison: Comparison, names: tuple[str, str] = ("A", "B")) -> str:
    """The text of the HTML file that ``write_comparison`` writes."""
    a, b = comparison.a.anywhere(), comparison.b.anywhere()
    if not len(a) and not len(b):
        raise InputError("both circuits are empty, so there is nothing to draw.")
    comparison, strength = Comparison(a, b), _strengths(a, b)
    parts = {"All": a | b, "Only A": comparison.only_a, "Both": comparison.both, "Only B": comparison.only_b}
    runs = [MethodRun(None, circuit=_drawn(part, a, b, strength), name=name) for name, part in parts.items()]
    model, task = (_joined(a, b, what) for what in ("model", "task"))
    report = Report(f"{task} in {model}", model, task, runs, Chosen(len(parts["All"]), SAVED, pruned=False))
    content = payload(report)
    for run, part in zip(content["runs"], parts.values(), strict=True):
        flat = flat_index(part).sort().values
        run["sides"] = [_columns(side, flat) for side in (a, b)]
    abouts = [{**one.about, **one.provenance.selection} for one in (a, b)]
    content["compare"] = plain({**comparison.to_json(), "names": names, "about": abouts})
    return filled(f"{report.title} · gradpath", content)


def _joined(a: Circuit, b: Circuit, what: str) -> str:
    """The model or the task of both circuits."""
    named = [getattr(one.provenance, what) or f"an unnamed {what}" for one in (a, b)]
    return " and ".join(dict.fromkeys(named))


def _strengths(a: Circuit, b: Circuit) -> Tensor:
    """For every (source, target) the share of the strongest edge's score, flattened; 0 outside of both circuits."""
    shares, count = (torch.zeros(a.graph.n_pairs, dtype=torch.float32, device="cpu") for _ in range(2))
    for one in (a, b):
        largest = float(one.scores.abs().max()) if len(one) else 0.0
        shares[flat_index(one)] += one.scores / largest if largest else one.scores
        count[flat_index(one)] += 1
    return shares / count.clamp(min=1)


def _drawn(part: Circuit, a: Circuit, b: Circuit, strength: Tensor) -> Circuit:
    """A part of both circuits with these strengths, in the order in which the circuits took the edges."""
    ranks = torch.full((a.graph.n_pairs,), len(a) + len(b), dtype=torch.long, device="cpu")
    for one in (b, a):
        flat = flat_index(one)
        ranks[flat] = torch.minimum(ranks[flat], torch.arange(len(one), device="cpu"))
    flat = flat_index(part)
    order = ranks[flat].sort(stable=True).indices
    return Circuit(part.graph, part.index[order], strength[flat[order]], part.about)


def _columns(circuit: Circuit, flat: Tensor) -> dict[str, Any]:
    """The rank (0 if it is not in) and the score of each edge in one of the circuits."""
    ranks = torch.zeros(circuit.graph.n_pairs, dtype=torch.long, device="cpu")
    scores = torch.zeros(circuit.graph.n_pairs, dtype=torch.float32, device="cpu")
    own = flat_index(circuit)
    ranks[own], scores[own] = torch.arange(1, len(circuit) + 1, device="cpu"), circuit.scores
    return {"rank": packed(ranks[flat], "<u4"), "score": packed(scores[flat], "<f4")}
