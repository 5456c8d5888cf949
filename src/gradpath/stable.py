r"""``stable``: the largest scores among those whose sign does not hang on which examples were drawn.

A score is a mean over examples, and a small mean of large numbers of both signs is chance. So the examples
are drawn again, with replacement, ``RESAMPLES`` times, and an edge is stable if its score has the same sign
in nearly all of those samples (``SURE``). The n edges are the stable ones of largest |score|, looked for
among the ``WIDE`` n largest of all; where those are too few, the largest of the others fill up.

Cost: the attribution once more, with a contraction for each example, which takes the same multiplications.
Memory does not grow with the examples: a sum for every sample and edge is all that is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gradpath import ranks
from gradpath.ablation import CORRUPTED, ablation_of, for_ablation
from gradpath.errors import UsageError
from gradpath.memory import batch_that_fits, in_shared_batches
from gradpath.method import METHODS
from gradpath.model.transformer import Transformer
from gradpath.nonfinite import watched
from gradpath.nonfinite_paths import of_path
from gradpath.paths import Path
from gradpath.scores import Scores
from gradpath.scoring import by_example, score_batch
from gradpath.selection import Order, top
from gradpath.tasks.task import Pairs, Task, encode

RESAMPLES = 200
SURE = 0.95
WIDE = 4


def stable(
    model: Transformer,
    task: Task,
    scores: Scores,
    counts: Sequence[int],
    *,
    batch_size: int = 20,
    memory: int | None = None,
) -> list[Order]:
    """The n edges of largest |score| whose sign is the same in nearly every sample of the examples."""
    order = top(scores, min(scores.graph.n_edges, WIDE * max(counts)))
    sums = _resampled(model, task, scores, order, batch_size, memory)
    sign = scores.values.flatten()[order].sign()
    sure = (sums.sign() == sign).float().mean(0) >= SURE
    return [_first(order[: WIDE * n], sure[: WIDE * n], n) for n in counts]


def _first(order: Order, sure: Tensor, n: int) -> Int[Tensor, " chosen"]:
    return torch.cat([order[sure], order[~sure]])[:n]


def _resampled(
    model: Transformer, task: Task, scores: Scores, edges: Order, batch_size: int, memory: int | None
) -> Float[Tensor, "sample edge"]:
    """The sums of the edges' scores over samples of the examples, drawn with replacement."""
    path, options = _method(scores)
    limits: Any = {"batch_size": batch_size, "memory": memory}
    ablation = ablation_of(scores.about.get("ablation", CORRUPTED), model, task, **limits)
    pairs = for_ablation(encode(task, model.tokenizer), ablation)
    whole = path.whole(options)
    size = batch_that_fits(model, pairs, batch_size, memory, points=options.get("steps", 1), whole=whole)
    times = _drawn(len(pairs))
    sums = torch.zeros(RESAMPLES, len(edges), device="cpu")

    def attribute(batch: Pairs) -> Tensor:
        [(each, _)] = score_batch(model, task.metric, path, options, ablation, batch, split=by_example)
        return times[:, batch.index] @ each.flatten(1)[:, edges].float()

    work = watched(
        attribute,
        lambda sums: [sums],
        model=model,
        task=task,
        doing=f"the selection stable, by {path.name},",
        places=partial(of_path, model, task.metric, path, options),
    )

    def asked() -> object:
        return model.identity, path.name, options, edges.numpy().tobytes()

    for part in in_shared_batches(work, pairs, size, asked=asked):
        sums += part
    return ranks.add_up(sums)


def _drawn(examples: int) -> Float[Tensor, "sample example"]:
    """How often each example is drawn in each sample."""
    generator = torch.Generator(device="cpu").manual_seed(0)
    draws = torch.randint(examples, (RESAMPLES, examples), generator=generator, device="cpu")
    once = torch.ones(draws.shape, device="cpu")
    return torch.zeros(draws.shape, device="cpu").scatter_add_(1, draws, once)


def _method(scores: Scores) -> tuple[Path, dict[str, Any]]:
    """The path that the scores were made with, and all of its options."""
    name = scores.about.get("method")
    path = METHODS.get(str(name))
    if not isinstance(path, Path):
        raise UsageError(
            f"the selection 'stable' attributes again, example by example, and scores by {name!r} cannot be "
            "made so. Use scores of a path, such as eap-ig, or another selection."
        )
    given = dict(scores.about.get("options", {}))
    if "steps" in path.defaults:
        given["steps"] = scores.about["steps"]
    return path, path.options(given)
