"""The page that shows two circuits in one drawing: only in A, in both, only in B.

It is the page of a report (``page``) with four runs, one for all edges and one for each of these parts, and the
scores and ranks of both circuits as further columns. Scores of different methods have different scales, so a
line is drawn by an edge's share of its circuit's strongest edge; where both have the edge, by the mean.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradpath.circuit import Circuit
from gradpath.circuit.comparison import Comparison
from gradpath.errors import InputError
from gradpath.report.data import SAVED, Chosen, MethodRun, Report
from gradpath.report.page import filled
from gradpath.report.payload import flat_index, packed, payload, plain
from gradpath.runtime.files import write_atomically


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
