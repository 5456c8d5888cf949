"""Circuits that people found by hand in GPT-2 small, read from ``data/manual``, as sets of edges.

How nodes are counted, so that the totals of the literature come out (IOI 26 nodes and 215 edges, Greater-Than
19 and 240): a node is a head or MLP that belongs to one of the circuit's groups. ``input`` and ``logits``
belong to every circuit. ``m11`` stands on two edges of the IOI circuit, a9.h7 -> m11 -> logits, but in none
of its groups. What is on edges but in no group is left out of the comparison of nodes altogether.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources

from gradpath.circuit import Circuit
from gradpath.graph import Graph

SHAPE = Graph(n_layers=12, n_heads=12)
FILES = ("ioi", "ioi_acdc", "greater_than", "greater_than_acdc")


@dataclass(frozen=True)
class ManualCircuit:
    """A circuit of the literature and where it is from."""

    name: str
    task: str
    title: str
    source: str
    nodes: frozenset[str]
    edges: frozenset[str]

    @property
    def uncounted(self) -> frozenset[str]:
        """Nodes on its edges that are in none of its groups."""
        return nodes_of(self.edges) - self.nodes


def nodes_of(edges: frozenset[str] | set[str]) -> frozenset[str]:
    """Both ends of every edge, as nodes.

    >>> sorted(nodes_of({"input->a0.h1<q>", "a0.h1->logits"}))
    ['a0.h1', 'input', 'logits']
    """
    ends = (end for edge in edges for end in edge.split("->"))
    return frozenset(end.partition("<")[0] for end in ends)


def manual_circuits() -> list[ManualCircuit]:
    folder = resources.files("gradpath.experiments") / "data" / "manual"
    circuits = []
    for name in FILES:
        content = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        nodes = frozenset(node for group in content["groups"].values() for node in group)
        circuits.append(
            ManualCircuit(
                name, content["task"], content["title"], content["source"], nodes, frozenset(content["edges"])
            )
        )
    return circuits


@dataclass(frozen=True)
class Overlap:
    """How much of what was found is right, and how much of what is right was found."""

    precision: float | None  # None where nothing was found
    recall: float


def overlap(found: frozenset[str], right: frozenset[str]) -> Overlap:
    hits = len(found & right)
    return Overlap(hits / len(found) if found else None, hits / len(right))


def compare(circuit: Circuit, manual: ManualCircuit) -> tuple[Overlap, Overlap]:
    """The overlap of edges, and of nodes."""
    edges = frozenset(circuit.edges)
    ignored = manual.uncounted | {"input", "logits"}
    return overlap(edges, manual.edges), overlap(nodes_of(edges) - ignored, manual.nodes)
