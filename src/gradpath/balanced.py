r"""``balanced``: as many edges that help and that hinder as make the circuit as strong as the model.

The n edges of largest |score| tend to give too little of the behaviour, those of largest positive score far
too much. Between them is a mix that gives what the model gives. So the n edges are the largest of both signs,
and how many of them are positive is found by bisection: the mean metric of the circuit on the attribution
examples should be the model's.

Cost: a round runs one circuit of every size that was asked for, after one set-up; up to ``ROUNDS`` of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gradpath import ranks
from gradpath.evaluation import Result, evaluate
from gradpath.model.transformer import Transformer
from gradpath.scores import Scores
from gradpath.selection import Order, circuit_of, top
from gradpath.tasks.task import Task

ROUNDS = 8
CLOSE = 0.01  # a circuit within this share of the model's behaviour needs no further round


def balanced(
    model: Transformer,
    task: Task,
    scores: Scores,
    counts: Sequence[int],
    *,
    batch_size: int = 20,
    memory: int | None = None,
) -> list[Order]:
    """As many positive edges among the n as make the circuit as strong, on average, as the model.

    For each of several sizes, by |score|; ``task`` holds the examples of the scores.
    """
    signed = _Signed.of(scores)
    searches = [_Search(signed, n) for n in counts]
    for _ in range(ROUNDS):
        open_ = [search for search in searches if not search.found]
        if not open_:
            break
        circuits = [circuit_of(scores, search.order(), prune=True) for search in open_]
        results = evaluate(model, circuits, task, batch_size=batch_size, memory=memory)
        gaps = ranks.from_first(partial(_gaps, results))
        for search, gap in zip(open_, gaps, strict=True):
            search.learn(gap)
    return [search.order(search.best) for search in searches]


def _gaps(results: list[Result]) -> list[float]:
    return [result.faithfulness - 1 for result in results]


@dataclass(frozen=True)
class _Signed:
    """Edges that help, and those that hinder or do nothing, each by |score|."""

    positive: Int[Tensor, " helpful"]
    rest: Int[Tensor, " other"]
    size: Float[Tensor, " flat"]  # |score|

    @classmethod
    def of(cls, scores: Scores) -> _Signed:
        order = top(scores, scores.graph.n_edges)
        values = scores.values.flatten()
        helps = values[order] > 0
        return cls(order[helps], order[~helps], values.abs())

    def positive_among_the_largest(self, n: int) -> int:
        """Where the search begins, so that what it finds is never further off than ``top``."""
        order = torch.cat([self.positive, self.rest])
        largest = self.size[order].sort(descending=True, stable=True).indices[:n]
        return int((largest < len(self.positive)).sum())

    def mix(self, n: int, n_positive: int) -> Order:
        mixed = torch.cat([self.positive[:n_positive], self.rest[: n - n_positive]])
        return mixed[self.size[mixed].sort(descending=True, stable=True).indices]


class _Search:
    """The search for the number of positive edges among n: more of them make a stronger circuit."""

    def __init__(self, signed: _Signed, n: int) -> None:
        self.signed, self.n = signed, n
        self.low = max(0, n - len(signed.rest))
        self.high = min(n, len(signed.positive))
        self.here = signed.positive_among_the_largest(n)
        self.best, self.best_gap = self.here, float("inf")
        self.found = False

    def order(self, n_positive: int | None = None) -> Order:
        return self.signed.mix(self.n, self.here if n_positive is None else n_positive)

    def learn(self, gap: float) -> None:
        """The circuit with ``here`` positive edges is too strong by ``gap``, a share of the behaviour."""
        if abs(gap) < self.best_gap:
            self.best, self.best_gap = self.here, abs(gap)
        if gap < 0:
            self.low = self.here + 1
        else:
            self.high = self.here - 1
        self.found = abs(gap) <= CLOSE or self.low > self.high
        self.here = (self.low + self.high) // 2
