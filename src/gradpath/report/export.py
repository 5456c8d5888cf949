"""A circuit as a graph file for other programs: DOT for Graphviz, GraphML for Gephi, yEd and networkx."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from xml.etree import ElementTree

from gradpath.circuit import Circuit
from gradpath.report.layout import COLOURS, kind, layer, node_of, position


def nodes_of(circuit: Circuit) -> list[str]:
    """The nodes that have an edge in the circuit, from ``input`` to ``logits``."""
    names = {end for source, target, _ in named_edges(circuit) for end in (source, node_of(target))}
    return [name for name in (*circuit.graph.sources, "logits") if name in names]


def named_edges(circuit: Circuit) -> Iterator[tuple[str, str, float]]:
    """Each edge as the names of its source and target and its score."""
    for edge, score in zip(circuit.edges, circuit.scores.tolist(), strict=True):
        source, _, target = edge.partition("->")
        yield source, target, score


def dot(circuit: Circuit) -> str:
    """Graphviz's language: a layer is a rank, a negative score is dashed."""
    lines = [
        "digraph circuit {",
        '  rankdir=BT; bgcolor="transparent"; ranksep=0.6; nodesep=0.15;',
        '  node [shape=box, style="rounded,filled", fillcolor="#f6f5f2", color="#656d79", '
        'fontname="Helvetica", fontsize=11, height=0.3, margin="0.08,0.03"];',
        "  edge [arrowsize=0.5];",
    ]
    rows = defaultdict[int, list[str]](list)
    for name in nodes_of(circuit):
        rows[layer(circuit.graph, name)].append(name)
    for row in rows.values():
        lines.append("  { rank=same; " + " ".join(f'"{name}";' for name in row) + " }")
    largest = float(circuit.scores.abs().max()) if len(circuit) else 0.0
    for source, target, score in named_edges(circuit):
        width = 0.4 + 4 * (abs(score) / largest if largest else 1)
        style = ', style="dashed"' if score < 0 else ""
        lines.append(
            f'  "{source}" -> "{node_of(target)}" [color="{COLOURS[kind(target)]}", penwidth={width:.2f}, '
            f'weight=1, tooltip="{source}->{target} {score:+.4g}"{style}];'
        )
    return "\n".join([*lines, "}", ""])


_FIELDS = {
    "node": {"kind": "string", "layer": "int", "x": "double", "y": "double"},
    "edge": {"name": "string", "feeds": "string", "score": "double", "rank": "int"},
}


def graphml(circuit: Circuit) -> str:
    """GraphML with layers and positions on the nodes, scores and ranks on the edges."""
    root = ElementTree.Element("graphml", xmlns="http://graphml.graphdrawing.org/xmlns")
    for owner, fields in _FIELDS.items():
        for name, type_ in fields.items():
            key = {"id": f"{owner}-{name}", "for": owner, "attr.name": name, "attr.type": type_}
            ElementTree.SubElement(root, "key", key)
    graph = ElementTree.SubElement(root, "graph", id="circuit", edgedefault="directed")
    for name in nodes_of(circuit):
        node = ElementTree.SubElement(graph, "node", id=name)
        x, y = position(circuit.graph, name)
        what = name if name in ("input", "logits") else "mlp" if name.startswith("m") else "head"
        _data(node, "node", {"kind": what, "layer": layer(circuit.graph, name), "x": x, "y": y})
    for rank, (source, target, score) in enumerate(named_edges(circuit), 1):
        ends = {"id": f"e{rank}", "source": source, "target": node_of(target)}
        edge = ElementTree.SubElement(graph, "edge", ends)
        facts: dict[str, str | int | float] = {
            "name": f"{source}->{target}",
            "feeds": kind(target),
            "score": score,
            "rank": rank,
        }
        _data(edge, "edge", facts)
    ElementTree.indent(root)
    text: str = ElementTree.tostring(root, encoding="unicode", xml_declaration=False)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _data(element: ElementTree.Element, owner: str, facts: dict[str, str | int | float]) -> None:
    for name, value in facts.items():
        ElementTree.SubElement(element, "data", key=f"{owner}-{name}").text = str(value)
