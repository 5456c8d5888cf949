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

The order has the edges that remain by |score|, and then the others by |score|. Its own size is the number of edges that
remain, so no other size is needed.

Cost: one run of a circuit for each edge that the search starts from, except edges removed without a run. The runs are
sequential: every decision depends on those before it. The set-up's activations stay in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from gradpath.circuit import Circuit
from gradpath.errors import InputError, UsageError
from gradpath.evaluation.patched_run import final_reads, plan_of
from gradpath.graph import Graph
from gradpath.prepared import Prepared, PreparedBatches, prepare
from gradpath.runtime.progress import progress_bar
from gradpath.scores import Scores
from gradpath.selection.ranking import Context, Order, selection, top
from gradpath.sweep import BATCH, PADDING, ROWS, check_affordable
from gradpath.tasks.metrics import metric_of

COST = 0.2  # passes over one example that one more circuit takes
Mask = Bool[Tensor, "source target"]


@selection("acdc")
def acdc(
    scores: Scores,
    context: Context,
    *,
    threshold: float = 0.01,
    among: float = 1.0,
    measure: Literal["metric", "kl"] = "metric",
    sure: bool = False,
) -> Order:
    """Visit all edges from the logits down, and remove those that change the output by less than a threshold.

    The number of edges follows from the threshold. ``sure`` allows a search that takes very long.
    """
    examples = context.examples("acdc", scores)
    if not 0 < among <= 1 or not threshold > 0:
        raise UsageError(f"acdc needs a threshold above 0, and among above 0 and up to 1: got {threshold} and {among}.")
    graph, ranked = scores.graph, top(scores).edges
    start = graph.mask_of(ranked[: max(1, round(among * graph.n_edges))]).view(graph.n_sources, -1)
    n_edges = int(start.sum())
    check_affordable(
        f"acdc on {n_edges:,} edges and {len(examples.pairs):,} examples",
        COST * n_edges * len(examples.pairs),
        "start from fewer edges with among=0.1, use fewer examples",
        sure=sure,
    )
    kept = _search(graph, start, threshold, _Distance(examples, measure)).flatten()[ranked]
    return Order(scores, torch.cat([ranked[kept], ranked[~kept]]), size=int(kept.sum()))


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


class _Distance:
    """How far a circuit's output is from the model's, on examples that are set up once."""

    @torch.no_grad()
    def __init__(self, examples: PreparedBatches, measure: str) -> None:
        model, task, pairs = examples.model, examples.task, examples.pairs
        self._model, self._task, self._measure = model, task, measure
        batches = pairs.tight_batches(ROWS, len(pairs), BATCH, PADDING)  # the same, whatever the limits
        self._parts = [prepare(model, batch.to(model.device), examples.ablation) for batch in batches]
        clean, corrupted = torch.cat([part.ends(task.metric) for part in self._parts], 1)
        unit = float((clean - corrupted).double().abs().mean()) if measure == "metric" else 1.0
        self._unit = unit or 1.0
        self._goals = [self._output(part, part.clean_final) for part in self._parts]  # the model's output

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
