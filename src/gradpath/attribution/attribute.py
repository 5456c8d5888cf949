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

Cost: the path's own passes (``methods``), and one contraction per batch whatever the number of points. A path
that is integrated along (``increments``) needs one contraction per point instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradpath import defaults
from gradpath._version import __version__
from gradpath.ablation import CORRUPTED, Ablation, ablation_of, all_positions
from gradpath.attribution.batch import (
    BatchRuns,
    Passes,
    Writes,
    node_writes,
    places_on_path,
    run_path,
    write_differences,
)
from gradpath.attribution.contraction import NodeReads, Reads, contract, over_edges
from gradpath.attribution.methods import Method, Options, Path, find_method
from gradpath.errors import GradpathError, UsageError, warn
from gradpath.limits import RUN_AT_ONCE, SUM_AT_ONCE, Limits
from gradpath.model.transformer import Transformer
from gradpath.registry import loaded_plugins
from gradpath.runtime import distributed
from gradpath.runtime.progress import Phase
from gradpath.scores import Scores, SpanScores
from gradpath.sweep import Progress, ShowProgress, own_settings, shown, sweep, units
from gradpath.tasks.metrics import Metric
from gradpath.tasks.spans import PositionSpans, spans_of
from gradpath.tasks.task import Pairs, Task, encode

# Splits a batch's rows, (batch, suffix position) flattened, into groups that are scored separately.
Split = Callable[[Pairs], list[Tensor]]
BatchScores = list[tuple[Tensor, Passes]]  # after each number of points
PRICE = 1.5  # of a counted layer, in those of a measured circuit, for the progress bar: measured on SmolLM2


def score_batch(
    model: Transformer,
    metric: Metric,
    method: Method,
    options: Options,
    batch: Pairs,
    *,
    ablation: Ablation | None = None,
    stops: frozenset[int] = frozenset(),
    at_once: int = RUN_AT_ONCE,
    split: Split | None = None,
    runs: BatchRuns | None = None,
) -> BatchScores:
    """The scores of one batch, summed over its examples: the equation above without the mean over examples.

    Args:
        model: The model.
        metric: The metric L.
        method: The method, most often a path.
        options: All options of the method.
        batch: The examples.
        ablation: What replaces x'_u; by default the write on the corrupted prompt.
        stops: Numbers of points after which the scores so far are returned, too.
        at_once: The largest number of points of a stack that are run together.
        split: Splits the rows of the batch into groups that are scored separately.
        runs: The batch's clean and corrupted runs, if they are there already.

    Returns:
        The scores, (source, target) or (group, source, target), and the passes made, after each stop and after all
        points.
    """
    if isinstance(method, Path):
        model = replace(model, rules=method.rules(options))
    with torch.enable_grad():
        # 1. Run the clean and the corrupted prompt: x_u - x'_u, the difference of what every node u writes.
        if runs is None:
            runs = BatchRuns(model, batch.to(model.device), metric, method.whole(options), ablation, at_once)
        if not isinstance(method, Path):
            return [(method.function(runs, **options).detach().cpu(), runs.passes)]
        groups = None if split is None else [rows.to(model.device) for rows in split(batch)]
        results, total, n_points = [], None, 0
        # 2. Run the points p of the path. At each one a backward pass gives dL/d in_v (p) at every target v.
        #    The gradients are summed over the points.
        terms = _increments(runs, method, options) if method.increments else _sums(runs, method, options, stops)
        for writes, reads in terms:
            # 3. Multiply the writes of every u by the gradients at every v, summed over positions.
            part = contract(model, writes, reads, groups)
            total = part if total is None else total + part
            n_points += reads.n_points
            del writes, reads  # before the next ones are summed
            if n_points in stops:
                results.append(((total / n_points).cpu(), replace(runs.passes)))
        if total is None:
            raise UsageError(f"a path has to yield at least one point: the method {method.name!r} yielded none.")
        # 4. Take the mean over the points. Increments along a path are an integral: they are summed.
        return [*results, ((total if method.increments else total / n_points).cpu(), runs.passes)]


def _sums(
    runs: BatchRuns, path: Path, options: Options, stops: frozenset[int]
) -> Iterator[tuple[Writes, Reads | NodeReads]]:
    """The gradients summed over points: up to the next stop, or as many as should be held in memory."""
    new = NodeReads if path.of == "nodes" else Reads
    reads, n_before = new(), 0
    for point_run, scored in run_path(runs, path, options):
        if scored:
            # Nothing comes back for a stack, so no other backward pass needs its graph.
            reads.add(runs.model, point_run.run, runs.metric_of(point_run.final), retain=point_run.point.ndim < 4)
            runs.passes.backward += len(point_run.suffix) // len(runs.batch)
        del point_run  # and with it its autograd graph, before the next point is run
        n_points = n_before + reads.n_points
        if scored and (n_points in stops or reads.n_points >= SUM_AT_ONCE):
            yield runs.writes, reads
            reads, n_before = new(), n_points
    if reads.n_points:
        yield runs.writes, reads


def _increments(runs: BatchRuns, path: Path, options: Options) -> Iterator[tuple[Writes, Reads]]:
    r"""The path integral: gradients times the change of the nodes' own writes along the path.

    Methods that average gradients multiply them by x_u - x'_u, whatever the path. That is the change of x_u
    along the path only where u writes linearly along it, as ``input`` does on the straight line. The path
    integral multiplies each stretch by its own change,

        score(u -> v) = sum over positions, stretches j of
                        (x_u(p_j) - x_u(p_(j+1))) . (g_v(p_j) + g_v(p_(j+1))) / 2,     g_v(p) = dL/d in_v (p)

    which, ordered by points, is at each of them half of what u writes at the point before minus what it writes
    at the point after (at the ends, the end itself replaces the missing one). One contraction per point.
    """
    written: list[list[Tensor]] = []  # at the last points, three at most
    waiting: Reads | None = None  # the gradients at the last point, until the next one is known
    for point_run, scored in run_path(runs, path, options):
        if scored:
            written = [*written, node_writes(point_run.suffix, point_run.run.layers)][-3:]
            if waiting is not None:
                yield _half_change(written[0], written[-1]), waiting
            waiting = Reads()
            waiting.add(runs.model, point_run.run, runs.metric_of(point_run.final))
            runs.passes.backward += 1
        del point_run  # and with it its autograd graph, before the next point is run
    if waiting is not None:
        yield _half_change(written[-2:][0], written[-1]), waiting


def _half_change(before: list[Tensor], after: list[Tensor]) -> Writes:
    writes = write_differences(before, after)
    return Writes(writes.input / 2, [part / 2 for part in writes.heads], [part / 2 for part in writes.mlps])


def attribute(
    model: Transformer,
    task: Task,
    method: str = defaults.METHOD,
    *,
    steps: int | None = None,
    positions: str | None = None,
    per_example: bool = False,
    batch_size: int | None = None,
    memory: int | None = None,
    progress: ShowProgress = None,
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
        positions: ``span`` or ``token`` to split the scores by part of the prompt or by token.
        per_example: Whether to store the scores of every example, too, in ``scores.examples``. They take four bytes
            for each example, source and target: 1 MB per example with SmolLM2.
        batch_size: The largest number of examples in a batch; by default it depends on prompt length and free memory.
        memory: A budget in bytes, weights included; by default the weights and half of the free memory.
        progress: True for a progress bar; or a function, called with the number of examples of each finished batch.
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
    complete = chosen.options(options)
    with own_settings(model), shown(progress, lambda: phase_of(model, task, chosen, complete)) as progress:
        return attribute_at_steps(
            model,
            task,
            chosen,
            complete,
            positions=positions,
            per_example=per_example,
            limits=Limits(batch_size, memory),
            progress=progress,
            ablation=ablation,
            mean_over=mean_over,
        )[-1]


def phase_of(model: Transformer, task: Task, method: Method, options: Options) -> Phase:
    """The work of an attribution, for a progress bar."""
    what = f"scoring {model.graph.n_edges:,} edges with {method.name}"
    return Phase(what, units(model, task, method.passes(model, options)), PRICE)


def attribute_at_steps(
    model: Transformer,
    task: Task,
    method: Method,
    options: Options,
    *,
    stops: Sequence[int] = (),
    positions: str | None = None,
    per_example: bool = False,
    limits: Limits = Limits(),
    progress: Progress | None = None,
    ablation: str = CORRUPTED,
    mean_over: Task | None = None,
) -> list[Scores]:
    """The scores after each number of points in ``stops``, and after all points, from one run of the path.

    ``options`` are all of the method's. The other arguments are those of ``attribute``.
    """
    _check_fit(model, method, ablation, positions, per_example)
    pairs, spans = _encoded(model, task, positions)
    method.check_metric(task.metric, options)
    ablation_writes = ablation_of(ablation, model, mean_over or task, limits)
    pairs = all_positions(pairs, ablation_writes)
    method.check(model, pairs, options)
    sums = Sums(model, method, [*stops, options.get("steps", 1)], len(pairs), spans, per_example)
    points, whole = method.points(options), method.whole(options)
    at_once = limits.attribution(model, pairs, points=points, whole=whole, results=sums.n_results)
    if per_example and sums.split is None:
        # What cannot split a batch can still score one example after another.
        at_once = replace(at_once, examples=1, batches=None)

    def score(batch: Pairs) -> BatchScores:
        results = score_batch(
            model,
            task.metric,
            method,
            options,
            batch,
            ablation=ablation_writes,
            stops=frozenset(stops),
            at_once=at_once.points,
            split=sums.split,
        )
        return sums.of_batch(batch, results)

    for results in sweep(
        score,
        pairs,
        at_once.examples,
        model=model,
        task=task,
        doing=method.name,
        same=lambda: (model.identity, method.name, options, stops, ablation, spans and spans.at.numpy().tobytes()),
        places=partial(places_on_path, model, task.metric, method, options),
        progress=progress,
        batches=at_once.batches,
    ):
        sums.add(results)
    return sums.scores(_about(model, task, method, options, ablation, len(pairs), at_once.largest), positions)


def _encoded(model: Transformer, task: Task, positions: str | None) -> tuple[Pairs, PositionSpans | None]:
    """The token ids, and the spans of their positions if the scores are split by them."""
    pairs = encode(task, model.tokenizer)
    if positions is None:
        return pairs, None
    spans = spans_of(task, pairs, model.tokenizer, positions)
    return replace(pairs, spans=spans.at), spans


def _check_fit(model: Transformer, method: Method, ablation: str, positions: str | None, per_example: bool) -> None:
    """Refuse what a method cannot do, before anything is run."""
    if per_example and positions is not None:
        raise UsageError(
            "scores can be kept per example or split by position, not both: leave out per_example or positions."
        )
    if isinstance(method, Path) and method.increments and ablation != CORRUPTED:
        raise UsageError(
            f"{method.name} integrates along a path that ends at the corrupted prompt, so it cannot be used with the "
            f"ablation {ablation!r}. Use eap-ig, or the ablation {CORRUPTED!r}."
        )
    if not isinstance(method, Path) or method.of == "nodes":
        model.check_one_device(method.name)
        if positions is not None:
            raise UsageError(f"{method.name} cannot be split by position: only paths that score edges can. Use eap-ig.")


def _about(
    model: Transformer, task: Task, method: Method, options: Options, ablation: str, examples: int, size: int
) -> dict[str, Any]:
    """How the scores were made, as plain values: enough to make them again."""
    return {
        "version": __version__,
        "model": model.name,
        "weights": model.digest,
        "task": task.name,
        "data": dict(task.about),
        "method": method.name,
        "of": method.of,
        "options": {name: value for name, value in options.items() if name != "steps"},
        "ablation": ablation,
        "examples": examples,
        "batch_size": size,
        "bos": model.tokenizer is not None and model.tokenizer.prepend is not None,
        "dtype": model.dtype_name,
        "d_model": model.arch.d_model,
        **({"plugins": plugins} if (plugins := loaded_plugins()) else {}),
    }


class Sums:
    """The scores of a task's batches, summed: one sum for each number of points, split by span or by example.

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
        spans: PositionSpans | None,
        per_example: bool,
    ) -> None:
        self.model, self.method, self.steps, self.n_examples, self.spans = model, method, steps, n_examples, spans
        self.split: Split | None = None
        if spans is not None:
            self.split = partial(_rows_of_spans, len(spans.names))
        elif per_example and isinstance(method, Path) and method.of != "nodes":
            self.split = rows_of_examples
        shape = () if spans is None else (len(spans.names),)
        pairs = model.graph.mask.shape  # (source, target)
        self._totals = torch.zeros((len(steps), *shape, *pairs), dtype=torch.float64, device="cpu")
        # Forward and backward passes. Batches of one task may differ where a path depends on the prompts.
        self._passes = torch.zeros((len(steps), 2), device="cpu")
        # Zeros, so that the sum over ranks puts every example's scores in their place.
        self._examples = torch.zeros((n_examples, *pairs), dtype=torch.float32, device="cpu") if per_example else None

    @property
    def n_results(self) -> int:
        """How many matrices of scores are summed."""
        return len(self.steps) * (1 if self.spans is None else len(self.spans.names))

    def of_batch(self, batch: Pairs, results: BatchScores) -> BatchScores:
        """The sums over a batch; the scores of its examples are kept if they were requested."""
        if self._examples is None:
            return results
        [(scores, passes)] = results
        scores = scores[None] if self.split is None else scores
        self._examples[batch.index] = scores.float()
        return [(scores.sum(0), passes)]

    def add(self, results: BatchScores) -> None:
        """Add the scores of a batch."""
        for i, (scores, passes) in enumerate(results):
            self._totals[i] += scores
            self._passes[i] = self._passes[i].maximum(torch.tensor([passes.forward, passes.backward], device="cpu"))

    def scores(self, about: dict[str, Any], positions: str | None) -> list[Scores]:
        """The means over the examples of all ranks, for each number of points."""
        graph, results = self.model.graph, []
        totals, most = distributed.all_sum(self._totals), distributed.all_max(self._passes)
        examples = None if self._examples is None else self._of_examples(distributed.all_sum(self._examples))
        for steps, total, passes in zip(self.steps, totals, most.tolist(), strict=True):
            counts = dict(zip(("forward", "backward"), (round(n, 2) for n in passes), strict=True))
            counts = {name: int(n) if n.is_integer() else n for name, n in counts.items()}
            about_steps = {**about, "steps": steps, "passes": counts}
            values = self._mean(total)
            if self.spans is None:
                results.append(Scores(graph, values, about_steps, examples=examples))
            else:
                by_span = SpanScores(self.spans.names, values, self.spans.reach())
                results.append(Scores.of_spans(graph, by_span, {**about_steps, "positions": positions}))
        return results

    def _of_examples(self, values: Tensor) -> Tensor:
        """The scores of every example, (example, source, target), in the form of ``_mean``."""
        graph = self.model.graph
        if self.method.of == "nodes":
            return torch.stack([over_edges(graph, example[:, graph.logits]) for example in values])
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


def rows_of_examples(batch: Pairs) -> list[Tensor]:
    """The rows of each example of a batch."""
    length = batch.clean.shape[1] - batch.start
    return [torch.arange(i * length, (i + 1) * length, device="cpu") for i in range(len(batch))]


def _rows_of_spans(n_spans: int, batch: Pairs) -> list[Tensor]:
    """The rows of a batch's suffix that are in each span."""
    assert batch.spans is not None
    at = batch.spans[:, batch.start :].flatten()
    return [(at == i).nonzero()[:, 0] for i in range(n_spans)]
