"""``Content``: what a file can contain. Also functions that the formats share, for notes and checks."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from typing import Any

import torch

from gradpath.circuit import Circuit
from gradpath.errors import InputError
from gradpath.graph import Graph, graph_from_json
from gradpath.recipe import record
from gradpath.scores import Scores


@dataclass(frozen=True)
class Content:
    """The scores of all edges, a circuit, or both, of one model."""

    scores: Scores | None = None
    circuit: Circuit | None = None

    def __post_init__(self) -> None:
        graphs = {part.graph for part in (self.scores, self.circuit) if part is not None}
        if len(graphs) != 1:
            raise InputError(
                "a file holds scores or a circuit, or both of the same model: "
                + (f"got those of {' and '.join(map(str, graphs))}." if graphs else "got neither.")
            )
        if self.scores is None or self.circuit is None:
            return
        values = self.scores.values.cpu()[*self.circuit.index.T]
        if not torch.equal(values, self.circuit.scores.cpu()):
            raise InputError(
                "the circuit was not selected from these scores: its edges have other scores. Give files of one find."
            )

    @classmethod
    def of(cls, content: Content | Scores | Circuit) -> Content:
        """Scores or a circuit alone, as content."""
        if isinstance(content, Content):
            return content
        return cls(scores=content) if isinstance(content, Scores) else cls(circuit=content)

    @property
    def graph(self) -> Graph:
        part = self.scores if self.scores is not None else self.circuit
        assert part is not None
        return part.graph

    @property
    def records(self) -> dict[str, Any]:
        """How scores and circuit were made, for the notes of a file."""
        scores, circuit = self.scores, self.circuit
        return {
            "scores": None if scores is None else record(scores.recipe, scores.facts),
            "circuit": None if circuit is None else circuit.record,
        }

    def need_scores(self) -> Scores:
        """The scores, or an error if there are none."""
        if self.scores is None:
            raise InputError(
                "this is a circuit, which has scores only for its own edges: scores of all edges cannot be made "
                "from it. Give the scores.safetensors of its find."
            )
        return self.scores

    def need_circuit(self) -> Circuit:
        """The circuit, or an error if there is none."""
        if self.circuit is None:
            raise InputError(
                "these are scores of all edges, without a circuit. Select edges from them with --edges N, or in "
                "Python with gradpath.select."
            )
        return self.circuit


def graph_in(shape: Any, what: str) -> Graph:
    """The graph that a file's notes describe; ``what`` names the file in errors."""
    try:
        return graph_from_json(shape)
    except InputError as problem:
        raise InputError(
            f"{what} does not describe its model: {problem} It needs n_layers, n_heads and parallel, as gradpath "
            "writes them."
        ) from None


def check_named(graph: Graph, n_edges: int) -> None:
    """Refuse a file with scores of less than 1% of its model's edges, before memory for all edges is allocated."""
    if n_edges * 100 < graph.n_edges:
        raise InputError(
            f"it has scores of {n_edges:,} edges, but its model has {graph.n_edges:,}. It is cut off, or of "
            "another model."
        )


def parsed(text: Any, what: str) -> dict[str, Any]:
    """The notes of gradpath inside a file, a JSON object."""
    try:
        notes = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        notes = None
    if not isinstance(notes, dict):
        raise InputError(f"{what} has no gradpath metadata that can be read. Write it again with gradpath.")
    return notes


def optional(package: str, purpose: str) -> Any:
    """Import a package that only some formats need."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError:
        raise InputError(
            f"{purpose} needs the package {package}, which is not installed: pip install {package}."
        ) from None
