r"""Attribution: gradients along a path, contracted with what the nodes write, give edge scores.

::

    score(u -> v) = 1/N  sum over examples, positions of
                    (x_u - x'_u) . 1/k  sum over points p of  dL/d in_v (p)

x_u is what node u writes on the clean prompt, x'_u on the corrupted one, in_v what v reads before its norm, L
the metric. A positive score means that corrupting the edge lowers the metric. This is the paper's Eq. 5
(EAP-IG) and 9 (EAP-GP) with the path left open; EAP is the path of one point (its Eq. 4 has the gradient at x',
the EAP-IG library and we have it at x; ``clean-corrupted`` takes both). ``gradpath.reference`` computes the same
sum by its definition.

``score_batch`` is the equation for one batch, parts A and B of the paper's Algorithm 1. ``attribute`` sums over
batches (``Sums``). Both sides of the product are kept per head only as far as they have to be (``contraction``).

Cost: the path's own passes (``methods``), and one contraction per batch whatever the number of points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradpath import defaults
from gradpath._version import __version__
from gradpath.ablation import CORRUPTED, Ablation
from gradpath.attribution.batch import BatchRuns, LogitGram, Passes, run_path
from gradpath.attribution.contraction import Reads, contract
from gradpath.attribution.methods import Method, Options, Path, find_method
from gradpath.errors import GradpathError, UsageError, warn
from gradpath.model.transformer import Transformer
from gradpath.prepared import PreparedBatches
from gradpath.recipe import Facts, Recipe
from gradpath.registry import loaded_plugins
from gradpath.runtime import distributed
from gradpath.runtime.progress import bars
from gradpath.scores import Scores
from gradpath.sweep import RUN_AT_ONCE, SUM_AT_ONCE, Limits, own_settings, sweep
from gradpath.tasks.metrics import Metric
from gradpath.tasks.task import Pairs, Task

# Splits a batch's rows, (batch, suffix position) flattened, into groups that are scored separately.
Split = Callable[[Pairs], list[Tensor]]
BatchScores = list[tuple[Tensor, Passes]]  # after each number of points


def runs_for(
    method: Method,
    options: Options,
    model: Transformer,
    batch: Pairs,
    metric: Metric,
    ablation: Ablation | None = None,
    at_once: int = RUN_AT_ONCE,
    gram: LogitGram | None = None,
) -> BatchRuns:
    """The runs of a batch as a method needs them: with its rules, and of the whole prompt if it moves all of it."""
    if isinstance(method, Path):
        model = replace(model, rules=method.rules)
    return BatchRuns(model, batch.to(model.device), metric, method.whole(options), ablation, at_once, gram=gram)


def score_batch(
    runs: BatchRuns,
    method: Method,
    options: Options,
    *,
    stops: frozenset[int] = frozenset(),
    split: Split | None = None,
) -> BatchScores:
    """The scores of one batch, summed over its examples: the equation above without the mean over examples.

    They are (source, target), or (group, source, target) where ``split`` splits the rows of the batch into groups;
    after each number of points in ``stops`` and after all points.
    """
    model, batch = runs.model, runs.batch
    with torch.enable_grad():
        # 1. ``runs`` runs the clean and the corrupted prompt when it is first asked for x_u - x'_u, the difference of
        #    what every node u writes.
        if not isinstance(method, Path):
            return [(method.function(runs, **options).detach().cpu(), runs.passes)]
        groups = None if split is None else [rows.to(model.device) for rows in split(batch)]
        results, total, n_points = [], None, 0
        # 2. Run the points p of the path. At each one a backward pass gives dL/d in_v (p) at every target v.
        #    The gradients are summed over the points.
        for reads in _sums(runs, method, options, stops):
            # 3. Multiply the writes of every u by the gradients at every v, summed over positions.
            part = contract(model, runs.writes, reads, groups)
            total = part if total is None else total + part
            n_points += reads.n_points
            del reads  # before the next ones are summed
            if n_points in stops:
                results.append(((total / n_points).cpu(), replace(runs.passes)))
        if total is None:
            raise UsageError(f"a path has to yield at least one point: the method {method.name!r} yielded none.")
        # 4. Take the mean over the points.
        return [*results, ((total / n_points).cpu(), runs.passes)]


def _sums(runs: BatchRuns, path: Path, options: Options, stops: frozenset[int]) -> Iterator[Reads]:
    """The gradients summed over points: up to the next stop, or as many as should be held in memory."""
    reads, n_before = Reads(), 0
    for point_run, scored in run_path(runs, path, options):
        if scored:
            # Nothing comes back for a stack, so no other backward pass needs its graph.
            reads.add(runs.model, point_run.run, runs.metric_of(point_run.final), retain=point_run.point.ndim < 4)
            runs.passes.backward += len(point_run.suffix) // len(runs.batch)
        del point_run  # and with it its autograd graph, before the next point is run
        n_points = n_before + reads.n_points
        if scored and (n_points in stops or reads.n_points >= SUM_AT_ONCE):
            yield reads
            reads, n_before = Reads(), n_points
    if reads.n_points:
        yield reads


def attribute(
    model: Transformer,
    task: Task,
    method: str = defaults.METHOD,
    *,
    steps: int | None = None,
    per_example: bool = False,
    batch_size: int | None = None,
    memory: int | None = None,
    progress: bool = False,
    ablation: str = CORRUPTED,
    mean_over: Task | None = None,
    **options: Any,
) -> Scores:
    """Score every edge of the model on the task.

    The scores do not depend on the batch size, the order of the examples or their padding, beyond rounding.

    Args:
        model: The model.
        task: The examples to attribute.
        method: The method (``gradpath ls methods``); by default ``eap-ig``.
        steps: The number of points of the path; by default the method's own. Methods without steps ignore it,
            with a warning.
        per_example: Whether to store the scores of every example, too, in ``scores.examples``. They take four bytes
            for each example, source and target: 1 MB per example with SmolLM2.
        batch_size: The largest number of examples in a batch; by default it depends on prompt length and free memory.
        memory: A budget in bytes, weights included; by default the weights and half of the free memory.
        progress: Whether to show progress bars.
        ablation: What an edge outside the circuit carries instead of its source's output: ``corrupted``, ``zero``,
            ``mean`` or ``mean-positional``.
        mean_over: The task whose clean prompts the means are taken over; by default ``task`` itself.
        **options: Other options of the method.

    Returns:
        The scores.
    """
    chosen = find_method(method)
    if steps is not None and "steps" not in chosen.defaults:
        warn(f"the method {method!r} has no steps: steps={steps} is ignored.")
    elif steps is not None:
        options["steps"] = steps
    complete, limits = chosen.options(options), Limits(batch_size, memory)
    with own_settings(model), bars(progress):
        prepared = PreparedBatches(model, task, ablation, limits, mean_over=mean_over)
        return attribute_at_steps(prepared, chosen, complete, per_example=per_example)[-1]


def attribute_at_steps(
    prepared: PreparedBatches, method: Method, options: Options, *, stops: Sequence[int] = (), per_example: bool = False
) -> list[Scores]:
    """The scores after each number of points in ``stops``, and after all points, from one run of the path.

    ``options`` are all of the method's.
    """
    model, task, pairs = prepared.model, prepared.task, prepared.pairs
    method.check_metric(task.metric, options)
    method.check(model, pairs, options)
    points, whole = method.points(options), method.whole(options)
    batches, at_once = prepared.limits.attribution(model, pairs, points=points, whole=whole)
    split: Split | None = None
    if per_example and isinstance(method, Path):
        split = rows_of_examples
    elif per_example:  # what cannot split a batch can still score one example after another
        batches = list(pairs.batches(1))
    steps, shape, gram = [*stops, options.get("steps", 1)], model.graph.mask.shape, LogitGram(model)
    totals = torch.zeros((len(steps), *shape), dtype=torch.float64, device="cpu")
    # Forward and backward passes. Batches of one task may differ where a path depends on the prompts.
    passes = torch.zeros((len(steps), 2), device="cpu")
    # Zeros, so that the sum over ranks puts every example's scores in their place.
    examples = torch.zeros((len(pairs), *shape), dtype=torch.float32, device="cpu") if per_example else None

    def score(batch: Pairs) -> BatchScores:
        runs = runs_for(method, options, model, batch, task.metric, prepared.ablation, at_once, gram)
        results = score_batch(runs, method, options, stops=frozenset(stops), split=split)
        if examples is None:
            return results
        [(scores, made)] = results
        scores = scores[None] if split is None else scores
        examples[batch.index] = scores.float()
        return [(scores.sum(0), made)]

    def same() -> object:
        return method.name, options, stops, prepared.ablation_name

    bar = f"scoring {model.graph.n_edges:,} edges with {method.name}"
    for results in sweep(model, task, pairs, batches, score, doing=method.name, same=same, bar=bar):
        for i, (scores, made) in enumerate(results):
            totals[i] += scores
            passes[i] = passes[i].maximum(torch.tensor([made.forward, made.backward], device="cpu"))

    totals, passes = distributed.all_sum(totals), torch.stack(distributed.gathered(passes)).amax(0)
    values = (totals / len(pairs) * model.graph.mask).float()
    if not values.isfinite().all():
        raise GradpathError(
            f"the sum of {method.name}'s scores on {model.name or 'this model'} is too large for "
            "float32, though the scores of every batch are finite. Scale the metric down."
        )
    of_examples = None if examples is None else distributed.all_sum(examples) * model.graph.mask
    recipe, facts = _record(model, prepared, method, options, max(map(len, batches)))
    return [
        Scores(model.graph, x, recipe.changed(steps=n), facts.with_facts(passes=_counts(*made)), of_examples)
        for n, x, made in zip(steps, values, passes.tolist(), strict=True)
    ]


def _record(
    model: Transformer, prepared: PreparedBatches, method: Method, options: Options, batch_size: int
) -> tuple[Recipe, Facts]:
    """How the scores are made: enough to make them again; and what was observed meanwhile."""
    recipe = prepared.task.record.changed(
        model=model.name or None,
        dtype=model.dtype_name,
        bos=model.tokenizer is not None and model.tokenizer.prepend is not None,
        method=method.name,
        options={name: value for name, value in options.items() if name != "steps"},
        ablation=prepared.ablation_name,
    )
    facts = Facts(
        version=__version__,
        weights=model.digest,
        d_model=model.arch.d_model,
        examples=len(prepared.pairs),
        batch_size=batch_size,
        plugins=loaded_plugins(),
        data=dict(prepared.task.facts),
    )
    return recipe, facts


def _counts(forward: float, backward: float) -> dict[str, int | float]:
    rounded = {"forward": round(forward, 2), "backward": round(backward, 2)}
    return {name: int(n) if n.is_integer() else n for name, n in rounded.items()}


def rows_of_examples(batch: Pairs) -> list[Tensor]:
    """The rows of each example of a batch."""
    length = batch.clean.shape[1] - batch.start
    return [torch.arange(i * length, (i + 1) * length, device="cpu") for i in range(len(batch))]
