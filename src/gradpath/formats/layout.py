"""Where the nodes of a circuit stand in a drawing: input at the bottom, layers upwards, logits on top.

A layer is a row: its heads from left to right, then its MLP, a little higher because it reads them. Units are
columns and rows of the grid, so a drawing of any size can use them.
"""

from __future__ import annotations

from gradpath.graph import Graph

KINDS = ("q", "k", "v", "mlp", "logits")
KIND_NAMES = {"q": "query", "k": "key", "v": "value", "mlp": "MLP", "logits": "logits"}

# Okabe and Ito's colours, which colour-blind readers tell apart; the page uses the same ones.
COLOURS = {"q": "#0072b2", "k": "#d98e00", "v": "#009e73", "mlp": "#b8578f", "logits": "#d55e00"}


def column(graph: Graph, node: str) -> float:
    """The column of a node's middle."""
    if node in ("input", "logits"):
        return (graph.n_heads - 1) / 2
    if node.startswith("m"):
        return graph.n_heads + 0.35
    return float(node.partition(".h")[2])


def position(graph: Graph, node: str) -> tuple[float, float]:
    """A node's middle, in columns and rows."""
    raised = 0.16 if node.startswith("m") else 0.0
    return column(graph, node), graph.layer_of(node) + raised
