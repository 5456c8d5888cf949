"""A circuit in DOT, Graphviz's language: a layer is a rank, a negative score is dashed.

Written only: a DOT file is what a picture is made from. The ``id`` and the ``score`` of every edge, in the
order of the circuit, give it in full to whoever parses it.
"""

from __future__ import annotations

from collections import defaultdict

from gradpath.circuit import Circuit
from gradpath.layout import COLOURS, kind, layer, named_edges, node_of, nodes_of


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
            f'weight=1, tooltip="{source}->{target} {score:+.4g}", id="{source}->{target}", '
            f'score="{score!r}"{style}];'
        )
    return "\n".join([*lines, "}", ""])
