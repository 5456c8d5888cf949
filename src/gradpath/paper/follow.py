r"""Following one edge along a path: the gradient at its target, its score and the metric at every point.

For an edge u -> v and a point p of a path::

    gradient   || dL/d in_v (p) ||            over the positions from the first differing token on
    score      (x_u - x'_u) . dL/d in_v (p)   what the point contributes to the edge's score
    metric     L(p)

A method's score of the edge is the mean of ``score`` over its points. Where the gradient is close to zero the
path is saturated (the paper's Definition 4.1): such points contribute nothing and lower the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradpath.attribution.batch import BatchRuns, PointRun, run_path, write_of
from gradpath.attribution.methods import find_path
from gradpath.graph import QKV
from gradpath.limits import Limits
from gradpath.model.transformer import Run, Transformer, at_least_float32
from gradpath.runtime import distributed
from gradpath.sweep import Progress, sweep
from gradpath.tasks import Pairs, Task, encode

QUANTITIES = ("gradient", "score", "metric")


@dataclass(frozen=True)
class Track:
    """The quantities along a path: ``at`` runs from 0, the clean prompt, to 1, the path's end."""

    at: list[float]
    values: dict[str, Tensor]  # each (point, example)


def follow_line(
    model: Transformer,
    task: Task,
    edge: str,
    points: int,
    *,
    limits: Limits = Limits(),
    progress: Progress | None = None,
) -> Track:
    """Follow an edge along the straight line from the clean to the corrupted prompt, at equally spaced points."""
    at = torch.linspace(0, 1, points).tolist()

    def line(runs: BatchRuns) -> Iterator[PointRun]:
        for f in at:
            yield runs.run_point(runs.pair.clean + f * (runs.pair.corrupted - runs.pair.clean))

    return _follow(model, task, edge, line, at, limits, progress, n_at_once=2, whole=False)


def follow_gradpath(
    model: Transformer,
    task: Task,
    edge: str,
    steps: int,
    *,
    limits: Limits = Limits(),
    progress: Progress | None = None,
) -> Track:
    """Follow an edge along GradPath: at the clean prompt, which is not scored, and at its k points."""
    path = find_path("eap-gp")
    options = path.options({"steps": steps, "start": True, "stride": "unit"}) | {"steps": steps + 1}

    def gradpath(runs: BatchRuns) -> Iterator[PointRun]:
        return (here for here, scored in run_path(runs, path, options) if scored)

    at = [j / steps for j in range(steps + 1)]
    return _follow(model, task, edge, gradpath, at, limits, progress, n_at_once=steps, whole=True)


def _follow(
    model: Transformer,
    task: Task,
    edge: str,
    points: Callable[[BatchRuns], Iterator[PointRun]],
    at: Sequence[float],
    limits: Limits,
    progress: Progress | None,
    *,
    n_at_once: int,
    whole: bool,
) -> Track:
    model.check_one_device("following an edge")
    pairs = encode(task, model.tokenizer)
    source, target = model.graph.index(edge)

    def follow(batch: Pairs) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            runs = BatchRuns(model, batch.to(model.device), task.metric, whole)
            difference = write_of(model, runs.writes, source).view(len(batch), -1)
            values = [_quantities(runs, here, difference, target) for here in points(runs)]
        return batch.index, torch.stack(values, 1).double().cpu()

    # (quantity, point, example), in the order of the task's examples
    total = torch.zeros(len(QUANTITIES), len(at), len(pairs), dtype=torch.float64, device="cpu")
    for index, values in sweep(
        follow,
        pairs,
        limits.attribution(model, pairs, points=n_at_once, whole=whole).examples,
        model=model,
        task=task,
        doing="following an edge",
        same=lambda: (model.identity, edge, len(at)),
        progress=progress,
    ):
        total[..., index] = values
    return Track(list(at), dict(zip(QUANTITIES, distributed.all_sum(total), strict=True)))


def _quantities(runs: BatchRuns, here: PointRun, difference: Tensor, target: int) -> Tensor:
    """The three quantities at a point, (quantity, batch)."""
    metric = runs.metric_of(here.final)[0]
    at = torch.arange(runs.start, runs.start + here.suffix.shape[1], device=metric.device)
    # Positions before an example's first difference are in the suffix only because of others in the batch.
    counts = at >= runs.batch.first[:, None]
    gradient = (read_gradient(runs.model, here.run, metric.sum(), target) * counts[..., None]).flatten(1)
    return torch.stack([gradient.norm(dim=1), (difference * gradient).sum(1), metric.detach().float()])


def read_gradient(model: Transformer, run: Run, objective: Tensor, target: int) -> Tensor:
    """The gradient of ``objective`` at what one target reads, before its norm, (batch, pos, d_model)."""

    def gradient(at: Tensor) -> Tensor:
        return at_least_float32(torch.autograd.grad(objective, at, retain_graph=True)[0])

    a = model.arch
    layer, (qkv, head) = model.graph.layer_of_target(target), model.graph.place_in_layer(target)
    if layer == a.n_layers:
        return gradient(run.final_in)
    layer_run = run.layers[layer]
    if qkv == len(QKV):
        return gradient(layer_run.mlp_in)
    d = gradient((layer_run.q, layer_run.k, layer_run.v)[qkv])[..., head, :]
    w_qkv = at_least_float32(model.layers[layer].w_qkv).view(-1, a.d_qkv, a.d_model)
    g = d @ w_qkv[a.projection_row(qkv, head)]
    if not a.norm_before:
        return g
    y, rstd = at_least_float32(layer_run.y.detach()), at_least_float32(layer_run.rstd.detach())
    return rstd * (g - y * (y * g).mean(-1, keepdim=True))
