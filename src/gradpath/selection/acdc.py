r"""``acdc``: visit every edge from the logits down, and remove it if the output hardly changes (Conmy et al. 2023).

ACDC (arXiv 2304.14997, Algorithm 1) starts from a circuit H of all edges. It visits the targets from ``logits`` down,
and of each the sources from the last to the first, and removes an edge for good if that changes the output by less
than a threshold:

    H <- H without e    if   d(H without e) - d(H) < threshold

d is how far the circuit's output is from the model's, a mean over examples:

``measure=metric``  |m(H) - m(model)|, in units of the mean difference between clean and corrupted prompts: the error
``measure=kl``      the KL divergence of H's distribution of the next token from the model's, as in the paper, in nats

An edge into a node that no remaining edge leaves has no effect, and is removed without a run. With ``among`` the search
starts from that share of the edges, those of largest |score|.

Several thresholds give one circuit each. Their searches visit the same edges in the same order and share one set-up.
They also share the runs of circuits up to the first edge that they decide differently on.

Cost: for each threshold one run of a circuit for each edge that it starts from, except edges removed without a run. The
runs are sequential: every decision depends on those before it. The set-up's activations stay in memory. Distances are
stored in the cache folder during the search, so a search that was stopped continues.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from gradpath.circuit import Circuit
from gradpath.errors import InputError, UsageError
from gradpath.evaluation.patched_run import final_reads
from gradpath.evaluation.plan import plan_of
from gradpath.graph import Graph
from gradpath.limits import Limits, check_affordable
from gradpath.model.cache import cache_folder
from gradpath.model.transformer import Transformer
from gradpath.prepared import Prepared, PreparedBatches, prepare
from gradpath.runtime import distributed
from gradpath.runtime.files import StateFile
from gradpath.runtime.progress import progress_bar
from gradpath.scores import Scores
from gradpath.selection.ranking import Order, Orders, selection, top
from gradpath.tasks.metrics import metric_of
from gradpath.tasks.task import Task

COST = 0.2  # passes over one example that one more circuit takes
Mask = Bool[Tensor, "source target"]


@selection("acdc", measures=True, nested=False, sized=False, varies="threshold")
def acdc(
    model: Transformer,
    task: Task,
    scores: Scores,
    counts: Sequence[int],
    limits: Limits = Limits(),
    prepared: PreparedBatches | None = None,
    *,
    threshold: float | list[float] = 0.01,
    among: float = 1.0,
    measure: Literal["metric", "kl"] = "metric",
    sure: bool = False,
) -> Orders:
    """Visit all edges from the logits down, and remove those that change the output by less than a threshold.

    The number of edges follows from the threshold; several thresholds give a circuit each. ``sure`` allows a search
    that takes very long.
    """
    thresholds = threshold if isinstance(threshold, list) else [threshold]
    masks = acdc_masks(
        model, task, scores, thresholds, limits=limits, prepared=prepared, among=among, measure=measure, sure=sure
    )
    order: Order = top(scores, scores.graph.n_edges)
    return [order[mask.flatten()[order]] for mask in masks]


def acdc_masks(
    model: Transformer,
    task: Task,
    scores: Scores,
    thresholds: Sequence[float],
    *,
    limits: Limits = Limits(),
    prepared: PreparedBatches | None = None,
    among: float = 1.0,
    measure: Literal["metric", "kl"] = "metric",
    sure: bool = False,
) -> list[Mask]:
    """The edges that ACDC keeps at each threshold.

    Args:
        model: The model.
        task: The examples.
        scores: Scores of all edges; they are used for ``among``, and for the ablation that they record.
        thresholds: How much the removal of an edge may change the output.
        limits: The batch size and memory.
        prepared: The examples, if they are prepared already.
        among: The share of edges to start from, those of largest |score|.
        measure: ``metric`` or ``kl``, see above.
        sure: Whether to run a search that takes very long.

    Returns:
        One mask of edges for each threshold.
    """
    if not 0 < among <= 1 or not all(x > 0 for x in thresholds):
        raise UsageError(
            f"acdc needs thresholds above 0, and among above 0 and up to 1: got {list(thresholds)} and {among}."
        )
    graph = scores.graph
    start = graph.mask_of(top(scores, max(1, round(among * graph.n_edges)))).view(graph.n_sources, -1)
    examples = prepared or PreparedBatches(model, task, scores.ablation, limits)
    pairs = examples.pairs
    n_edges = int(start.sum())
    what, fewer = f"acdc on {n_edges:,} edges and {len(pairs):,} examples", "use fewer examples"
    if len(thresholds) > 1:
        what, fewer = f"{what} at each of {len(thresholds)} thresholds", f"{fewer} or thresholds"
    cost = COST * len(thresholds) * n_edges * len(pairs)
    check_affordable(what, cost, f"start from fewer edges with among=0.1, {fewer}", sure=sure)
    distance = _Distance(examples, measure)
    log = _Log((model.digest, str(model.dtype), pairs.clean.tolist(), pairs.corrupted.tolist(), distance.ends))
    masks = [_search(graph, start, threshold, lambda mask: log.look_up(mask, distance)) for threshold in thresholds]
    log.remove()
    return masks


def _search(graph: Graph, start: Mask, threshold: float, distance: Callable[[Mask], float]) -> Mask:
    """The edges of ``start`` that remain."""
    mask = start.clone()
    last = distance(mask)
    with progress_bar("selecting edges by acdc", int(mask.sum()), unit="edge") as bar:
        for target in reversed(range(graph.n_targets)):
            sources, node = mask[:, target].nonzero()[:, 0].tolist(), int(graph.node_of_target[target])
            if node < graph.n_sources and not mask[node].any():
                mask[:, target] = False
                bar.update(len(sources))
                continue
            for source in reversed(sources):
                mask[source, target] = False
                value = distance(mask)
                if value - last < threshold:
                    last = value
                else:
                    mask[source, target] = True
                bar.update()
    return mask


class _Log(StateFile):
    """The distances of the circuits measured so far, in a file during the search."""

    def __init__(self, key: object) -> None:
        super().__init__(cache_folder() / "acdc", key, ".json")
        try:
            stored = {key: float(value) for key, value in json.loads(self.read()).items()}
        except (OSError, ValueError, AttributeError, TypeError):
            stored = {}
        # All processes have to decide alike, so all of them use what the first one has read.
        self._known = distributed.on_first_rank(lambda: stored)  # by a digest of the circuit's edges

    def look_up(self, mask: Mask, distance: Callable[[Mask], float]) -> float:
        """The distance of a circuit, measured unless it is known."""
        key = sha256(mask.numpy().tobytes()).hexdigest()[:16]
        if key not in self._known:
            self._known[key] = distance(mask)
            self.write(lambda: json.dumps(self._known))
        return self._known[key]


class _Distance:
    """How far a circuit's output is from the model's, on examples that are set up once."""

    @torch.no_grad()
    def __init__(self, examples: PreparedBatches, measure: str) -> None:
        model, task, pairs = examples.model, examples.task, examples.pairs
        self._model, self._task, self._measure = model, task, measure
        batches = pairs.batches(examples.limits.batch(model, pairs))
        self._parts = [prepare(model, batch.to(model.device), examples.ablation) for batch in batches]
        clean, corrupted = torch.cat([part.ends(task.metric) for part in self._parts], 1)
        unit = float((clean - corrupted).double().abs().mean()) if measure == "metric" else 1.0
        self._unit = unit or 1.0
        self._goals = [self._output(part, part.clean_final) for part in self._parts]  # the model's output
        # Of the metric of all examples on both prompts: it depends on the metric, the labels and the ablation, too.
        self.ends = sha256(repr((measure, clean.tolist(), corrupted.tolist())).encode()).hexdigest()

    @torch.no_grad()
    def __call__(self, mask: Mask) -> float:
        plan = plan_of(self._model, Circuit.of_mask(self._model.graph, mask))
        values = []
        for part, goal in zip(self._parts, self._goals, strict=True):
            output = self._output(part, final_reads(part, [plan])[0])
            distance = (goal.exp() * (goal - output)).sum(-1) if self._measure == "kl" else (output - goal).abs()
            values.append(distance.double())
        mean = float(torch.cat(values).mean()) / self._unit
        if math.isnan(mean):
            raise InputError(
                f"acdc cannot go on: the output of a circuit on {self._task.name!r} is not a finite number. "
                "Use --dtype float32, or another metric."
            )
        return mean

    def _output(self, part: Prepared, final: Tensor) -> Tensor:
        """The metric (batch,), or log-probabilities (batch, vocab), from what ``logits`` reads."""
        if self._measure == "kl":
            return part.model.unembed(final).double().log_softmax(-1)
        return metric_of(part.model, self._task.metric, final[None], part.batch.labels)[0]
