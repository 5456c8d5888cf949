"""Edges as a graph, in networkx, GraphML and DOT, or as a table of pandas.

A head can read the same node through q, k and v, so the networkx graph is a ``MultiDiGraph`` (a subclass of
``DiGraph``), and the key of an edge is the kind of its target: q, k, v, mlp or logits. Edges have ``name``,
``feeds``, ``score`` and ``rank``, nodes ``kind``, ``layer`` and a position; the graph has the model's shape and, as
JSON, the circuit's record. All values are plain, so networkx can write them in any format.

GraphML is that graph, for Gephi and yEd. DOT is for Graphviz and can only be written: a layer is a rank, and edges
with a negative score are dashed. Every edge has its name (``id``) and its ``score`` in full, in the circuit's order.

In these and in every drawing, ``input`` is at the bottom and ``logits`` at the top. A layer is a row: its heads from
left to right, then its MLP, a little higher because it reads them. Units are columns and rows, for any size.

The columns of a table are ``edge``, ``source``, ``target``, ``score`` and ``rank``. Scores have a row for every edge of
the model, a circuit one for each of its edges, in order. ``rank`` is an edge's rank in the circuit, from 1, and empty
outside it. The model's shape and how scores and circuit were made are in ``table.attrs``.
"""

from __future__ import annotations

import json
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

from gradpath.circuit import Circuit, circuit_by_names
from gradpath.errors import InputError
from gradpath.evaluation.result import Result
from gradpath.formats.content import Content, graph_in, optional, parsed
from gradpath.graph import Graph, kind, node_of
from gradpath.recipe import record
from gradpath.scores import Scores

# Edges by the kind of their target. The colours are those of Okabe and Ito, two of them darkened for thin
# lines; the page has the same ones.
KINDS = {"q": "query", "k": "key", "v": "value", "mlp": "MLP", "logits": "logits"}
EDGE_COLOURS = {"q": "#0072b2", "k": "#d98e00", "v": "#009e73", "mlp": "#b8578f", "logits": "#d55e00"}
COLUMNS = ("edge", "source", "target", "score", "rank")
NOTES = "gradpath"


def column(graph: Graph, node: str) -> float:
    """The column of a node's centre."""
    if node in ("input", "logits"):
        return (graph.n_heads - 1) / 2
    return graph.n_heads + 0.35 if node.startswith("m") else float(node.partition(".h")[2])


def position(graph: Graph, node: str) -> tuple[float, float]:
    """The centre of a node, as column and row."""
    return column(graph, node), graph.layer_of(node) + (0.16 if node.startswith("m") else 0.0)


def to_networkx(circuit: Circuit) -> Any:
    """The circuit as a ``networkx.MultiDiGraph``."""
    networkx = optional("networkx", "a graph of networkx")
    graph = networkx.MultiDiGraph(**circuit.graph.to_json(), record=json.dumps(circuit.record))
    for name in circuit.nodes:
        x, y = position(circuit.graph, name)
        node_kind = name if name in ("input", "logits") else "mlp" if name.startswith("m") else "head"
        graph.add_node(name, kind=node_kind, layer=circuit.graph.layer_of(name), x=x, y=y)
    for rank, (source, target, score) in enumerate(circuit.named_edges(), 1):
        feeds = kind(target)
        name = f"{source}->{target}"
        graph.add_edge(source, node_of(target), key=feeds, name=name, feeds=feeds, score=score, rank=rank)
    return graph


def from_networkx(graph: Any, what: str = "the graph") -> Circuit:
    """The circuit of a graph that ``to_networkx`` made; ``what`` names the graph in errors."""
    try:
        edges = sorted((data for _, _, data in graph.edges(data=True)), key=lambda data: data["rank"])
        named = [(data["name"], data["score"]) for data in edges]
    except (KeyError, TypeError):
        raise InputError(f"{what} is not a circuit of gradpath: each edge needs a name, a score and a rank.") from None
    circuit = circuit_by_names(graph_in(graph.graph, what), named)
    return circuit.with_record(parsed(graph.graph.get("record"), what))


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
    return from_networkx(graph, str(file))


def to_pandas(content: Scores | Circuit | Content) -> Any:
    """Scores, a circuit or both as a ``pandas.DataFrame``."""
    pandas = optional("pandas", "a table of pandas")
    content = Content.of(content)
    table = pandas.DataFrame(list(_rows(content)), columns=list(COLUMNS))
    table = table.astype({"score": "float64", "rank": "Int64"})
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
