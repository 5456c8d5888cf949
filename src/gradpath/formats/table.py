"""Edges as a table: in pandas, or as CSV.

The columns are ``edge``, ``source``, ``target``, ``score`` and ``rank``. Of scores, there is a row for every
edge of the model; of a circuit, one for each of its edges, in order. ``rank`` is an edge's place in the
circuit, from 1, and empty outside of it. What else belongs to them (the model's shape, how they were made) is
in ``table.attrs`` in pandas, and in the first row of the column ``gradpath`` in CSV: so any program can read
the file, and nothing is lost.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from gradpath.circuit import Circuit, circuit_by_names
from gradpath.errors import InputError
from gradpath.formats.content import Content, check_named, graph_in, notes, optional, parsed
from gradpath.scores import Scores, checked_about

COLUMNS = ("edge", "source", "target", "score", "rank")
NOTES = "gradpath"


def to_pandas(what: Scores | Circuit | Content) -> Any:
    """Scores or a circuit as a ``pandas.DataFrame``."""
    pandas = optional("pandas", "a table of pandas")
    content = as_content(what)
    table = pandas.DataFrame(list(_rows(content)), columns=list(COLUMNS))
    table = table.astype({"score": "float64", "rank": "Int64"})
    table.attrs[NOTES] = notes(content)
    return table


def from_pandas(table: Any) -> Content:
    """What ``to_pandas`` made a table of."""
    column = table["rank"]
    ranks = [None if outside else int(rank) for rank, outside in zip(column, column.isna(), strict=True)]
    rows = zip(table["edge"], table["score"], ranks, strict=True)
    return _content(rows, table.attrs.get(NOTES, {}), "the table")


def csv_text(content: Content) -> str:
    """Scores, a circuit or both as the text of a CSV file."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*COLUMNS, NOTES])
    told = json.dumps(notes(content))
    for row in _rows(content):
        writer.writerow([*row, told])
        told = ""
    if told:  # no edge at all
        writer.writerow([""] * len(COLUMNS) + [told])
    return out.getvalue()


def read_csv(file: Path) -> Content:
    """What ``csv_text`` wrote."""
    try:
        with file.open(encoding="utf-8", newline="") as opened:
            lines = list(csv.DictReader(opened))
        told = parsed(lines[0][NOTES], str(file)) if lines else {}
        rows = [
            (line["edge"], float(line["score"]), int(line["rank"]) if line["rank"] else None)
            for line in lines
            if line["edge"]
        ]
    except (KeyError, TypeError, ValueError, csv.Error) as problem:
        raise InputError(
            f"{file} cannot be read as a table of edges ({type(problem).__name__}: {problem}). It needs the "
            f"columns {', '.join(COLUMNS)} and {NOTES}, as gradpath writes them."
        ) from None
    return _content(rows, told, str(file))


def as_content(what: Scores | Circuit | Content) -> Content:
    if isinstance(what, Content):
        return what
    return Content(scores=what) if isinstance(what, Scores) else Content(circuit=what)


def _rows(content: Content) -> Iterator[tuple[Any, ...]]:
    """All edges that have a score here, as rows of the table."""
    graph, circuit = content.graph, content.circuit
    places = {} if circuit is None else {pair: i for i, pair in enumerate(map(tuple, circuit.index.tolist()), 1)}
    if content.scores is None:
        assert circuit is not None
        scored = zip(circuit.index.tolist(), circuit.scores.tolist(), strict=True)
    else:
        edges = graph.mask.nonzero()
        values = content.scores.values.cpu()[edges[:, 0], edges[:, 1]]
        scored = zip(edges.tolist(), values.tolist(), strict=True)
    for (source, target), score in scored:
        ends = graph.sources[source], graph.targets[target]
        yield "->".join(ends), *ends, score, places.get((source, target))


def _content(rows: Iterable[tuple[str, float, int | None]], told: Mapping[str, Any], what: str) -> Content:
    graph, rows = graph_in(told.get("graph", {}), what), list(rows)
    scores = circuit = None
    if told.get("scores") is not None:
        check_named(graph, len(rows))
        whole = circuit_by_names(graph, [(edge, score) for edge, score, _ in rows], {})
        values = torch.zeros(graph.n_sources, graph.n_targets, dtype=torch.float32, device="cpu")
        values[whole.index[:, 0], whole.index[:, 1]] = whole.scores
        scores = Scores(graph, values, checked_about(told["scores"]))
    if told.get("circuit") is not None:
        kept = sorted((row for row in rows if row[2] is not None), key=lambda row: row[2] or 0)
        circuit = circuit_by_names(graph, [(edge, score) for edge, score, _ in kept], told["circuit"])
    return Content(scores, circuit)
