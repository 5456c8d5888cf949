"""A report as one JSON object for the page, small enough to send to a colleague.

Edges are stored as two columns: positions in the flattened (source, target) matrix (uint32) and scores
(float32), both little-endian in base64, sorted by position. A model can have millions of edges, so a run keeps
only those that can appear among the first ``LIMIT`` of a selection: the union of the first LIMIT of ``top``,
``greedy`` and ``signed``. No circuit changes by that, because the best of all candidates is also the best of
those in the file.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, replace
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from gradpath._version import __version__
from gradpath.circuit import Circuit
from gradpath.errors import InputError, UsageError
from gradpath.explanation.examples import Inside
from gradpath.report.data import IN_PAGE, SAVED, MethodRun, Report
from gradpath.scores import Scores
from gradpath.selection import SELECTIONS
from gradpath.verdict.result import NAMES, QUESTIONS, Check, sentence

LIMIT = 30_000
_POINT = ("how", "asked", "kept", "faithfulness", "low", "high", "error")  # the page's names for a CurvePoint
_DIGITS = 4  # of the numbers of roles


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
