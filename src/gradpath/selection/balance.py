r"""Selections that correct the ranking: ``balanced`` by the circuit's strength, ``stable`` by the score's sign.

``balanced``: the circuit of the n edges of largest |score| tends to be weaker than the model, and that of the largest
positive scores much stronger. A mix of both is as strong as the model. So the circuit has the largest edges of both
signs, and bisection finds the number of positive ones for which the mean metric of the circuit on the attribution
examples equals the model's. Cost: one set-up, and at most ``ROUNDS`` rounds, each with one run of a circuit per size.

``stable``: a score is a mean over examples, and a small mean of large numbers of both signs may be chance. So the
examples are resampled with replacement, ``RESAMPLES`` times, and an edge is stable if its score has the same sign in
nearly all samples (``SURE``). The circuit has the n stable edges of largest |score| among the ``WIDE`` n largest of
all; if there are too few, the largest of the others are added. Cost: the attribution once more, with a contraction for
each example, which takes the same multiplications. Memory does not grow with the number of examples: only a sum for
every sample and edge is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from gradpath.ablation import ablation_of, all_positions
from gradpath.attribution.attribute import rows_of_examples, score_batch
from gradpath.attribution.batch import places_on_path
from gradpath.attribution.methods import METHODS, Path, recorded_method
from gradpath.errors import UsageError
from gradpath.evaluation import evaluate_many
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
    searches = [_Search(scores, n) for n in counts]
    for _ in range(ROUNDS):
        unfinished = [search for search in searches if not search.done]
        if not unfinished:
            break
        circuits = [circuit_of(scores, search.order(search.n_positive)) for search in unfinished]
        results = evaluate_many(model, circuits, task, limits)
        gaps = distributed.on_first_rank(lambda: [result.faithfulness - 1 for result in results])  # noqa: B023
        for search, gap in zip(unfinished, gaps, strict=True):
            search.update(gap)
    return [search.order(search.best) for search in searches]


class _Search:
    """Bisection for the number of positive edges among n: more of them make a stronger circuit."""

    def __init__(self, scores: Scores, n: int) -> None:
        order, values = top(scores, scores.graph.n_edges), scores.values.flatten()
        positive = values[order] > 0
        self.n, self.sizes = n, values.abs()
        self.positive, self.others = order[positive], order[~positive]
        self.low = max(0, n - len(self.others))
        self.high = min(n, len(self.positive))
        # The search starts from the edges of ``top``, so its result is never further off.
        largest = self.sizes[torch.cat([self.positive, self.others])].sort(descending=True, stable=True).indices[:n]
        self.n_positive = int((largest < len(self.positive)).sum())
        self.best, self.best_gap = self.n_positive, float("inf")
        self.done = False

    def order(self, n_positive: int) -> Order:
        """The n edges of largest |score| with so many positive ones, by |score|."""
        mixed = torch.cat([self.positive[:n_positive], self.others[: self.n - n_positive]])
        return mixed[self.sizes[mixed].sort(descending=True, stable=True).indices]

    def update(self, gap: float) -> None:
        """Continue after the circuit with ``n_positive`` positive edges is too strong by ``gap`` of the behaviour."""
        if abs(gap) < self.best_gap:
            self.best, self.best_gap = self.n_positive, abs(gap)
        if gap < 0:
            self.low = self.n_positive + 1
        else:
            self.high = self.n_positive - 1
        self.done = abs(gap) <= CLOSE or self.low > self.high
        self.n_positive = (self.low + self.high) // 2


@selection("stable", measures=True, nested=False)
def stable(model: Transformer, task: Task, scores: Scores, counts: Sequence[int], limits: Limits = Limits()) -> Orders:
    """The n edges of largest |score| whose sign is the same in nearly all bootstrap samples of the examples."""
    order = top(scores, min(scores.graph.n_edges, WIDE * max(counts)))
    sums = _resampled(model, task, scores, order, limits)
    sign = scores.values.flatten()[order].sign()
    sure = (sums.sign() == sign).float().mean(0) >= SURE
    orders = []
    for n in counts:
        largest, is_sure = order[: WIDE * n], sure[: WIDE * n]
        orders.append(torch.cat([largest[is_sure], largest[~is_sure]])[:n])
    return orders


def _resampled(
    model: Transformer, task: Task, scores: Scores, edges: Order, limits: Limits
) -> Float[Tensor, "sample edge"]:
    """The sums of the edges' scores over samples of the examples, drawn with replacement."""
    path, options = _path_of(scores)
    ablation = ablation_of(scores.provenance.ablation, model, task, limits)
    pairs = all_positions(encode(task, model.tokenizer), ablation)
    at_once = limits.attribution(model, pairs, points=options.get("steps", 1), whole=path.whole(options))
    generator = torch.Generator(device="cpu").manual_seed(0)
    draws = torch.randint(len(pairs), (RESAMPLES, len(pairs)), generator=generator, device="cpu")
    # How often each sample draws each example, (sample, example).
    times = torch.zeros(draws.shape, device="cpu").scatter_add_(1, draws, torch.ones(draws.shape, device="cpu"))
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


def _path_of(scores: Scores) -> tuple[Path, dict[str, Any]]:
    """The path of the scores' method, and all of its options."""
    name = scores.provenance.method
    path = METHODS.get(str(name))
    if not isinstance(path, Path) or path.of == "nodes":
        raise UsageError(
            f"the selection 'stable' attributes each example again, which scores by {name!r} do not allow. "
            "Use edge scores of a path, such as eap-ig, or another selection."
        )
    return path, recorded_method(scores.provenance)[1]
