"""``Content``, what a file can contain; and edges as a graph, in networkx, GraphML and DOT, or as a table of pandas.

A head can read the same node through q, k and v, so the networkx graph is a ``MultiDiGraph``, and the key of an edge is
the kind of its target: q, k, v, mlp or logits. Edges have ``name``, ``feeds``, ``score`` and ``rank``, those of a
consensus ``frequency``, and nodes ``kind``, ``layer``, a position and their notes; the graph has the model's shape and,
as JSON, the circuit's record. All values are plain, so networkx can write them in any format, such as GraphML.

DOT is for Graphviz and can only be written. Edges with a negative score are dashed, and have their name (``id``) and
their ``score`` in full.

A table has a row for every edge of the model, or for each edge of a circuit, in order. ``rank`` is an edge's rank in
the circuit, from 1, and empty outside it. The model's shape and how all was made are in ``table.attrs``.
"""

from __future__ import annotations

import importlib
import json
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

import torch

from gradpath.circuit import NOTE_PARTS, Circuit, circuit_by_names
from gradpath.errors import InputError
from gradpath.evaluation.result import Result
from gradpath.graph import Graph, graph_from_json, kind, node_of
from gradpath.recipe import record
from gradpath.scores import Scores

# Edges by the kind of their target. The colours are those of Okabe and Ito, two of them darkened for thin
# lines; the page has the same ones.
KINDS = {"q": "query", "k": "key", "v": "value", "mlp": "MLP", "logits": "logits"}
EDGE_COLOURS = {"q": "#0072b2", "k": "#d98e00", "v": "#009e73", "mlp": "#b8578f", "logits": "#d55e00"}
COLUMNS = ("edge", "source", "target", "score", "rank")
FREQUENCY = "frequency"
NOTES = "gradpath"


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


def optional(package: str, purpose: str) -> Any:
    """Import a package that only some formats need."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError:
        raise InputError(
            f"{purpose} needs the package {package}, which is not installed: pip install {package}."
        ) from None


def column(graph: Graph, node: str) -> float:
    """The column of a node's centre."""
    if node in ("input", "logits"):
        return (graph.n_heads - 1) / 2
    return graph.n_heads + 0.35 if node.startswith("m") else float(node.partition(".h")[2])


def to_networkx(circuit: Circuit) -> Any:
    """The circuit as a ``networkx.MultiDiGraph``."""
    networkx = optional("networkx", "a graph of networkx")
    graph = networkx.MultiDiGraph(**circuit.graph.to_json(), record=json.dumps(circuit.record))
    for name in circuit.nodes:
        x, layer = column(circuit.graph, name), circuit.graph.layer_of(name)
        is_mlp = name.startswith("m")
        node_kind = name if name in ("input", "logits") else "mlp" if is_mlp else "head"
        own = circuit.notes.get(name, {})
        graph.add_node(name, kind=node_kind, layer=layer, x=x, y=layer + (0.16 if is_mlp else 0.0), **own)
    for rank, ((source, target, score), frequency) in enumerate(
        zip(circuit.named_edges(), _frequencies(circuit), strict=True), 1
    ):
        feeds = kind(target)
        values = {"name": f"{source}->{target}", "feeds": feeds, "score": score, "rank": rank}
        known = {} if frequency is None else {FREQUENCY: frequency}
        graph.add_edge(source, node_of(target), key=feeds, **values, **known)
    return graph


def _frequencies(circuit: Circuit) -> list[float] | list[None]:
    """The frequency of each edge; None for each if the circuit is not a consensus."""
    return [None] * len(circuit) if circuit.frequency is None else circuit.frequency.tolist()


def from_networkx(graph: Any) -> Circuit:
    """The circuit of a graph that ``to_networkx`` made."""
    try:
        edges = sorted((data for _, _, data in graph.edges(data=True)), key=lambda data: data["rank"])
        columns = ("name", "score", FREQUENCY) if any(FREQUENCY in data for data in edges) else ("name", "score")
        named, found = [tuple(data[column] for column in columns) for data in edges], json.loads(graph.graph["record"])
        notes = {node: {x: data[x] for x in NOTE_PARTS if x in data} for node, data in graph.nodes(data=True)}
    except (KeyError, TypeError, ValueError):
        raise InputError(
            "this graph is not a circuit of gradpath: each edge needs a name, a score and a rank, and the graph its "
            "record. Make it again."
        ) from None
    circuit = circuit_by_names(graph_from_json(graph.graph), named)
    return circuit.with_record({**found, "notes": notes})


def dot(circuit: Circuit) -> str:
    """The circuit as the text of a DOT file."""
    lines = [
        "digraph circuit {",
        '  rankdir=BT; bgcolor="transparent"; ranksep=0.6; nodesep=0.15;',
        '  node [shape=box, style="rounded,filled", fillcolor="#f6f5f2", color="#656d79", '
        'fontname="Helvetica", fontsize=11, height=0.3, margin="0.08,0.03"];',
        "  edge [arrowsize=0.5];",
    ]
    rows = defaultdict[int, list[str]](list)
    for name in circuit.nodes:
        rows[circuit.graph.layer_of(name)].append(name)
    for row in rows.values():
        lines.append("  { rank=same; " + " ".join(f'"{name}";' for name in row) + " }")
    largest = float(circuit.scores.abs().max()) if len(circuit) else 0.0
    for source, target, score in circuit.named_edges():
        width = 0.4 + 4 * (abs(score) / largest if largest else 1)
        style = ', style="dashed"' if score < 0 else ""
        lines.append(
            f'  "{source}" -> "{node_of(target)}" [color="{EDGE_COLOURS[kind(target)]}", penwidth={width:.2f}, '
            f'weight=1, tooltip="{source}->{target} {score:+.4g}", id="{source}->{target}", '
            f'score="{score!r}"{style}];'
        )
    return "\n".join([*lines, "}", ""])


def graphml(circuit: Circuit) -> str:
    """The circuit as the text of a GraphML file."""
    networkx = optional("networkx", "GraphML")
    lines = networkx.generate_graphml(to_networkx(circuit), named_key_ids=True, edge_id_from_attribute="name")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + "\n".join(lines) + "\n"


def read_graphml(file: Path) -> Circuit:
    """The circuit in a GraphML file that gradpath wrote, also if another program saved it since."""
    networkx = optional("networkx", "GraphML")
    try:
        with warnings.catch_warnings():  # about damaged files; everything is checked below
            warnings.simplefilter("ignore")
            graph = networkx.read_graphml(file)
    except (ParseError, networkx.NetworkXError, KeyError, ValueError) as problem:
        raise InputError(f"{file} cannot be read as GraphML: {problem}. Make it again.") from None
    return from_networkx(graph)


def to_pandas(content: Scores | Circuit | Content) -> Any:
    """Scores, a circuit or both as a ``pandas.DataFrame``."""
    pandas = optional("pandas", "a table of pandas")
    content = Content.of(content)
    table = pandas.DataFrame(list(_rows(content)), columns=[*COLUMNS, FREQUENCY])
    table = table.astype({"score": "float64", "rank": "Int64", FREQUENCY: "float64"})
    if content.circuit is None or content.circuit.frequency is None:
        table = table.drop(columns=FREQUENCY)
    table.attrs[NOTES] = {"graph": content.graph.to_json(), **content.records}
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
    table.attrs[NOTES] = record(result.recipe, result.facts)
    return table


def _rows(content: Content) -> Iterator[tuple[Any, ...]]:
    """All edges that have a score here, as rows of the table."""
    graph, circuit = content.graph, content.circuit
    of_circuit = dict[tuple[int, int], tuple[int, float | None]]()  # rank and frequency
    if circuit is not None:
        of_circuit = dict(zip(map(tuple, circuit.index.tolist()), enumerate(_frequencies(circuit), 1), strict=True))
    if content.scores is None:
        assert circuit is not None
        index, scores = circuit.index, circuit.scores
    else:
        index = graph.mask.nonzero()
        scores = content.scores.values.cpu()[*index.T]
    for (source, target), score in zip(index.tolist(), scores.tolist(), strict=True):
        ends = graph.sources[source], graph.targets[target]
        yield "->".join(ends), *ends, score, *of_circuit.get((source, target), (None, None))
