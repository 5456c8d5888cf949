"""Running the model at the points of a path, for one batch of prompts.

A causal model computes the same on both prompts before the first token in which they differ, so the
positions are kept in two tensors. The *prefix* lies before, the *suffix* from there on. Only the suffix
has scores. A gradient at a suffix position flows through suffix positions alone, so the backward pass
of an attribution never enters the prefix, and the prefix of all points is run once, unless the path
itself moves it (``whole``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from gradpath import ranks
from gradpath.ablation import Ablation
from gradpath.contraction import Writes, write_differences
from gradpath.errors import InputError
from gradpath.memory import RUN_AT_ONCE
from gradpath.model.transformer import Past, Run, Transformer
from gradpath.paths import Look, Pair, Path, Points
from gradpath.tasks.metrics import Metric
from gradpath.tasks.task import Pairs


@dataclass
class Passes:
    """How many passes over the suffix were made, counted as they happen; a part of the layers is a part."""

    forward: float = 0.0
    backward: float = 0.0

    @property
    def counted(self) -> dict[str, int | float]:
        """As numbers to show: whole where they are."""
        rounded = {name: round(n, 2) for name, n in vars(self).items()}
        return {name: int(n) if n.is_integer() else n for name, n in rounded.items()}

    def or_more(self, other: Passes) -> Passes:
        """The larger of each: batches of one task may differ where a path depends on the prompts."""
        return Passes(max(self.forward, other.forward), max(self.backward, other.backward))

    def most_of_any_rank(self) -> Passes:
        most = ranks.largest(torch.tensor([self.forward, self.backward], device="cpu"))
        return Passes(*most.tolist())


@dataclass(frozen=True)
class Standing:
    """One visited point, or several stacked ones: its leaves, its run, its logits.

    It does not refer back to its ``Ground``: such a circle would keep every batch's graph alive until the
    garbage collector comes by.
    """

    model: Transformer
    real: Tensor  # (batch, pos), over the whole prompt: which positions are no padding
    start: int  # of the suffix
    passes: Passes
    point: Tensor  # ([point], batch, pos, d_model), as the path gave it
    prefix: Tensor | None  # the leaf (batch, prefix pos, d_model) if the path moves the prefix
    suffix: Tensor  # the leaf (point batch, suffix pos, d_model)
    run: Run
    logits: Tensor  # (point batch, vocab)

    def outputs(self, where: Literal["last", "all"]) -> list[Tensor]:
        """Logits at each prompt's last position, or at every real position."""
        if where == "last":
            return [self.logits]
        parts = [(self.run.final_in, self.real[:, self.start :])]
        if self.prefix is not None and self.start:
            # The shared prefix run stops at the last layer's keys, so this one is made for its outputs.
            self.passes.forward += 1
            parts.append((self.model.run(self.prefix).final_in, self.real[:, : self.start]))
        return [self.model.unembed(x) * real[..., None] for x, real in parts]

    def gradient(self, objective: Tensor) -> Tensor:
        """The gradient of the sum of ``objective`` at the point."""
        leaves = [self.suffix] if self.prefix is None else [self.prefix, self.suffix]
        self.passes.backward += 1
        parts = torch.autograd.grad(objective.sum(), leaves, retain_graph=True)
        return torch.cat(parts, -2).view(self.point.shape)


@dataclass
class Ground:
    """One batch of prompt pairs on a model: where a path's points are visited."""

    model: Transformer
    batch: Pairs
    metric: Metric
    whole: bool
    ablation: Ablation | None = None  # what stands in for a node instead of the corrupted prompt
    passes: Passes = field(default_factory=Passes)

    def __post_init__(self) -> None:
        """Run the clean and the corrupted prompt, which every method needs."""
        model, batch = self.model, self.batch
        self.start = batch.start
        self.real = torch.arange(batch.clean.shape[1], device=model.device) <= batch.last[:, None]
        clean, corrupted = model.embed(batch.clean), model.embed(batch.corrupted)
        differs = batch.clean != batch.corrupted
        begin = 0 if self.whole else self.start
        self.pair = Pair(clean[:, begin:], corrupted[:, begin:], differs[:, begin:])
        self._prefix = self._leaf(clean[:, : self.start]) if self.whole and self.start else None
        with torch.set_grad_enabled(self.whole):
            front = clean[:, : self.start] if self._prefix is None else self._prefix
            self.past = model.prefix(front) if self.start else []
        self.clean = self._stand(self.pair.clean, self._prefix, self.past)
        self.corrupted = self._stand(self.pair.corrupted, self._prefix, self.past)

    @cached_property
    def writes(self) -> Writes:
        """What the nodes write on the clean prompt less what they write on the corrupted one, or ablated."""
        instead = (self.corrupted.suffix, self.corrupted.run)
        if self.ablation is not None:
            instead = self.ablation.run(self.model, 1, self.batch.clean.shape[1])
        return write_differences(self.clean.suffix, self.clean.run, *instead)

    def visit(self, point: Any) -> Standing:
        """The model at a point, or at several stacked in front: (point, batch, pos, d_model)."""
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
            return self._stand(point, None, [repeated(past, n_points) for past in self.past])
        prefix = self._leaf(point[..., : self.start, :])
        return self._stand(point, prefix, self.model.prefix(prefix))

    def judge(self, standing: Standing) -> Tensor:
        """The metric of each example, and of each stacked point of it: (point, batch)."""
        return self.judged(standing.logits)

    def judged(self, logits: Tensor) -> Tensor:
        """The metric of logits (point batch, vocab), as (point, batch)."""
        batch = len(self.batch)
        values = [self.metric(rows, self.batch.labels) for rows in torch.split(logits, batch)]
        for value in values:
            check_metric(value, batch)
        return torch.stack(values)

    def _stand(self, point: Tensor, prefix: Tensor | None, past: list[Past]) -> Standing:
        suffix = self._leaf(point[..., self.start :, :] if self.whole else point)
        run = self.model.run(suffix, start=self.start, past=past)
        self.passes.forward += len(suffix) // len(self.batch)
        logits = self.unembedded(run.final_in)
        return Standing(self.model, self.real, self.start, self.passes, point, prefix, suffix, run, logits)

    def unembedded(self, final_in: Tensor) -> Tensor:
        """Logits at each prompt's last position, from what ``logits`` reads, (point batch, pos, d_model)."""
        row = torch.arange(len(final_in), device=final_in.device)
        last = (self.batch.last - self.start).repeat(len(final_in) // len(self.batch))
        return self.model.unembed(final_in[row, last])

    @staticmethod
    def _leaf(x: Tensor) -> Tensor:
        """A tensor (point batch, pos, d_model) at which gradients can be asked for."""
        return x.detach().flatten(0, -3).requires_grad_()


def walk(ground: Ground, path: Path, options: dict[str, Any]) -> Iterator[tuple[Standing, bool]]:
    """Visit a path's points in order, and say of each whether it is scored.

    Of a stack as many are visited at a time as memory should hold. A visit holds its run's graph: it is
    let go before the next one, and so it should be by those who are given it.
    """
    points = path.build(ground.pair, **options)
    asked = next(points, None)
    while asked is not None:
        scored = not isinstance(asked, Look)
        point = asked.point if isinstance(asked, Look) else asked
        if isinstance(point, Tensor) and point.ndim == 4:
            for group in torch.split(point, RUN_AT_ONCE):
                yield ground.visit(group), scored
            asked = _next(points, None)
        else:
            visit = ground.visit(point)
            yield visit, scored
            asked = _next(points, visit)
            del visit


def _next(points: Points, visit: Standing | None) -> Tensor | Look | None:
    try:
        return points.send(visit)  # type: ignore[arg-type]  # nothing comes back for a stack
    except StopIteration:
        return None


def check_metric(value: Any, batch: int) -> None:
    """A metric has to give one number per example."""
    if not isinstance(value, Tensor) or value.shape != (batch,):
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise InputError(f"a metric has to return one number per example, shape ({batch},): got {got}.")


def repeated(past: Past, n_points: int) -> Past:
    """Keys and values for several points stacked in front of the batch."""
    return Past(past.keys.repeat(n_points, 1, 1, 1), past.values.repeat(n_points, 1, 1, 1))
