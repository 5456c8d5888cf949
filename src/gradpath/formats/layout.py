"""How a circuit is drawn, in every format: where its nodes are, and the colours of its edges.

``input`` is at the bottom and ``logits`` at the top. A layer is a row: its heads from left to right, then its
MLP, a little higher because it reads them. Units are columns and rows, for drawings of any size.
"""

from __future__ import annotations

from gradpath.graph import Graph

# Edges by the kind of their target. The colours are those of Okabe and Ito, two of them darkened for thin
# lines; the page has the same ones.
KINDS = {"q": "query", "k": "key", "v": "value", "mlp": "MLP", "logits": "logits"}
COLOURS = {"q": "#0072b2", "k": "#d98e00", "v": "#009e73", "mlp": "#b8578f", "logits": "#d55e00"}


def column(graph: Graph, node: str) -> float:
    """The column of a node's centre."""
    if node in ("input", "logits"):
        return (graph.n_heads - 1) / 2
    return graph.n_heads + 0.35 if node.startswith("m") else float(node.partition(".h")[2])


def position(graph: Graph, node: str) -> tuple[float, float]:
    """The centre of a node, as column and row."""
    return column(graph, node), graph.layer_of(node) + (0.16 if node.startswith("m") else 0.0)
