"""Scores: one number for every edge, and how they were made."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from gradpath import defaults
from gradpath.errors import InputError, reason
from gradpath.graph import Graph, graph_from_json
from gradpath.recipe import Facts, Recipe, read_record, record
from gradpath.runtime.files import check_seal, sealed, write_atomically

FORMAT = 2
_METADATA = "gradpath"
LISTED = 5  # edges in the printed form of scores and circuits


def listed(names: Sequence[str], scores: Sequence[float]) -> list[str]:
    """The strongest edges as lines of the printed form."""
    width = max(map(len, names), default=0)
    lines = [f"{name:{width}}  {score:+.4g}" for name, score in zip(names, scores, strict=True)]
    return [f"  {'strongest' if i == 0 else '':10} {line}" for i, line in enumerate(lines)]


class Shown:
    """What is drawn by ``report.figure``, and shown in notebooks: a circuit, scores or a result."""

    _kind: ClassVar[str]

    def plot(self, ax: Any = None) -> Any:
        """Draw a circuit, the sum of |score| of each node's out-edges, or the metric of every example in three runs.

        On the matplotlib axes ``ax``, by default new ones, which are returned.
        """
        from gradpath.report import figure

        return getattr(figure, f"plot_{self._kind}")(self, ax)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


@dataclass(frozen=True, eq=False, repr=False)
class Scores(Shown):
    """Edge scores as one (source, target) matrix; entries that are not edges are zero.

    A positive score means that corrupting the edge lowers the metric.

    Args:
        graph: The model's graph.
        values: The scores, (source, target).
        recipe: How the scores were made; None if that is not known.
        facts: What was observed meanwhile.
        examples: The scores of every example, (example, source, target), with ``attribute(..., per_example=True)``.
    """

    _kind = "scores"
    graph: Graph
    values: Float[Tensor, "source target"]
    recipe: Recipe | None = None
    facts: Facts = Facts()
    examples: Float[Tensor, "example source target"] | None = None

    def __repr__(self) -> str:
        return f"<Scores of {self.n_edges:,} edges: {self.recipe or 'not recorded'}>"

    def __str__(self) -> str:
        title = f"Scores of {self.graph.n_edges:,} edges"
        if self.examples is not None:
            title += f", and of {len(self.examples):,} examples"
        flat = self.values.detach().flatten().cpu()
        order = flat.abs().sort(descending=True, stable=True).indices[:LISTED]
        names = [self.graph.edge(*pair) for pair in self.graph.unflattened(order).tolist()]
        lines = [shorten(title, 100, placeholder=" ..."), f"  made on    {self.recipe or 'not recorded'}"]
        return "\n".join([*lines, *listed(names, flat[order].tolist())])

    def __getitem__(self, edge: str) -> float:
        """One score: ``scores["a0.h1->m3"]``."""
        return float(self.values[self.graph.index(edge)])

    @property
    def n_edges(self) -> int:
        """The number of edges of the model."""
        return self.graph.n_edges

    @property
    def ablation(self) -> str:
        """How ablated edges were replaced."""
        return defaults.ABLATION if self.recipe is None else self.recipe.ablation

    @property
    def nodes(self) -> dict[str, float]:
        """One score for each node except ``logits``: the sum of its out-edges, as in ``scores.nodes["a0.h1"]``."""
        return dict(zip(self.graph.sources, self.values.sum(1).tolist(), strict=True))

    def to_pandas(self) -> Any:
        """All edges as a pandas DataFrame with the columns edge, source, target, score and rank."""
        from gradpath.formats.edges import to_pandas

        return to_pandas(self)

    def save(self, file: str | Path) -> None:
        """Write a safetensors file, atomically."""
        notes = {"format": FORMAT, "graph": self.graph.to_json(), **record(self.recipe, self.facts)}
        tensors = {"scores": self.values.contiguous()}
        if self.examples is not None:
            tensors["examples"] = self.examples.contiguous()
        notes = sealed(notes, *map(_bytes, tensors.values()))
        write_atomically(Path(file), save(tensors, {_METADATA: json.dumps(notes)}))


def _bytes(values: Tensor) -> Any:
    return values.detach().cpu().reshape(-1).view(torch.uint8).numpy()


def load_scores(file: str | Path) -> Scores:
    """Read the scores that ``Scores.save`` wrote.

    Args:
        file: A ``scores.safetensors``.

    Returns:
        The scores.
    """
    wrong, again = f"{file} cannot be read as gradpath scores", "Make them again with gradpath find."
    try:
        with safe_open(str(file), framework="pt") as opened:
            notes = json.loads((opened.metadata() or {})[_METADATA])
            values = opened.get_tensor("scores")
            examples = opened.get_tensor("examples") if "examples" in opened.keys() else None  # noqa: SIM118
        if notes["format"] != FORMAT:
            raise InputError(f"its format is {notes['format']!r}, and this version of gradpath reads {FORMAT}.")
        graph, (recipe, facts) = graph_from_json(notes["graph"]), read_record(notes)
        check_seal(notes, *(_bytes(x) for x in (values, examples) if x is not None))
    except FileNotFoundError:
        raise InputError(f"there is no file {file}. Give a scores.safetensors that gradpath find wrote.") from None
    except InputError as problem:
        raise InputError(f"{wrong}: {problem} {again}") from None
    except (SafetensorError, OSError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as problem:
        raise InputError(f"{wrong} ({reason(problem)}). {again}") from None
    for x, n_axes in ((values, 2), (examples, 3)):
        if x is None:
            continue
        if x.dtype != torch.float32 or x.ndim != n_axes or x.shape[-2:] != graph.mask.shape:
            expected, got = tuple(graph.mask.shape), f"{x.dtype} of shape {tuple(x.shape)}"
            raise InputError(f"{wrong}: expected float32 of shape {expected}, got {got}. {again}")
        if not x.isfinite().all():
            raise InputError(f"{wrong}: a score is not a finite number. {again}")
    return Scores(graph, values, recipe, facts, examples)
