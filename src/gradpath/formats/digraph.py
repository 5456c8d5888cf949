"""A circuit as a directed graph of networkx, and back.

A head can read the same node through q, k and v, so the graph is a ``MultiDiGraph`` (which is a ``DiGraph``);
an edge's key is what it feeds: q, k, v, mlp or logits. The edges carry ``name``, ``feeds``, ``score`` and
``rank``; the nodes ``kind``, ``layer`` and a position to draw them at; the graph its shape and, as JSON, what
the circuit's ``about`` says. All values are plain, so networkx can write them in any of its own formats.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from gradpath.circuit import Circuit, circuit_by_names
from gradpath.errors import InputError
from gradpath.formats.content import graph_in, optional, parsed
from gradpath.layout import kind, layer, named_edges, node_of, nodes_of, position


def to_networkx(circuit: Circuit) -> Any:
    """The circuit as a ``networkx.MultiDiGraph``."""
    networkx = optional("networkx", "a graph of networkx")
    graph = networkx.MultiDiGraph(**asdict(circuit.graph), about=json.dumps(dict(circuit.about)))
    for name in nodes_of(circuit):
        x, y = position(circuit.graph, name)
        what = name if name in ("input", "logits") else "mlp" if name.startswith("m") else "head"
        graph.add_node(name, kind=what, layer=layer(circuit.graph, name), x=x, y=y)
    for rank, (source, target, score) in enumerate(named_edges(circuit), 1):
        feeds = kind(target)
        facts = {"name": f"{source}->{target}", "feeds": feeds, "score": score, "rank": rank}
        graph.add_edge(source, node_of(target), key=feeds, **facts)
    return graph


def from_networkx(graph: Any, what: str = "the graph") -> Circuit:
    """The circuit that ``to_networkx`` made a graph of."""
    edges = [facts for _, _, facts in graph.edges(data=True)]
    try:
        edges.sort(key=lambda facts: facts["rank"])
        named = [(facts["name"], facts["score"]) for facts in edges]
    except (KeyError, TypeError):
        raise InputError(
            f"{what} is no circuit of gradpath: every edge needs a name, a score and a rank."
        ) from None
    return circuit_by_names(graph_in(graph.graph, what), named, parsed(graph.graph.get("about"), what))
