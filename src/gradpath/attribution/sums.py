"""The scores of batches, summed to those of a task: one sum for each number of points, split by span or by example."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradpath.attribution.batch import Passes
from gradpath.attribution.methods import Method, Path
from gradpath.attribution.node_scores import over_edges
from gradpath.errors import GradpathError
from gradpath.model.transformer import Transformer
from gradpath.runtime import distributed
from gradpath.scores import Scores, SpanScores
from gradpath.tasks.spans import Labels
from gradpath.tasks.task import Pairs

# Splits a batch's rows, (batch, suffix position) flattened, into groups that are scored separately.
Split = Callable[[Pairs], list[Tensor]]
BatchScores = list[tuple[Tensor, Passes]]  # after each number of points


def rows_of_examples(batch: Pairs) -> list[Tensor]:
    """The rows of each example of a batch."""
    length = batch.clean.shape[1] - batch.start
    return [torch.arange(i * length, (i + 1) * length, device="cpu") for i in range(len(batch))]


def _rows_of_spans(n_spans: int, batch: Pairs) -> list[Tensor]:
    """The rows of a batch's suffix that are in each span."""
    assert batch.spans is not None
    at = batch.spans[:, batch.start :].flatten()
    return [(at == i).nonzero()[:, 0] for i in range(n_spans)]


class Sums:
    """The sums over the batches of a task.

    Args:
        model: The model.
        method: The method that scores the batches.
        steps: The numbers of points after which there are scores.
        n_examples: The number of examples of the task.
        spans: The spans that the scores are split by.
        per_example: Whether the scores of every example are kept, too.
    """

    def __init__(
        self,
        model: Transformer,
        method: Method,
        steps: Sequence[int],
        n_examples: int,
        spans: Labels | None,
        per_example: bool,
    ) -> None:
        self.model, self.method, self.steps, self.n_examples, self.spans = model, method, steps, n_examples, spans
        self.split: Split | None = None
        if spans is not None:
            self.split = partial(_rows_of_spans, len(spans.names))
        elif per_example and isinstance(method, Path) and method.of != "nodes":
            self.split = rows_of_examples
        shape = () if spans is None else (len(spans.names),)
        pairs = (model.graph.n_sources, model.graph.n_targets)
        self._totals = torch.zeros((len(steps), *shape, *pairs), dtype=torch.float64, device="cpu")
        self._passes = [Passes() for _ in steps]
        # Zeros, so that the sum over ranks puts every example's scores in their place.
        self._examples = torch.zeros((n_examples, *pairs), dtype=torch.float32, device="cpu") if per_example else None

    @property
    def n_results(self) -> int:
        """How many matrices of scores are summed."""
        return len(self.steps) * (1 if self.spans is None else len(self.spans.names))

    def of_batch(self, batch: Pairs, results: BatchScores) -> BatchScores:
        """The sums over a batch; the scores of its examples are kept if they were asked for."""
        if self._examples is None:
            return results
        [(scores, passes)] = results
        scores = scores[None] if self.split is None else scores
        self._examples[batch.index] = scores.float()
        return [(scores.sum(0), passes)]

    def add(self, batches: Iterable[BatchScores]) -> None:
        """Add the scores of all batches."""
        for results in batches:
            for i, (scores, passes) in enumerate(results):
                self._totals[i] += scores
                self._passes[i] = self._passes[i].or_more(passes)

    def scores(self, about: dict[str, Any], positions: str | None) -> list[Scores]:
        """The means over the examples of all ranks, for each number of points."""
        graph, results = self.model.graph, []
        examples = None if self._examples is None else self._of_examples(distributed.all_sum(self._examples))
        for steps, total, passes in zip(self.steps, distributed.all_sum(self._totals), self._passes, strict=True):
            own = {**about, "steps": steps, "passes": passes.most_of_any_rank().counted}
            values = self._mean(total)
            if self.spans is None:
                results.append(Scores(graph, values, own, examples=examples))
            else:
                by_span = SpanScores(self.spans.names, values, self.spans.reach())
                results.append(Scores.of_spans(graph, by_span, {**own, "positions": positions}))
        return results

    def _of_examples(self, values: Tensor) -> Tensor:
        """The scores of every example, (example, source, target), in the form of ``_mean``."""
        graph = self.model.graph
        if self.method.of == "nodes":
            return torch.stack([over_edges(graph, one[:, graph.logits]) for one in values])
        return values * graph.mask

    def _mean(self, total: Tensor) -> Tensor:
        graph = self.model.graph
        values = (total / self.n_examples * graph.mask).float()
        if not values.isfinite().all():
            raise GradpathError(
                f"the sum of {self.method.name}'s scores on {self.model.name or 'this model'} is too large for "
                "float32, though the scores of every batch are finite. Scale the metric down."
            )
        if self.method.of == "nodes":
            return over_edges(graph, values[:, graph.logits])
        return values
