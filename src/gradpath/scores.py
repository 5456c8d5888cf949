"""Scores: one number for every edge, and how they came about."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from gradpath.errors import InputError, reason
from gradpath.files import write_atomically
from gradpath.graph import Graph, graph_of


@dataclass(frozen=True)
class Scores:
    """Edge scores as one (source, target) matrix; entries that are no edges are zero.

    A positive score means that corrupting the edge lowers the metric. ``about`` says how the scores
    were made (model, task, method, steps, ...), enough to make them again.
    """

    graph: Graph
    values: Float[Tensor, "source target"]
    about: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, edge: str) -> float:
        return float(self.values[self.graph.index(edge)])

    @property
    def by_node(self) -> Float[Tensor, " source"]:
        """One score for each node: its own, or, where edges were scored, the sum over those that leave it."""
        of_nodes = self.about.get("of") == "nodes"
        return self.values[:, self.graph.logits] if of_nodes else self.values.sum(1)

    def plot(self, ax: Any = None) -> Any:
        """The scores as matplotlib axes."""
        from gradpath.report.plots import plot_scores

        return plot_scores(self, ax)

    def to_pandas(self) -> Any:
        """All edges as a pandas table: see ``formats.table``."""
        from gradpath.formats.table import to_pandas

        return to_pandas(self)

    def _repr_html_(self) -> str:
        from gradpath.report.cards import scores_card

        return scores_card(self)

    def save(self, file: str | Path) -> None:
        """Write a safetensors file, all of it or nothing."""
        graph = {"n_layers": self.graph.n_layers, "n_heads": self.graph.n_heads}
        graph["parallel"] = self.graph.parallel
        notes = {"gradpath": json.dumps({"format": 1, "graph": graph, "about": dict(self.about)})}
        write_atomically(Path(file), save({"scores": self.values.contiguous()}, notes))


def load_scores(file: str | Path) -> Scores:
    """Read what ``Scores.save`` wrote."""
    wrong = f"{file} cannot be read as gradpath scores"
    try:
        with safe_open(str(file), framework="pt") as opened:
            notes = json.loads((opened.metadata() or {})["gradpath"])
            values = opened.get_tensor("scores")
        graph, about = graph_of(notes["graph"]), notes["about"]
        if not isinstance(about, dict):
            raise ValueError("what it says of how they were made is no object")
    except FileNotFoundError:
        raise InputError(f"there is no file {file}. Give the scores.safetensors of a find.") from None
    except InputError as problem:
        raise InputError(f"{wrong}: {problem} Make them again with gradpath find.") from None
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as problem:
        raise InputError(f"{wrong} ({reason(problem)}). Make them again with gradpath find.") from None
    if values.shape != (graph.n_sources, graph.n_targets) or values.dtype != torch.float32:
        raise InputError(
            f"{wrong}: expected float32 of shape {(graph.n_sources, graph.n_targets)}, "
            f"got {values.dtype} of shape {tuple(values.shape)}. Make them again with gradpath find."
        )
    if not values.isfinite().all():
        raise InputError(f"{wrong}: a score is not a finite number. Make them again with gradpath find.")
    return Scores(graph, values, about)
