"""A circuit as a directed graph of networkx, and back.

A head can read the same node through q, k and v, so the graph is a ``MultiDiGraph`` (which is a ``DiGraph``);
an edge's key is what it feeds: q, k, v, mlp or logits. The edges carry ``name``, ``feeds``, ``score`` and
``rank``; the nodes ``kind``, ``layer`` and a position to draw them at; the graph its shape and, as JSON, what
the circuit's ``about`` says. All values are plain, so networkx can write them in any of its own formats.

A circuit in DOT, Graphviz's language: a layer is a rank, a negative score is dashed.

Written only: a DOT file is what a picture is made from. The ``id`` and the ``score`` of every edge, in the
order of the circuit, give it in full to whoever parses it.

A circuit in GraphML, for Gephi, yEd and everything else that reads it. networkx does the work.
"""

from __future__ import annotations

import json
import warnings
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

from gradpath.circuit import Circuit, circuit_by_names
from gradpath.errors import InputError
from gradpath.formats.content import graph_in, optional, parsed
from gradpath.formats.layout import COLOURS, position
from gradpath.graph import kind, node_of


def to_networkx(circuit: Circuit) -> Any:
    """The circuit as a ``networkx.MultiDiGraph``."""
    networkx = optional("networkx", "a graph of networkx")
    graph = networkx.MultiDiGraph(**asdict(circuit.graph), about=json.dumps(dict(circuit.about)))
    for name in circuit.nodes:
        x, y = position(circuit.graph, name)
        what = name if name in ("input", "logits") else "mlp" if name.startswith("m") else "head"
        graph.add_node(name, kind=what, layer=circuit.graph.layer_of(name), x=x, y=y)
    for rank, (source, target, score) in enumerate(circuit.named_edges(), 1):
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
        raise InputError(f"{what} is no circuit of gradpath: every edge needs a name, a score and a rank.") from None
    return circuit_by_names(graph_in(graph.graph, what), named, parsed(graph.graph.get("about"), what))


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
            f'  "{source}" -> "{node_of(target)}" [color="{COLOURS[kind(target)]}", penwidth={width:.2f}, '
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
    """The circuit in a GraphML file of ours, whichever program has saved it since."""
    networkx = optional("networkx", "GraphML")
    try:
        with warnings.catch_warnings():  # of what it makes of a damaged file; all of it is checked below
            warnings.simplefilter("ignore")
            graph = networkx.read_graphml(file)
    except (ParseError, networkx.NetworkXError, KeyError, ValueError) as problem:
        raise InputError(f"{file} cannot be read as GraphML: {problem}. Make it again.") from None
    return from_networkx(graph, str(file))
