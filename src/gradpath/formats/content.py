"""What a file can hold: the scores of all edges, a circuit, or both."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict, dataclass
from typing import Any

import torch

from gradpath.circuit import Circuit
from gradpath.errors import InputError
from gradpath.graph import Graph, graph_from_json
from gradpath.scores import Scores


@dataclass(frozen=True)
class Content:
    """Scores, a circuit, or both, of one model."""

    scores: Scores | None = None
    circuit: Circuit | None = None

    def __post_init__(self) -> None:
        graphs = {part.graph for part in (self.scores, self.circuit) if part is not None}
        if len(graphs) != 1:
            raise InputError(
                "a file holds scores or a circuit, or both of the same model: "
                + (f"got those of {' and '.join(map(str, graphs))}." if graphs else "got neither.")
            )
        if self.scores is not None and self.circuit is not None:
            source, target = self.circuit.index.T
            if not torch.equal(self.scores.values.cpu()[source, target], self.circuit.scores.cpu()):
                raise InputError("the circuit was not chosen from these scores: its edges have others.")

    @property
    def graph(self) -> Graph:
        part = self.scores if self.scores is not None else self.circuit
        assert part is not None
        return part.graph

    def need_scores(self) -> Scores:
        if self.scores is None:
            raise InputError(
                "this is a circuit, which has scores of its own edges alone: scores of all edges cannot be "
                "made from it. Give the scores.safetensors of its find."
            )
        return self.scores

    def need_circuit(self) -> Circuit:
        if self.circuit is None:
            raise InputError(
                "these are scores of all edges and no circuit: choose edges from them with --edges N, or in "
                "Python with gradpath.select."
            )
        return self.circuit


def notes(content: Content) -> dict[str, Any]:
    """What makes the numbers ours again: the graph, and where scores and circuit come from."""
    scores, circuit = content.scores, content.circuit
    return {
        "graph": asdict(content.graph),
        "scores": None if scores is None else dict(scores.about),
        "circuit": None if circuit is None else dict(circuit.about),
    }


def graph_in(facts: Any, what: str) -> Graph:
    """The graph that a file's notes name; the edges' names do not say which model they are of."""
    try:
        return graph_from_json(facts)
    except InputError as problem:
        raise InputError(
            f"{what} does not say of which model it is: {problem} It needs n_layers, n_heads and parallel, "
            "as gradpath writes them."
        ) from None


def check_named(graph: Graph, n_edges: int) -> None:
    """Scores of all edges take room for all: a file has to name at least some of them to be worth it."""
    if n_edges * 100 < graph.n_edges:
        raise InputError(
            f"it has scores of {n_edges:,} edges, and the model that it names has {graph.n_edges:,}. It is "
            "cut off, or of another model."
        )


def parsed(text: Any, what: str) -> dict[str, Any]:
    """A JSON object that stands inside another file."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InputError(f"{what} has no notes of gradpath that can be read. Make it again with gradpath.")
    return found


def optional(package: str, purpose: str) -> Any:
    """A package that only some formats need."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError:
        raise InputError(
            f"{purpose} needs the package {package}, which is not installed: pip install {package}."
        ) from None
