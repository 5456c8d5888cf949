"""A circuit: some of a model's edges, and how they were found. Saved as readable JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gradpath.errors import InputError, reason
from gradpath.graph import Graph, graph_from_json, node_of
from gradpath.runtime.files import write_atomically
from gradpath.scores import Provenance, checked_about

FORMAT = 1
_LARGEST_SCORE = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Circuit:
    """Edges in the order in which they were selected, with their scores.

    Args:
        graph: The model's graph.
        index: The (source, target) of each edge.
        scores: The score of each edge.
        about: How the scores were made and how the edges were selected: enough to find the circuit again.
        spans: The names of the spans of a prompt, for a circuit that has an edge at some of them only.
        span: For such a circuit the span of each edge; an edge may then occur several times.
    """

    graph: Graph
    index: Int[Tensor, "edge 2"]
    scores: Float[Tensor, " edge"]
    about: Mapping[str, Any] = field(default_factory=dict)
    spans: tuple[str, ...] = ()
    span: Int[Tensor, " edge"] | None = None

    def __len__(self) -> int:
        return len(self.index)

    @property
    def edges(self) -> list[str]:
        """The names of the edges, first selected first, with their span if they have one: ``input->m0@subject``."""
        names = [self.graph.edge(source, target) for source, target in self.index.tolist()]
        if self.span is None:
            return names
        return [f"{name}@{self.spans[i]}" for name, i in zip(names, self.span.tolist(), strict=True)]

    @property
    def masks(self) -> Bool[Tensor, "span source target"]:
        """Which edges are in at each span; without spans there is one mask for all positions."""
        if self.span is None:
            return self.mask[None]
        shape = (len(self.spans), self.graph.n_sources, self.graph.n_targets)
        masks = torch.zeros(shape, dtype=torch.bool, device="cpu")
        masks[self.span, self.index[:, 0], self.index[:, 1]] = True
        return masks

    @property
    def mask(self) -> Bool[Tensor, "source target"]:
        """Which edges are in, at any position."""
        mask = torch.zeros(self.graph.n_sources, self.graph.n_targets, dtype=torch.bool, device="cpu")
        mask[self.index[:, 0], self.index[:, 1]] = True
        return mask

    def anywhere(self) -> Circuit:
        """The same edges at any position, each once, with the sum of its scores."""
        if self.span is None:
            return self
        totals = dict[tuple[int, int], float]()
        for (source, target), score in zip(self.index.tolist(), self.scores.tolist(), strict=True):
            totals[source, target] = totals.get((source, target), 0.0) + score
        index = torch.tensor(list(totals), dtype=torch.long, device="cpu").view(-1, 2)
        scores = torch.tensor(list(totals.values()), dtype=torch.float32, device="cpu")
        return Circuit(self.graph, index, scores, self.about)

    @property
    def asked(self) -> int:
        """How many edges were requested, before pruning."""
        return int(self.provenance.selection.get("edges_asked", len(self)))

    @property
    def provenance(self) -> Provenance:
        """How the circuit was found, with types."""
        return Provenance(self.about)

    def named_edges(self) -> Iterator[tuple[str, str, float]]:
        """Each edge as the names of its source and target, and its score."""
        for (source, target), score in zip(self.index.tolist(), self.scores.tolist(), strict=True):
            yield self.graph.sources[source], self.graph.targets[target], score

    @property
    def nodes(self) -> list[str]:
        """The nodes that have an edge in the circuit, from ``input`` to ``logits``."""
        names = {end for source, target, _ in self.named_edges() for end in (source, node_of(target))}
        return [name for name in (*self.graph.sources, "logits") if name in names]

    def plot(self, ax: Any = None) -> Any:
        """Draw the circuit.

        Args:
            ax: The matplotlib axes to draw on; new ones by default.

        Returns:
            The matplotlib axes.
        """
        from gradpath.report.plots import plot_circuit

        return plot_circuit(self, ax)

    def to_networkx(self) -> Any:
        """The circuit as a networkx ``MultiDiGraph`` of nodes."""
        from gradpath.formats.graphs import to_networkx

        return to_networkx(self)

    def to_pandas(self) -> Any:
        """The edges as a pandas DataFrame with the columns edge, source, target, score and rank."""
        from gradpath.formats.table import to_pandas

        return to_pandas(self)

    def _repr_html_(self) -> str:
        from gradpath.report.cards import circuit_card

        return circuit_card(self)

    def save(self, file: str | Path) -> None:
        """Write JSON with one edge per line, atomically.

        Args:
            file: The file to write.
        """
        graph = self.graph
        head = {
            "gradpath_circuit": FORMAT,
            "graph": {"n_layers": graph.n_layers, "n_heads": graph.n_heads, "parallel": graph.parallel},
            "about": dict(self.about),
        }
        if self.spans:
            head["spans"] = list(self.spans)
        # Nine digits are enough to give every float32 back exactly.
        scores = [float(f"{score:.9g}") for score in self.scores.tolist()]
        lines = [json.dumps([edge, score]) for edge, score in zip(self.edges, scores, strict=True)]
        text = json.dumps(head, indent=1).removesuffix("\n}")
        body = ",\n  ".join(lines)
        write_atomically(Path(file), f'{text},\n "edges": [\n  {body}\n ]\n}}\n')


def load_circuit(file: str | Path) -> Circuit:
    """Read the circuit that ``Circuit.save`` wrote; every edge is checked.

    Args:
        file: A ``circuit.json``.

    Returns:
        The circuit.
    """
    try:
        return _parsed(json.loads(Path(file).read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise InputError(f"there is no file {file}. Give the circuit.json of a find.") from None
    except InputError as problem:
        raise InputError(f"{file} cannot be used as a circuit: {problem}") from None
    except (OSError, ValueError, RecursionError) as problem:
        raise InputError(
            f"{file} cannot be read as a gradpath circuit ({reason(problem)}). "
            "It may be cut off or edited by hand: make it again with gradpath find."
        ) from None


def _parsed(content: Any) -> Circuit:
    if not isinstance(content, dict) or content.get("gradpath_circuit") != FORMAT:
        raise InputError(f'it has no "gradpath_circuit": {FORMAT}. Give the circuit.json of a find.')
    missing = [name for name in ("graph", "edges", "about") if name not in content]
    if missing:
        raise InputError(f"it has no {', '.join(missing)}. Make it again with gradpath find.")
    spans = content.get("spans", [])
    if not isinstance(spans, list) or len(set(map(str, spans))) != len(spans):
        raise InputError(f"its spans have to be a list of different names: got {spans!r}.")
    graph, names = graph_from_json(content["graph"]), tuple(map(str, spans))
    return circuit_by_names(graph, content["edges"], content["about"], names)


def circuit_by_names(graph: Graph, edges: Any, about: Any, spans: tuple[str, ...] = ()) -> Circuit:
    """The circuit of a list of (edge name, score), in this order; every one is checked."""
    index, scores, seen = [], [], set()
    if not isinstance(edges, (list, tuple)):
        raise InputError(f"its edges must be a list: got {edges!r}.")
    for edge in edges:
        if not isinstance(edge, (list, tuple)) or len(edge) != 2:
            raise InputError(f"an edge is a name and a score: got {edge!r}.")
        name, score = edge
        place = _place(graph, name, spans)
        if place in seen:
            raise InputError(f"the edge {name!r} occurs twice. Remove one of them.")
        seen.add(place)
        index.append(place)
        scores.append(_finite(name, score))
    places = torch.tensor(index, dtype=torch.long, device="cpu").view(-1, 3)
    values = torch.tensor(scores, dtype=torch.float32, device="cpu")
    return Circuit(graph, places[:, :2], values, checked_about(about), spans, places[:, 2] if spans else None)


def _place(graph: Graph, name: Any, spans: tuple[str, ...]) -> tuple[int, int, int]:
    """The source, the target and the span of an edge's name; the span is 0 where there are none."""
    if not spans:
        return (*graph.index(name), 0)
    edge, at, span = str(name).rpartition("@")
    if not at or span not in spans:
        raise InputError(f"{name!r} names no span: write it as source->target@span, one of {', '.join(spans)}.")
    return (*graph.index(edge), spans.index(span))


def _finite(name: str, score: Any) -> float:
    """The score, if it is finite in float32."""
    if not isinstance(score, (int, float)) or not abs(score) <= _LARGEST_SCORE:
        raise InputError(f"the score of {name!r} is {score!r}: it must be a finite number.")
    return float(score)
