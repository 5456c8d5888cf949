"""Running the model at the points of a path, for one batch of prompts.

A causal model computes the same on both prompts before the first token in which they differ, so the
positions are kept in two tensors. The *prefix* lies before, the *suffix* from there on. Only the suffix
has scores. A gradient at a suffix position flows through suffix positions alone, so the backward pass
of an attribution never enters the prefix, and the prefix of all points is run once, unless the path
itself moves it (``whole``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from gradpath.ablation import Ablation
from gradpath.attribution.methods import Goal, Options, Pair, Path, Unscored
from gradpath.errors import InputError
from gradpath.model.transformer import LayerRun, Past, Run, Transformer, at_least_float32
from gradpath.registry import failure_of
from gradpath.sweep import RUN_AT_ONCE
from gradpath.tasks.metrics import Metric, metric_of
from gradpath.tasks.task import Pairs

# Rows of the unembedding whose products are summed in the weights' precision, before they are added in float64.
GRAM_ROWS = 4096


@dataclass
class Passes:
    """Passes over the suffix, counted as they are made; a run of some of the layers counts as that share."""

    forward: float = 0.0
    backward: float = 0.0


@dataclass(frozen=True)
class Writes:
    """What the nodes wrote on the clean prompts minus what they wrote on the corrupted ones."""

    input: Tensor  # (row, d_model)
    heads: list[Tensor]  # per layer (head, row, d_head): ``written``
    mlps: list[Tensor]  # per layer (row, d_model)


def node_writes(x: Tensor, layers: Iterable[LayerRun]) -> list[Tensor]:
    """What the nodes of a run write, (batch, pos, ...), detached: input, then every layer's heads, then every MLP."""
    written = [(layer.written.detach(), layer.mlp_out.detach()) for layer in layers]
    return [x.detach(), *(heads for heads, _ in written), *(mlp for _, mlp in written)]


def write_differences(before: list[Tensor], after: list[Tensor]) -> Writes:
    """The differences of all nodes' writes in two runs, as ``node_writes`` gives them."""
    parts = [(at_least_float32(a) - at_least_float32(b)).flatten(0, 1) for a, b in zip(before, after, strict=True)]
    n_layers = len(parts) // 2
    heads = [part.transpose(0, 1).contiguous() for part in parts[1 : 1 + n_layers]]
    return Writes(parts[0], heads, parts[1 + n_layers :])


def write_of(model: Transformer, writes: Writes, source: int) -> Tensor:
    """x_u - x'_u of one source, (row, d_model)."""
    if source == 0:
        return writes.input
    layer, head = model.graph.place_of_source(source)
    if head == model.arch.n_heads:
        return writes.mlps[layer]
    w_o = at_least_float32(model.head_output_weights(layer))[:, head]
    return writes.heads[layer][head] @ w_o.T


@dataclass(frozen=True)
class LogitGram:
    """The Gram matrix W^T W of a model's unembedding W, computed when it is first used.

    Logits that are linear in the normalised final stream y have squared distances that need no logits::

        ||W y - W y'||^2 = (y - y')^T W^T W (y - y')

    So a distance costs a product with a (d_model, d_model) matrix at each position, not with the whole vocabulary.
    """

    model: Transformer

    @cached_property
    def matrix(self) -> Tensor:
        """W^T W, (d_model, d_model), in float64."""
        weights = self.model.unembedding
        total = weights.new_zeros(weights.shape[1], weights.shape[1], dtype=torch.float64)
        for rows in map(at_least_float32, torch.split(weights, GRAM_ROWS)):
            total += rows.T @ rows
        return total.to(self.model.device)


@dataclass(frozen=True)
class Front:
    """The run of the prefix: what the suffix reads from it, and what the rest of it is computed from."""

    past: list[Past]
    leaf: Tensor | None = None  # (batch, prefix pos, d_model) if the path moves the prefix
    stream: Tensor | None = None  # then, too: before the last layer, whose outputs the suffix does not read

    @staticmethod
    def moved(model: Transformer, leaf: Tensor) -> Front:
        past, stream = model.run_prefix(leaf)
        return Front(past, leaf, stream)


@dataclass(frozen=True)
class PointRun:
    """The run at one point, or at several stacked ones: its leaves, its activations, its logits.

    It does not refer back to its ``BatchRuns``: such a cycle would keep every batch's autograd graph alive
    until the garbage collector runs.
    """

    model: Transformer
    real: Tensor  # (batch, pos), over the whole prompt: which positions are not padding
    start: int  # of the suffix
    passes: Passes
    gram: LogitGram
    point: Tensor  # ([point], batch, pos, d_model), as the path gave it
    front: Front
    suffix: Tensor  # the leaf (point batch, suffix pos, d_model)
    run: Run
    final: Tensor  # (point batch, d_model): what logits reads at each prompt's last position

    @cached_property
    def logits(self) -> Tensor:
        """The logits of all tokens at each prompt's last position, (point batch, vocab)."""
        return self.model.unembed(self.final)

    def outputs(self, where: Literal["last", "all"]) -> list[Tensor]:
        """Logits at each prompt's last position, or at every real position."""
        if where == "last":
            return [self.logits]
        return [self.model.unembed(x) * real for x, real in self._everywhere]

    @cached_property
    def _everywhere(self) -> list[tuple[Tensor, Tensor]]:
        """What ``logits`` reads, (point batch, pos, d_model), and which positions are real, (batch, pos, 1)."""
        real = self.real[..., None]
        parts = [(self.run.final_in, real[:, self.start :])]
        if self.front.stream is not None:
            last_layer = self.model.above(len(self.model.layers) - 1)
            parts.append((last_layer.final_in(self.front.stream), real[:, : self.start]))
        return parts

    def goal(self, where: Literal["last", "all"]) -> Goal:
        """The output here, as a goal for the ``distance`` at other points."""
        return Goal(where, [x.detach() for x in self._compared(where)])

    def distance(self, goal: Goal) -> Tensor:
        """The squared distance of the logits here from those at the goal, of each example, (batch,)."""
        total = torch.zeros((), device=self.point.device)
        for here, there in zip(self._compared(goal.where), goal.parts, strict=True):
            gap = here - there
            product = gap @ self.gram.matrix if self._by_gram(goal.where) else gap
            total = total + (gap * product).flatten(1).sum(1)
        return total

    def _compared(self, where: Literal["last", "all"]) -> list[Tensor]:
        if not self._by_gram(where):
            return self.outputs(where)
        # In float64, because the difference of two of them may be small.
        return [self.model.final_norm(x).double() * real for x, real in self._everywhere]

    def _by_gram(self, where: Literal["last", "all"]) -> bool:
        # At the last position alone, the logits cost less than the Gram matrix.
        return where == "all" and self.model.arch.logit_cap is None

    def gradient(self, objective: Tensor) -> Tensor:
        """The gradient of the sum of ``objective`` at the point."""
        if not isinstance(objective, Tensor):
            raise InputError(
                "view.gradient takes a tensor with one number per example, made from view.outputs or view.distance: "
                f"got a {type(objective).__name__}."
            )
        leaves = [self.suffix] if self.front.leaf is None else [self.front.leaf, self.suffix]
        self.passes.backward += 1
        parts = torch.autograd.grad(objective.sum(), leaves, retain_graph=True)
        return torch.cat(parts, -2).view(self.point.shape)


@dataclass
class BatchRuns:
    """One batch of prompt pairs: its clean and corrupted runs, and how to run the model at a path's points.

    Both runs are made when they are first requested.
    """

    model: Transformer
    batch: Pairs
    metric: Metric
    whole: bool
    ablation: Ablation | None = None  # what a node writes instead of x'; None for the corrupted prompt
    at_once: int = RUN_AT_ONCE  # points of a stack
    passes: Passes = field(default_factory=Passes)
    gram: LogitGram | None = None  # if batches share it

    def __post_init__(self) -> None:
        model, batch = self.model, self.batch
        self.start = batch.start
        self.real = torch.arange(batch.clean.shape[1], device=model.device) <= batch.last[:, None]
        self._embeddings = model.embed(batch.clean)
        begin = 0 if self.whole else self.start
        corrupted, differs = model.embed(batch.corrupted), batch.clean != batch.corrupted
        self.pair = Pair(self._embeddings[:, begin:], corrupted[:, begin:], differs[:, begin:])
        self._gram = self.gram or LogitGram(model)
        self._written: dict[str, list[Tensor]] = {}  # what nodes write at the ends that were released

    @cached_property
    def _front(self) -> Front:
        """The prefix of both prompts."""
        if self.whole and self.start:
            return Front.moved(self.model, self._leaf(self._embeddings[:, : self.start]))
        with torch.no_grad():
            return Front(self.model.prefix(self._embeddings[:, : self.start]) if self.start else [])

    @property
    def past(self) -> list[Past]:
        """Keys and values of the prefix of both prompts."""
        return self._front.past

    @cached_property
    def clean(self) -> PointRun:
        """The run on the clean prompts."""
        return self._run(self.pair.clean, self._front)

    @cached_property
    def corrupted(self) -> PointRun:
        """The run on the corrupted prompts."""
        return self._run(self.pair.corrupted, self._front)

    def release(self) -> None:
        """Free the autograd graphs of both ends and keep what their nodes write.

        A path that requests an end again has it run again.
        """
        for end in ("clean", "corrupted"):
            point_run: PointRun | None = self.__dict__.pop(end, None)
            if point_run is not None:
                self._written[end] = node_writes(point_run.suffix, point_run.run.layers)
        if self.whole and len(self._written) == 2:
            self.__dict__.pop("_front", None)

    @cached_property
    def writes(self) -> Writes:
        """x_u - x'_u: what the nodes write on the clean prompt minus the corrupted one, or the ablation."""
        if self.ablation is None:
            ablated_writes = self._writes_at("corrupted")
        else:
            x, run = self.ablation.run(self.model, 1, self.batch.clean.shape[1])
            ablated_writes = node_writes(x, run.layers)
        return write_differences(self._writes_at("clean"), ablated_writes)

    def _writes_at(self, end: Literal["clean", "corrupted"]) -> list[Tensor]:
        """What the nodes write at an end. Corrupted prompts that no path has requested need no autograd graph."""
        if end in self._written:
            return self._written[end]
        if end == "clean" or end in self.__dict__:
            point_run: PointRun = getattr(self, end)
            return node_writes(point_run.suffix, point_run.run.layers)
        self.passes.forward += 1
        x = self.pair.corrupted[:, self.start if self.whole else 0 :]
        with torch.no_grad():
            layers = self.model.layer_runs(x, start=self.start, past=self.past)
            return node_writes(x, (layer for layer, _ in layers))

    def difference(self, source: int) -> Tensor:
        """x_u - x'_u of one source, in the precision of the model, (batch, pos, d_model)."""
        x = self.clean.suffix
        return write_of(self.model, self.writes, source).view_as(x).to(x.dtype)

    def gathered(self, index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """What a layer's heads gather with these projections of the suffix, (point batch, pos, head, d_head)."""
        model, layer = self.model, self.model.layers[index]
        place, n_points = model.position_info(self.start, q.shape[1]), len(q) // len(self.batch)
        past = model.keys_and_values(layer, k, v, place)
        past = past.after(repeated(self.past[index], n_points) if self.past else None)
        return model.attend(layer, model.queries(layer, q, place), past, place)

    def run_point(self, point: Any) -> PointRun:
        """Run the model at a point, or at several stacked ones, (point, batch, pos, d_model)."""
        if point is self.pair.clean:
            return self.clean
        if point is self.pair.corrupted:
            return self.corrupted
        if not isinstance(point, Tensor) or point.shape[-3:] != self.pair.clean.shape:
            got = tuple(point.shape) if isinstance(point, Tensor) else type(point).__name__
            raise InputError(
                f"a path has to yield points of shape {tuple(self.pair.clean.shape)}, or several stacked "
                f"in front: got {got}."
            )
        n_points = point.numel() // self.pair.clean.numel()
        if not (self.whole and self.start):
            return self._run(point, Front([repeated(past, n_points) for past in self.past]))
        return self._run(point, Front.moved(self.model, self._leaf(point[..., : self.start, :])))

    def metric_of(self, final: Tensor) -> Tensor:
        """The metric, from what ``logits`` reads at each last position, (point batch, d_model), as (point, batch)."""
        final = final.view(-1, len(self.batch), final.shape[-1])
        return metric_of(self.model, self.metric, final, self.batch.labels)

    def _run(self, point: Tensor, front: Front) -> PointRun:
        suffix = self._leaf(point[..., self.start :, :] if self.whole else point)
        run = self.model.run(suffix, start=self.start, past=front.past)
        self.passes.forward += len(suffix) // len(self.batch)
        final = self.at_last(run.final_in)
        return PointRun(self.model, self.real, self.start, self.passes, self._gram, point, front, suffix, run, final)

    def at_last(self, final_in: Tensor) -> Tensor:
        """What ``logits`` reads at each prompt's last position, of what it reads everywhere, (point batch, d_model)."""
        row = torch.arange(len(final_in), device=final_in.device)
        last = (self.batch.last - self.start).repeat(len(final_in) // len(self.batch))
        return final_in[row, last]

    @staticmethod
    def _leaf(x: Tensor) -> Tensor:
        """A tensor (point batch, pos, d_model) at which gradients can be taken."""
        return x.detach().flatten(0, -3).requires_grad_()


def run_path(runs: BatchRuns, path: Path, options: Options) -> Iterator[tuple[PointRun, bool]]:
    """Run a path's points in order, and say of each whether it is scored.

    Of a stack, ``runs.at_once`` points are run at a time. A ``PointRun`` holds its autograd graph: it is freed
    before the next point is run, provided that the caller drops it too.
    """
    points, point_run, is_first = path.function(runs.pair, **options), None, True
    while True:
        try:
            requested = points.send(point_run)  # nothing comes back for a stack
        except StopIteration:
            requested = None
        except Exception as problem:
            if failure := failure_of(f"the path {path.name}", path.function, problem):
                raise failure from problem
            raise
        point_run = None
        if not is_first:  # the first point may be an end that was run already
            runs.release()
        is_first = False
        if requested is None:
            return
        scored = not isinstance(requested, Unscored)
        point = requested.point if isinstance(requested, Unscored) else requested
        if isinstance(point, Tensor) and point.ndim == 4:
            for group in torch.split(point, runs.at_once):
                yield runs.run_point(group), scored
        else:
            point_run = runs.run_point(point)
            yield point_run, scored


def repeated(past: Past, n_points: int) -> Past:
    """Keys and values for several points stacked in front of the batch."""
    if n_points == 1:
        return past
    return Past(past.keys.repeat(n_points, 1, 1, 1), past.values.repeat(n_points, 1, 1, 1))
