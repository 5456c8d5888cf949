"""How notebooks display scores, circuits and results: small HTML without scripts, readable in light and dark."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import Any

from gradpath.circuit import Circuit
from gradpath.evaluation.result import Result
from gradpath.formats.graphs import COLOURS
from gradpath.graph import kind
from gradpath.scores import Scores
from gradpath.selection.ranking import top

LISTED = 10


def result_card(result: Result) -> str:
    """The card of a result: a table of its numbers."""
    low, high = result.interval
    rows = [
        ("behaviour kept", f"<b>{result.faithfulness:.1%}</b> ({low:.1%} to {high:.1%})"),
        ("error per example", f"{result.error:.3f}"),
        ("metric", f"model {result.clean:.3f}, circuit {result.circuit:.3f}, corrupted {result.corrupted:.3f}"),
        ("edges", f"{result.edges_kept:,} of {result.edges_asked:,} asked for"),
        ("examples", f"{len(result.clean_values):,}"),
    ]
    return _card("Result", _table(rows))


def scores_card(scores: Scores) -> str:
    """The card of scores: how they were made, and the strongest edges."""
    order = top(scores, min(LISTED, scores.graph.n_edges))
    values = scores.values.flatten()[order].tolist()
    names = [scores.graph.edge(*divmod(flat, scores.graph.n_targets)) for flat in order.tolist()]
    title = f"Scores of {scores.graph.n_edges:,} edges"
    return _card(title, _origin(scores.about) + _edges(zip(names, values, strict=True)))


def circuit_card(circuit: Circuit) -> str:
    """The card of a circuit: how it was found, and its first edges."""
    pairs = zip(circuit.edges[:LISTED], circuit.scores[:LISTED].tolist(), strict=True)
    asked = f", {circuit.asked:,} asked for" if circuit.asked != len(circuit) else ""
    title = f"Circuit of {len(circuit):,} edges{asked}, of {circuit.graph.n_edges:,}"
    return _card(title, _origin(circuit.about) + _edges(pairs))


def _card(title: str, body: str) -> str:
    return f'<div style="font-family:sans-serif;line-height:1.5"><b>{html.escape(title)}</b>{body}</div>'


def _origin(about: Mapping[str, Any]) -> str:
    facts = [f"{name} {about[name]}" for name in ("model", "task", "method", "steps", "examples") if name in about]
    return f'<div style="opacity:.7">{html.escape(" · ".join(facts))}</div>' if facts else ""


def _table(rows: Iterable[tuple[str, str]]) -> str:
    left = 'style="text-align:left"'
    cells = (f"<tr><td {left}>{name}</td><td {left}>{value}</td></tr>" for name, value in rows)
    return f"<table>{''.join(cells)}</table>"


def _edges(pairs: Iterable[tuple[str, float]]) -> str:
    """The strongest edges with a bar each, in the colours of the report."""
    edges, rows = list(pairs), []
    largest = max((abs(score) for _, score in edges), default=0.0)
    for edge, score in edges:
        colour = COLOURS[kind(edge.partition("->")[2])]
        width = round(160 * abs(score) / largest) if largest else 0
        bar = f'<span style="display:inline-block;height:.6em;width:{width}px;background:{colour}"></span>'
        cells = f'<code>{html.escape(edge)}</code></td><td style="text-align:right">{score:+.4g}</td>'
        rows.append(f'<tr><td style="text-align:left">{cells}<td style="text-align:left">{bar}</td></tr>')
    return f"<table>{''.join(rows)}</table>"
