r"""Selections that correct the ranking: ``balanced`` by the circuit's strength, ``stable`` by the score's sign.

``balanced``: the n edges of largest |score| tend to give too little of the behaviour, those of largest positive
score far too much. Between them is a mix that gives what the model gives. So the n edges are the largest of
both signs, and the number of positive ones is found by bisection: the mean metric of the circuit on the
attribution examples should equal the model's. Cost: a round runs one circuit of every size, after one set-up;
at most ``ROUNDS`` of them.

``stable``: a score is a mean over examples, and a small mean of large numbers of both signs is chance. So the
examples are resampled with replacement, ``RESAMPLES`` times, and an edge is stable if its score has the same
sign in nearly all samples (``SURE``). The n edges are the stable ones of largest |score| among the ``WIDE`` n
largest of all; where those are too few, the largest of the others fill up. Cost: the attribution once more,
with a contraction for each example, which takes the same multiplications. Memory does not grow with the
examples: only a sum for every sample and edge is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gradpath.ablation import ablation_of, all_positions
from gradpath.attribution.attribute import rows_of_examples, score_batch
from gradpath.attribution.batch import places_on_path
from gradpath.attribution.methods import METHODS, Path
from gradpath.errors import UsageError
from gradpath.evaluation import evaluate
from gradpath.limits import Limits
from gradpath.model.transformer import Transformer
from gradpath.runtime import distributed
from gradpath.scores import Scores
from gradpath.selection.ranking import Order, Orders, circuit_of, selection, top
from gradpath.sweep import sweep
from gradpath.tasks.task import Pairs, Task, encode

ROUNDS = 8
CLOSE = 0.01  # a circuit within this share of the model's behaviour needs no further round
RESAMPLES = 200
SURE = 0.95
WIDE = 4


@selection("balanced", measures=True, nested=False)
def balanced(
    model: Transformer, task: Task, scores: Scores, counts: Sequence[int], limits: Limits = Limits()
) -> Orders:
    """n edges, with the share of positive ones at which the circuit is as strong, on average, as the model.

    One order for each size, by |score|; ``task`` holds the examples of the scores.
    """
    signs = _BySign.of(scores)
    searches = [_Search(signs, n) for n in counts]
    for _ in range(ROUNDS):
        open_ = [search for search in searches if not search.done]
        if not open_:
            break
        circuits = [circuit_of(scores, search.order()) for search in open_]
        results = evaluate(model, circuits, task, batch_size=limits.batch_size, memory=limits.memory)
        gaps = distributed.on_first_rank(lambda: [result.faithfulness - 1 for result in results])  # noqa: B023
        for search, gap in zip(open_, gaps, strict=True):
            search.update(gap)
    return [search.order(search.best) for search in searches]


@dataclass(frozen=True)
class _BySign:
    """Positive edges, and the others, each by |score|."""

    positive: Int[Tensor, " positive"]
    rest: Int[Tensor, " other"]
    size: Float[Tensor, " flat"]  # |score|

    @classmethod
    def of(cls, scores: Scores) -> _BySign:
        order = top(scores, scores.graph.n_edges)
        values = scores.values.flatten()
        positive = values[order] > 0
        return cls(order[positive], order[~positive], values.abs())

    def positive_in_top(self, n: int) -> int:
        """Where the search starts, so that its result is never further off than ``top``."""
        order = torch.cat([self.positive, self.rest])
        largest = self.size[order].sort(descending=True, stable=True).indices[:n]
        return int((largest < len(self.positive)).sum())

    def mix(self, n: int, n_positive: int) -> Order:
        mixed = torch.cat([self.positive[:n_positive], self.rest[: n - n_positive]])
        return mixed[self.size[mixed].sort(descending=True, stable=True).indices]


class _Search:
    """Bisection for the number of positive edges among n: more of them make a stronger circuit."""

    def __init__(self, signs: _BySign, n: int) -> None:
        self.signs, self.n = signs, n
        self.low = max(0, n - len(signs.rest))
        self.high = min(n, len(signs.positive))
        self.here = signs.positive_in_top(n)
        self.best, self.best_gap = self.here, float("inf")
        self.done = False

    def order(self, n_positive: int | None = None) -> Order:
        return self.signs.mix(self.n, self.here if n_positive is None else n_positive)

    def update(self, gap: float) -> None:
        """The circuit with ``here`` positive edges is too strong by ``gap``, a share of the behaviour."""
        if abs(gap) < self.best_gap:
            self.best, self.best_gap = self.here, abs(gap)
        if gap < 0:
            self.low = self.here + 1
        else:
            self.high = self.here - 1
        self.done = abs(gap) <= CLOSE or self.low > self.high
        self.here = (self.low + self.high) // 2


@selection("stable", measures=True, nested=False)
def stable(model: Transformer, task: Task, scores: Scores, counts: Sequence[int], limits: Limits = Limits()) -> Orders:
    """The n edges of largest |score| whose sign is the same in nearly all bootstrap samples of the examples."""
    order = top(scores, min(scores.graph.n_edges, WIDE * max(counts)))
    sums = _resampled(model, task, scores, order, limits)
    sign = scores.values.flatten()[order].sign()
    sure = (sums.sign() == sign).float().mean(0) >= SURE
    return [_first(order[: WIDE * n], sure[: WIDE * n], n) for n in counts]


def _first(order: Order, sure: Tensor, n: int) -> Int[Tensor, " chosen"]:
    return torch.cat([order[sure], order[~sure]])[:n]


def _resampled(
    model: Transformer, task: Task, scores: Scores, edges: Order, limits: Limits
) -> Float[Tensor, "sample edge"]:
    """The sums of the edges' scores over samples of the examples, drawn with replacement."""
    path, options = _path_of(scores)
    ablation = ablation_of(scores.provenance.ablation, model, task, limits)
    pairs = all_positions(encode(task, model.tokenizer), ablation)
    at_once = limits.attribution(model, pairs, points=options.get("steps", 1), whole=path.whole(options))
    times = _draws(len(pairs))
    sums = torch.zeros(RESAMPLES, len(edges), device="cpu")

    def attribute(batch: Pairs) -> Tensor:
        [(each, _)] = score_batch(
            model, task.metric, path, options, batch, ablation=ablation, at_once=at_once.points, split=rows_of_examples
        )
        return times[:, batch.index] @ each.flatten(1)[:, edges].float()

    for part in sweep(
        attribute,
        pairs,
        at_once.examples,
        model=model,
        task=task,
        doing=f"the selection stable, by {path.name},",
        same=lambda: (model.identity, path.name, options, edges.numpy().tobytes()),
        places=partial(places_on_path, model, task.metric, path, options),
    ):
        sums += part
    return distributed.all_sum(sums)


def _draws(examples: int) -> Float[Tensor, "sample example"]:
    """How often each example is drawn in each sample."""
    generator = torch.Generator(device="cpu").manual_seed(0)
    draws = torch.randint(examples, (RESAMPLES, examples), generator=generator, device="cpu")
    once = torch.ones(draws.shape, device="cpu")
    return torch.zeros(draws.shape, device="cpu").scatter_add_(1, draws, once)


def _path_of(scores: Scores) -> tuple[Path, dict[str, Any]]:
    """The path that the scores were made with, and all of its options."""
    name = scores.about.get("method")
    path = METHODS.get(str(name))
    if not isinstance(path, Path) or path.of == "nodes":
        raise UsageError(
            f"the selection 'stable' attributes each example again, which scores by {name!r} do not allow. "
            "Use edge scores of a path, such as eap-ig, or another selection."
        )
    given = dict(scores.about.get("options", {}))
    if "steps" in path.defaults:
        given["steps"] = scores.about["steps"]
    return path, path.options(given)
