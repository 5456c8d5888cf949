"""Two circuits of the same model side by side."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gradpath.circuit import Circuit


@dataclass(frozen=True)
class Comparison:
    """A comparison of two circuits of the same model.

    Args:
        a: The first circuit.
        b: The second circuit.
    """

    a: Circuit
    b: Circuit

    @cached_property
    def both(self) -> Circuit:
        """The edges that both have, with the scores of the first."""
        return self.a & self.b

    @cached_property
    def only_a(self) -> Circuit:
        """The edges that only the first has."""
        return self.a - self.b

    @cached_property
    def only_b(self) -> Circuit:
        """The edges that only the second has."""
        return self.b - self.a

    @property
    def jaccard_edges(self) -> float:
        """The share of the edges of either circuit that both have; 1 for two empty circuits."""
        return _jaccard(len(self.a), len(self.b), len(self.both))

    @property
    def jaccard_nodes(self) -> float:
        """The share of the nodes of either circuit that both have; 1 for two empty circuits."""
        numbers = self.numbers
        return _jaccard(numbers["nodes_a"], numbers["nodes_b"], numbers["nodes_both"])

    @property
    def by_chance(self) -> float:
        """The number of edges that two random circuits of these sizes share on average."""
        total = self.a.graph.n_edges * max(1, len(self.a.spans))
        return len(self.a) * len(self.b) / total

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The numbers of edges and nodes of each circuit and of their intersection."""
        nodes_a, nodes_b = set(self.a.nodes), set(self.b.nodes)
        return {
            "edges_a": len(self.a),
            "edges_b": len(self.b),
            "edges_both": len(self.both),
            "nodes_a": len(nodes_a),
            "nodes_b": len(nodes_b),
            "nodes_both": len(nodes_a & nodes_b),
        }

    def to_json(self) -> dict[str, Any]:
        """All numbers as a dictionary."""
        jaccard = {"jaccard_edges": self.jaccard_edges, "jaccard_nodes": self.jaccard_nodes}
        return {**self.numbers, **jaccard, "edges_both_by_chance": self.by_chance}

    def __str__(self) -> str:
        n = self.numbers
        lines = [f"{'':7}{'A':>9}{'B':>9}{'both':>9}{'only A':>9}{'only B':>9}   Jaccard"]
        for what, share in (("edges", self.jaccard_edges), ("nodes", self.jaccard_nodes)):
            a, b, both = (n[f"{what}_{side}"] for side in ("a", "b", "both"))
            counts = "".join(f"{count:>9,}" for count in (a, b, both, a - both, b - both))
            lines.append(f"{what:7}{counts}   {share:.3f}")
        chance = f"{self.by_chance:,.0f}" if self.by_chance >= 10 else f"{self.by_chance:.2g}"
        return "\n".join([*lines, f"Two random circuits of these sizes share {chance} edges on average."])

    def report(self, file: str | Path) -> None:
        """Write a page that shows both circuits in one drawing.

        Args:
            file: The HTML file to write.
        """
        from gradpath.report.compare import write_comparison

        write_comparison(self, Path(file))


def _jaccard(a: int, b: int, both: int) -> float:
    return both / (a + b - both) if a or b else 1.0
