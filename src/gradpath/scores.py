"""Scores: one number for every edge, and how they were made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from gradpath import defaults
from gradpath.errors import InputError, reason
from gradpath.graph import Graph, graph_from_json
from gradpath.runtime.files import check_seal, sealed, write_atomically

FORMAT = 1
_METADATA = "gradpath"
LISTED = 5  # edges in the printed form of scores and circuits


def listed(names: Sequence[str], scores: Sequence[float]) -> list[str]:
    """The strongest edges as lines of the printed form."""
    width = max(map(len, names), default=0)
    lines = [f"{name:{width}}  {score:+.4g}" for name, score in zip(names, scores, strict=True)]
    return [f"  {'strongest' if i == 0 else '':10} {line}" for i, line in enumerate(lines)]


@dataclass(frozen=True)
class Provenance:
    """How scores or a circuit were made: the typed view of their ``about``, which may come from any file.

    What is not recorded, or has another type, is None, empty or the default.
    """

    version: str | None = None  # of gradpath
    model: str | None = None
    weights: str | None = None  # their digest
    dtype: str | None = None
    bos: bool | None = None  # whether prompts began with a BOS token
    task: str | None = None
    examples: int | None = None  # the number of attributed examples
    requested: int | None = None  # examples that were requested; None for all of the user's own data
    seed: int | None = None  # of their draw, as the split
    split: str | None = None
    metric: str | None = None
    source: str | None = None  # where the examples are from
    own_data: bool = False  # whether that is a file or table of the user's own
    half: str | None = None  # of a ``Task`` that was given to ``find``
    method: str | None = None
    steps: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # of the method, without steps
    ablation: str = defaults.ABLATION
    plugins: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int | None = None
    passes: Mapping[str, Any] = field(default_factory=dict)  # forward and backward
    key: Mapping[str, Any] | None = None  # of a stored result of a grid, as the time that it took
    cpu_seconds: float | None = None
    selection: Mapping[str, Any] = field(default_factory=dict)  # of a circuit: how, pruned, edges_asked, edges_kept
    how: str = ""
    pruned: bool = True
    edges_asked: int | None = None
    smallest: int | None = None  # the smallest circuit that an order of edges was made for

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> Provenance:
        """Read the plain values that record how scores or a circuit were made."""
        data, selection = _mapping(about.get("data")), _mapping(about.get("selection"))
        key, bos, seconds = about.get("key"), about.get("bos"), about.get("cpu_seconds")
        return cls(
            version=_text(about.get("version")),
            model=_text(about.get("model")),
            weights=_text(about.get("weights")),
            dtype=_text(about.get("dtype")),
            bos=bos if isinstance(bos, bool) else None,
            task=_text(about.get("task")),
            examples=_whole(about.get("examples")),
            requested=_whole(data.get("n")),
            seed=_whole(data.get("seed")),
            split=_text(data.get("split")),
            metric=_text(data.get("metric")),
            source=_text(data.get("source")),
            own_data="rows_read" in data,
            half=_text(data.get("half")),
            method=_text(about.get("method")),
            steps=_whole(about.get("steps")),
            options=_mapping(about.get("options")),
            ablation=_text(about.get("ablation")) or defaults.ABLATION,
            plugins=_mapping(about.get("plugins")),
            batch_size=_whole(about.get("batch_size")),
            passes=_mapping(about.get("passes")),
            key=key if isinstance(key, Mapping) else None,
            cpu_seconds=seconds if isinstance(seconds, float) else None,
            selection=selection,
            how=_text(selection.get("how")) or "",
            pruned=bool(selection.get("pruned", True)),
            edges_asked=_whole(selection.get("edges_asked")),
            smallest=_whole(selection.get("smallest")),
        )

    def __str__(self) -> str:
        """In one line: ``ioi in smollm2, by eap-ig (5 steps, 100 examples), refined``."""
        numbers = (("step", self.steps), ("example", self.examples))
        counts = [f"{n} {name}{'' if n == 1 else 's'}" for name, n in numbers if n is not None]
        where = " in ".join(filter(None, (self.task, self.model)))
        by = f"by {self.method}" + (f" ({', '.join(counts)})" if counts else "") if self.method else ""
        return ", ".join(filter(None, (where, by, self.how))) or "not recorded"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def checked_about(about: Any) -> dict[str, Any]:
    """The ``about`` of a file that may contain anything."""
    if damage := _damage(about):
        raise InputError(f"{damage}. Make it again with gradpath find.")
    return dict(about)


def _damage(about: Any) -> str | None:
    """What is wrong with an ``about``: a field of another type cannot be used to find a circuit again."""
    if not isinstance(about, Mapping):
        return "its 'about' is not an object"
    for name in ("selection", "data", "options"):
        if not isinstance(about.get(name, {}), Mapping):
            return f"its {name!r} is not an object"
    counts = {"edges_asked": about.get("selection", {}).get("edges_asked", 0)}
    counts |= {name: about[name] for name in ("steps", "examples") if about.get(name) is not None}
    for name, count in counts.items():
        if type(count) is not int or count < 0:
            return f"its {name!r} is {count!r}"
    return None


@dataclass(frozen=True, eq=False, repr=False)
class Scores:
    """Edge scores as one (source, target) matrix; entries that are not edges are zero.

    A positive score means that corrupting the edge lowers the metric.

    Args:
        graph: The model's graph.
        values: The scores, (source, target).
        about: How the scores were made (model, task, method, steps, ...): enough to make them again.
        examples: The scores of every example, (example, source, target), with ``attribute(..., per_example=True)``.
    """

    graph: Graph
    values: Float[Tensor, "source target"]
    about: Mapping[str, Any] = field(default_factory=dict)
    examples: Float[Tensor, "example source target"] | None = None

    def __repr__(self) -> str:
        return f"<Scores of {self.n_edges:,} edges: {self.provenance}>"

    def __str__(self) -> str:
        title = f"Scores of {self.graph.n_edges:,} edges"
        if self.examples is not None:
            title += f", and of {len(self.examples):,} examples"
        flat = self.values.detach().flatten().cpu()
        order = flat.abs().sort(descending=True, stable=True).indices[:LISTED]
        names = [self.graph.edge(*pair) for pair in self.graph.unflattened(order).tolist()]
        lines = [shorten(title, 100, placeholder=" ..."), f"  made on    {self.provenance}"]
        return "\n".join([*lines, *listed(names, flat[order].tolist())])

    def __getitem__(self, edge: str) -> float:
        """One score: ``scores["a0.h1->m3"]``."""
        return float(self.values[self.graph.index(edge)])

    @property
    def n_edges(self) -> int:
        """The number of edges of the model."""
        return self.graph.n_edges

    @property
    def nodes(self) -> dict[str, float]:
        """One score for each node except ``logits``: the sum of its out-edges, as in ``scores.nodes["a0.h1"]``."""
        return dict(zip(self.graph.sources, self.values.sum(1).tolist(), strict=True))

    @cached_property
    def provenance(self) -> Provenance:
        """How the scores were made, as a typed object."""
        return Provenance.of(self.about)

    def plot(self, ax: Any = None) -> Any:
        """Plot the sum of |score| over the out-edges of each node, by layer and head.

        Args:
            ax: The matplotlib axes to draw on; new ones by default.

        Returns:
            The matplotlib axes.
        """
        from gradpath.report.plots import plot_scores

        return plot_scores(self, ax)

    def to_pandas(self) -> Any:
        """All edges as a pandas DataFrame with the columns edge, source, target, score and rank."""
        from gradpath.formats.edges import to_pandas

        return to_pandas(self)

    def _repr_html_(self) -> str:
        from gradpath.report.plots import scores_card

        return scores_card(self)

    def save(self, file: str | Path) -> None:
        """Write a safetensors file, atomically.

        Args:
            file: The file to write.
        """
        notes = {"format": FORMAT, "graph": self.graph.to_json()}
        tensors = {"scores": self.values.contiguous()}
        if self.examples is not None:
            tensors["examples"] = self.examples.contiguous()
        notes["about"] = dict(self.about)
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
        graph, about = graph_from_json(notes["graph"]), notes["about"]
        if damage := _damage(about):
            raise ValueError(damage)
        check_seal(notes, *(_bytes(x) for x in (values, examples) if x is not None))
    except FileNotFoundError:
        raise InputError(f"there is no file {file}. Give a scores.safetensors that gradpath find wrote.") from None
    except InputError as problem:
        raise InputError(f"{wrong}: {problem} {again}") from None
    except (SafetensorError, OSError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as problem:
        raise InputError(f"{wrong} ({reason(problem)}). {again}") from None
    expected = (graph.n_sources, graph.n_targets)
    if values.shape != expected or values.dtype != torch.float32:
        raise InputError(
            f"{wrong}: expected float32 of shape {expected}, got {values.dtype} of shape {tuple(values.shape)}. {again}"
        )
    if examples is not None and (examples.dtype != torch.float32 or examples.shape != (*examples.shape[:1], *expected)):
        raise InputError(f"{wrong}: its scores of examples do not fit. {again}")
    if not values.isfinite().all() or (examples is not None and not examples.isfinite().all()):
        raise InputError(f"{wrong}: a score is not a finite number. {again}")
    return Scores(graph, values, about, examples=examples)
