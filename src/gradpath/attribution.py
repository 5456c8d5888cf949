r"""Attribution: gradients along a path, contracted with what the nodes write, give edge scores.

::

    score(u -> v) = 1/N  sum over examples, positions of
                    (x_u - x'_u) . 1/k  sum over points p of  dL/d in_v (p)

x_u is what node u writes on the clean prompt, x'_u on the corrupted one, in_v what v reads before its
norm, L the metric. A positive score means that corrupting the edge lowers the metric. This is the paper's
Eq. 5 (EAP-IG) and 9 (EAP-GP) with the path left open; EAP is the path of one point (its Eq. 4 has the
gradient at x', the EAP-IG library and we have it at x; ``clean-corrupted`` takes both).

One batch goes through three phases, A and B of the paper's Algorithm 1:

1. run the clean and the corrupted prompt (``visit``), keep the difference of what the nodes wrote;
2. walk the path; at each scored point one backward pass gives the gradients at the projections' outputs,
   which are summed over the points (``contraction.Reads``);
3. contract both once (``contraction.contract``), whatever the number of points.

The cost is that of the path's passes (``paths``), and one contraction per batch. A path that is integrated
along (``increments``) has one contraction a point instead, each with the path's own change of the writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradpath import ranks
from gradpath._version import __version__
from gradpath.ablation import CORRUPTED, ablation_of, for_ablation
from gradpath.errors import GradpathError, UsageError
from gradpath.memory import Progress, batch_that_fits, in_shared_batches
from gradpath.method import Method
from gradpath.methods import find_method
from gradpath.model.transformer import Transformer
from gradpath.nodes import over_edges
from gradpath.nonfinite import of_prompts, watched
from gradpath.nonfinite_paths import of_path
from gradpath.paths import Path
from gradpath.scores import Scores
from gradpath.scoring import Split, score_batch
from gradpath.tasks.task import Pairs, Task, encode
from gradpath.visit import Passes


def attribute(
    model: Transformer,
    task: Task,
    method: str = "eap-gp",
    *,
    steps: int | None = None,
    batch_size: int = 20,
    memory: int | None = None,
    progress: Progress | None = None,
    ablation: str = CORRUPTED,
    mean_over: Task | None = None,
    **options: Any,
) -> Scores:
    """Score every edge of the model on the task.

    ``method`` is a registered one, ``steps`` its number of points (the method's default if not given,
    ignored by methods without any), ``options`` its other options. ``memory`` is a budget in bytes, weights
    included, by which batches are made smaller than ``batch_size``. ``progress`` is called with the number of
    examples of every finished batch. ``ablation`` is what stands in for a node over an edge that is left out,
    as in ``evaluate``: ``corrupted``, ``zero``, ``mean`` or ``mean-positional``, the means over the clean
    prompts of ``mean_over``, or of the task itself. The result does not depend on the batch size, the order
    of the examples or their padding, beyond rounding.
    """
    found = find_method(method)
    if steps is not None and "steps" in found.defaults:
        options["steps"] = steps
    chosen = found.options(options)
    wanted: Any = {"batch_size": batch_size, "memory": memory, "progress": progress}
    return scores_along(model, task, found, chosen, ablation=ablation, mean_over=mean_over, **wanted)[-1]


def scores_along(
    model: Transformer, task: Task, method: Method, options: dict[str, Any], **wanted: Any
) -> list[Scores]:
    """The scores of a path's first points, for each number in ``stops``, and last those of all its points.

    They come from one walk, as running sums. ``options`` are all of the method's; one that is no path has no
    stops. What else can be wanted: see ``means``.
    """
    pairs = encode(task, model.tokenizer)
    found = means(model, task, pairs, method, options, **wanted)
    if method.of == "nodes":
        found = [(over_edges(model.graph, x[:, model.graph.logits]), about) for x, about in found]
    return [Scores(model.graph, values, about) for values, about in found]


def means(
    model: Transformer,
    task: Task,
    pairs: Pairs,
    method: Method,
    options: dict[str, Any],
    *,
    stops: Sequence[int] = (),
    groups: tuple[int, Split] | None = None,
    batch_size: int,
    memory: int | None = None,
    progress: Progress | None = None,
    ablation: str = CORRUPTED,
    mean_over: Task | None = None,
) -> list[tuple[Tensor, dict[str, Any]]]:
    """The mean scores over all pairs, (source, target), and how they were made: at each stop and at the end.

    With ``groups``, so many of them and how they split the rows of a batch, (group, source, target).
    """
    _check_fit(model, method, ablation)
    instead = ablation_of(ablation, model, mean_over or task, batch_size=batch_size, memory=memory)
    pairs, steps = for_ablation(pairs, instead), [*stops, options.get("steps", 1)]
    method.check(model, len(pairs), options)
    n_groups, split = groups or (1, None)
    size = batch_that_fits(
        model,
        pairs,
        batch_size,
        memory,
        points=method.points(options),
        whole=method.whole(options),
        results=len(steps) * n_groups,
    )
    shape = (len(steps), n_groups, model.graph.n_sources, model.graph.n_targets)
    totals = torch.zeros(shape if groups else (shape[0], *shape[2:]), dtype=torch.float64, device="cpu")
    passes = [Passes() for _ in steps]
    places = partial(of_prompts, model, task.metric)
    if isinstance(method, Path):
        places = partial(of_path, model, task.metric, method, options)
    score = partial(score_batch, model, task.metric, method, options, instead)
    work = watched(
        partial(score, stops=frozenset(stops), split=split),
        lambda parts: [scores for scores, _ in parts],
        model=model,
        task=task,
        doing=method.name,
        places=places,
    )

    def asked() -> object:
        spans = None if pairs.spans is None else pairs.spans.numpy().tobytes()
        return model.identity, method.name, options, stops, ablation, spans

    for parts in in_shared_batches(work, pairs, size, progress, asked=asked):
        for i, (scores, made) in enumerate(parts):
            totals[i] += scores
            passes[i] = passes[i].or_more(made)
    totals = ranks.add_up(totals)
    about = {
        "version": __version__,
        "model": model.name,
        "task": task.name,
        "data": dict(task.about),
        "method": method.name,
        "of": method.of,
        "options": {name: value for name, value in options.items() if name != "steps"},
        "ablation": ablation,
        "examples": len(pairs),
        "batch_size": size,
        "bos": model.tokenizer is not None and model.tokenizer.prepend is not None,
        "dtype": str(model.dtype).removeprefix("torch."),
        "d_model": model.arch.d_model,
    }
    return [
        (_mean(model, method, total, len(pairs)), {**about, "steps": k, "passes": made.counted})
        for k, total, made in zip(steps, totals, (x.most_of_any_rank() for x in passes), strict=True)
    ]


def _check_fit(model: Transformer, method: Method, ablation: str) -> None:
    """Refuse what a method cannot do, before anything is run."""
    if isinstance(method, Path) and method.increments and ablation != CORRUPTED:
        raise UsageError(
            f"{method.name} multiplies by what nodes write along its own path, which ends at the corrupted "
            f"prompt: it cannot be used with the ablation {ablation!r}. Use eap-ig."
        )
    if not isinstance(method, Path) or method.of == "nodes":
        model.check_one_device(method.name)


def _mean(model: Transformer, method: Method, total: Tensor, examples: int) -> Tensor:
    values = (total / examples * model.graph.mask).float()
    if not values.isfinite().all():
        raise GradpathError(
            f"{method.name} gave a score that is not a finite number on {model.name or 'this model'}, though "
            "every batch gave finite ones: the sum is too large. Use a metric that is smaller."
        )
    return values
