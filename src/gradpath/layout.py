"""Where the nodes of a circuit stand in a drawing: input at the bottom, layers upwards, logits on top.

A layer is a row: its heads from left to right, then its MLP, a little higher because it reads them. Units are
columns and rows of the grid, so a drawing of any size can use them.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradpath.circuit import Circuit
from gradpath.graph import Graph

KINDS = ("q", "k", "v", "mlp", "logits")
KIND_NAMES = {"q": "query", "k": "key", "v": "value", "mlp": "MLP", "logits": "logits"}

# Okabe and Ito's colours, which colour-blind readers tell apart; the page uses the same ones.
COLOURS = {"q": "#0072b2", "k": "#d98e00", "v": "#009e73", "mlp": "#b8578f", "logits": "#d55e00"}


def kind(target: str) -> str:
    """What an edge into this target feeds: q, k, v, mlp or logits."""
    if target == "logits":
        return "logits"
    return target[-2] if target.endswith(">") else "mlp"


def node_of(target: str) -> str:
    """The node that a target belongs to: its name without q, k or v."""
    return target.partition("<")[0]


def named_edges(circuit: Circuit) -> Iterator[tuple[str, str, float]]:
    """Each edge as the names of its source and target and its score."""
    for edge, score in zip(circuit.edges, circuit.scores.tolist(), strict=True):
        source, _, target = edge.partition("->")
        yield source, target, score


def nodes_of(circuit: Circuit) -> list[str]:
    """The nodes that have an edge in the circuit, from ``input`` to ``logits``."""
    names = {end for source, target, _ in named_edges(circuit) for end in (source, node_of(target))}
    return [name for name in (*circuit.graph.sources, "logits") if name in names]


def layer(graph: Graph, node: str) -> int:
    """The row of a node: -1 for ``input``, the number of layers for ``logits``."""
    if node == "input":
        return -1
    if node == "logits":
        return graph.n_layers
    return int(node[1:].partition(".")[0])


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
    return column(graph, node), layer(graph, node) + raised
