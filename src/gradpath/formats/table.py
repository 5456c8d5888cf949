"""Edges as a table, in pandas or as CSV.

The columns are ``edge``, ``source``, ``target``, ``score`` and ``rank``. Scores have a row for every edge of the
model, a circuit one for each of its edges, in order. ``rank`` is an edge's rank in the circuit, from 1, and empty
outside it. The model's shape and how scores and circuit were made are in ``table.attrs`` in pandas, and in the
first row of the column ``gradpath`` in CSV, so any program can read the file and nothing is lost.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gradpath.circuit import Circuit, circuit_by_names
from gradpath.errors import InputError
from gradpath.evaluation.result import Result
from gradpath.formats.content import Content, check_named, graph_in, optional, parsed
from gradpath.scores import Scores, checked_about

COLUMNS = ("edge", "source", "target", "score", "rank")
NOTES = "gradpath"


def to_pandas(content: Scores | Circuit | Content) -> Any:
    """Scores, a circuit or both as a ``pandas.DataFrame``."""
    pandas = optional("pandas", "a table of pandas")
    content = Content.of(content)
    table = pandas.DataFrame(list(_rows(content)), columns=list(COLUMNS))
    table = table.astype({"score": "float64", "rank": "Int64"})
    table.attrs[NOTES] = _notes(content)
    return table


def result_table(result: Result) -> Any:
    """The examples of a result as a ``pandas.DataFrame``, one row each."""
    pandas = optional("pandas", "a table of pandas")
    runs = {"clean": result.clean_values, "corrupted": result.corrupted_values, "circuit": result.circuit_values}
    table = pandas.DataFrame({name: values.double().numpy() for name, values in runs.items()})
    table["error"] = (table["circuit"] - table["clean"]).abs() / (table["clean"] - table["corrupted"]).abs().mean()
    for name, prompts in (("corrupted_prompt", result.corrupted_prompts), ("clean_prompt", result.clean_prompts)):
        table.insert(0, name, list(prompts) if prompts else None)
    table.index.name = "example"
    table.attrs[NOTES] = dict(result.about)
    return table


def from_pandas(table: Any) -> Content:
    """The content of a table that ``to_pandas`` made."""
    column = table["rank"]
    ranks = [None if is_empty else int(rank) for rank, is_empty in zip(column, column.isna(), strict=True)]
    return _content(
        list(zip(table["edge"], table["score"], ranks, strict=True)), table.attrs.get(NOTES, {}), "the table"
    )


def csv_text(content: Content) -> str:
    """Scores, a circuit or both as the text of a CSV file."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*COLUMNS, NOTES])
    rows = list(_rows(content)) or [("",) * len(COLUMNS)]
    writer.writerow([*rows[0], json.dumps(_notes(content))])
    writer.writerows([*row, ""] for row in rows[1:])
    return out.getvalue()


def read_csv(file: Path) -> Content:
    """The content of a file that ``csv_text`` made."""
    try:
        with file.open(encoding="utf-8", newline="") as opened:
            lines = list(csv.DictReader(opened))
        notes = parsed(lines[0][NOTES], str(file)) if lines else {}
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
    return _content(rows, notes, str(file))


def _notes(content: Content) -> dict[str, Any]:
    return {"graph": content.graph.to_json(), **content.about}


def _rows(content: Content) -> Iterator[tuple[Any, ...]]:
    """All edges that have a score here, as rows of the table."""
    graph, circuit = content.graph, content.circuit
    ranks = {} if circuit is None else {pair: i for i, pair in enumerate(map(tuple, circuit.index.tolist()), 1)}
    if content.scores is None:
        assert circuit is not None
        index, scores = circuit.index, circuit.scores
    else:
        index = graph.mask.nonzero()
        scores = content.scores.values.cpu()[*index.T]
    for (source, target), score in zip(index.tolist(), scores.tolist(), strict=True):
        ends = graph.sources[source], graph.targets[target]
        yield "->".join(ends), *ends, score, ranks.get((source, target))


def _content(rows: Sequence[tuple[str, float, int | None]], notes: Mapping[str, Any], what: str) -> Content:
    graph = graph_in(notes.get("graph", {}), what)
    if notes.get("scores") is not None:
        check_named(graph, len(rows))
    listed = circuit_by_names(graph, [row[:2] for row in rows], {})
    scores = circuit = None
    if notes.get("scores") is not None:
        values = torch.zeros(graph.n_sources, graph.n_targets, dtype=torch.float32, device="cpu")
        values[*listed.index.T] = listed.scores
        scores = Scores(graph, values, checked_about(notes["scores"]))
    if notes.get("circuit") is not None:
        ranks = {i: rank for i, (_, _, rank) in enumerate(rows) if rank is not None}
        order = sorted(ranks, key=ranks.__getitem__)
        about = checked_about(notes["circuit"])
        circuit = replace(listed, index=listed.index[order], scores=listed.scores[order], about=about)
    return Content(scores, circuit)
