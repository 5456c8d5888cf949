r"""Edges at positions: which edge matters, and where in the prompt.

What flows over an edge flows position by position: at p the target reads what the source wrote at p. So
the sum over positions in a score can be taken apart, by token or by span (``tasks.spans``), and a circuit can
keep an edge at the subject and leave it out elsewhere::

    scores = positions.attribute(model, train, "eap-ig", by="span")
    circuit = positions.select(scores, n=2000)
    result = gp.evaluate(model, circuit, test)

Cost: one contraction for every span instead of one in all, over the same rows, so nearly nothing.

Pruning knows that attention alone goes from one position to another, and only to later ones: a head at a span
reads queries there, and keys and values there and before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from gradpath.ablation import CORRUPTED
from gradpath.attribution import means
from gradpath.circuit import Circuit
from gradpath.errors import InputError, reason, unknown
from gradpath.files import write_atomically
from gradpath.graph import Graph, graph_of
from gradpath.memory import Progress
from gradpath.model.transformer import Transformer
from gradpath.paths import find_path
from gradpath.scores import Scores
from gradpath.selection import edge_count
from gradpath.tasks.spans import labels_of
from gradpath.tasks.task import Pairs, Task, encode

HOWS = ("top", "signed")


@dataclass(frozen=True)
class SpanScores:
    """One number for every edge at every span; they add up to the scores of edges over all positions."""

    graph: Graph
    spans: tuple[str, ...]
    values: Float[Tensor, "span source target"]
    reach: Bool[Tensor, "span span"]  # which span is seen from which
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_edges(self) -> int:
        """How many there are to choose from."""
        return len(self.spans) * self.graph.n_edges

    @property
    def summed(self) -> Scores:
        """The scores of edges, wherever in the prompt."""
        return Scores(self.graph, self.values.sum(0), self.about)

    def __getitem__(self, edge: str) -> float:
        """The score of an edge at a span: ``scores["input->m0@subject"]``."""
        name, at, span = edge.rpartition("@")
        if not at or span not in self.spans:
            raise InputError(f"{edge!r} names no span: write it as source->target@span, {self._names}.")
        return float(self.values[self.spans.index(span), *self.graph.index(name)])

    @property
    def _names(self) -> str:
        return f"one of {', '.join(self.spans)}"

    def save(self, file: str | Path) -> None:
        """Write a safetensors file, all of it or nothing."""
        shape = {
            "n_layers": self.graph.n_layers,
            "n_heads": self.graph.n_heads,
            "parallel": self.graph.parallel,
        }
        notes = {"format": 1, "graph": shape, "spans": list(self.spans), "about": dict(self.about)}
        tensors = {"scores": self.values.contiguous(), "reach": self.reach.contiguous()}
        write_atomically(Path(file), save(tensors, {"gradpath_positions": json.dumps(notes)}))


def load_span_scores(file: str | Path) -> SpanScores:
    """Read what ``SpanScores.save`` wrote."""
    wrong = f"{file} cannot be read as scores of positions"
    try:
        with safe_open(str(file), framework="pt") as opened:
            notes = json.loads((opened.metadata() or {})["gradpath_positions"])
            values, reach = opened.get_tensor("scores"), opened.get_tensor("reach")
        graph, spans, about = graph_of(notes["graph"]), tuple(map(str, notes["spans"])), notes["about"]
        if not isinstance(about, dict):
            raise ValueError("what it says of how they were made is no object")
    except FileNotFoundError:
        raise InputError(f"there is no file {file}. Give the scores.safetensors of a find.") from None
    except InputError as problem:
        raise InputError(f"{wrong}: {problem} Make them again with gradpath find --positions.") from None
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as problem:
        raise InputError(f"{wrong} ({reason(problem)}). Make them again with gradpath find.") from None
    expected = (len(spans), graph.n_sources, graph.n_targets)
    kinds = (values.dtype, reach.dtype) == (torch.float32, torch.bool)
    if not kinds or values.shape != expected or reach.shape != (len(spans), len(spans)):
        raise InputError(f"{wrong}: its numbers do not fit. Make them again with gradpath find --positions.")
    if not values.isfinite().all():
        raise InputError(f"{wrong}: a score is not a finite number. Make them again with gradpath find.")
    return SpanScores(graph, spans, values, reach, about)


def attribute(
    model: Transformer,
    task: Task,
    method: str = "eap-gp",
    *,
    by: str = "span",
    steps: int | None = None,
    batch_size: int = 20,
    memory: int | None = None,
    progress: Progress | None = None,
    ablation: str = CORRUPTED,
    **options: Any,
) -> SpanScores:
    """Score every edge at every span of the prompts, or at every token (``by``); else as ``gp.attribute``."""
    path = find_path(method)
    if steps is not None and "steps" in path.defaults:
        options["steps"] = steps
    pairs = encode(task, model.tokenizer)
    labels = labels_of(task, pairs, model.tokenizer, by)
    n = len(labels.names)
    [(values, about)] = means(
        model,
        task,
        replace(pairs, spans=labels.at),
        path,
        path.options(options),
        groups=(n, partial(_rows, n)),
        batch_size=batch_size,
        memory=memory,
        progress=progress,
        ablation=ablation,
    )
    return SpanScores(model.graph, labels.names, values, labels.reach(), {**about, "positions": by})


def _rows(n_spans: int, batch: Pairs) -> list[Tensor]:
    """The rows of a batch's suffix that are in each span."""
    assert batch.spans is not None
    at = batch.spans[:, batch.start :].flatten()
    return [(at == i).nonzero()[:, 0] for i in range(n_spans)]


def select(
    scores: SpanScores,
    n: int | None = None,
    *,
    sparsity: float | None = None,
    how: str = "top",
    prune: bool = True,
) -> Circuit:
    """The circuit of the ``n`` edges at spans of largest |score| (or score, if ``signed``), pruned."""
    n = edge_count(scores, n, sparsity)
    return select_many(scores, [n], how=how, prune=prune)[0]


def select_many(
    scores: SpanScores, counts: Sequence[int], *, how: str = "top", prune: bool = True
) -> list[Circuit]:
    """Circuits of several sizes from one ordering."""
    if how not in HOWS:
        raise unknown("selection of edges at positions", how, HOWS)
    if not scores.values.isfinite().all():
        raise InputError("scores that are not finite numbers cannot be ranked. Attribute again.")
    graph = scores.graph
    mask = graph.mask.expand(scores.values.shape).flatten()
    places = mask.nonzero()[:, 0]
    size = scores.values.cpu().flatten()[places]
    order = places[(size.abs() if how == "top" else size).sort(descending=True, stable=True).indices]
    return [_circuit(scores, order[: edge_count(scores, n, None)], how, prune) for n in counts]


def _circuit(scores: SpanScores, order: Tensor, how: str, prune: bool) -> Circuit:
    graph, asked = scores.graph, len(order)
    if prune:
        mask = torch.zeros(scores.values.numel(), dtype=torch.bool, device="cpu")
        mask[order] = True
        order = order[pruned(graph, mask.view(scores.values.shape), scores.reach).flatten()[order]]
    edge, per_span = order % (graph.n_sources * graph.n_targets), graph.n_sources * graph.n_targets
    index = torch.stack([edge // graph.n_targets, edge % graph.n_targets], 1)
    selection = {"how": how, "pruned": prune, "edges_asked": asked, "edges_kept": len(order)}
    about = {**scores.about, "selection": selection}
    values = scores.values.cpu().flatten()[order]
    return Circuit(graph, index, values, about, scores.spans, order // per_span)


def pruned(
    graph: Graph, masks: Bool[Tensor, "span source target"], reach: Bool[Tensor, "span span"]
) -> Bool[Tensor, "span source target"]:
    """The edges at spans that are on a way from ``input`` to ``logits``; ``reach`` as in ``SpanScores``."""
    n, heads = len(masks), graph.n_heads
    fed = torch.zeros(n, graph.n_sources, dtype=torch.bool, device="cpu")  # reached from input
    fed[:, 0] = True

    def arriving(targets: slice) -> Tensor:
        return (masks[:, :, targets] & fed[:, :, None]).any(1)  # (span, target)

    for layer in range(graph.n_layers):
        q, k, v = torch.split(arriving(slice(graph.target_head(layer), graph.target_mlp(layer))), heads, 1)
        seen = (reach[:, :, None] & (k | v)[:, None]).any(0)  # (span that looks, head)
        fed[:, graph.source_head(layer) : graph.source_mlp(layer)] = q | seen
        fed[:, graph.source_mlp(layer)] = arriving(
            slice(graph.target_mlp(layer), graph.target_mlp(layer) + 1)
        )[:, 0]
    heard = torch.zeros(n, graph.n_targets, dtype=torch.bool, device="cpu")  # reaches logits
    heard[:, graph.logits] = True

    def leaving(sources: slice) -> Tensor:
        return (masks[:, sources] & heard[:, None]).any(2)  # (span, source)

    for layer in reversed(range(graph.n_layers)):
        mlp = graph.source_mlp(layer)
        heard[:, graph.target_mlp(layer)] = leaving(slice(mlp, mlp + 1))[:, 0]
        alive = leaving(slice(graph.source_head(layer), mlp))
        from_before = (reach[:, :, None] & alive[None]).any(1)  # (span that is looked at, head)
        heard[:, graph.target_head(layer) : graph.target_mlp(layer)] = torch.cat(
            [alive, from_before, from_before], 1
        )
    return masks & fed[:, :, None] & heard[:, None]
