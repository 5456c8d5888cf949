r"""Following one edge along a path: the gradient at its target, its score and the metric at every point.

For an edge u -> v and a point p of a path::

    gradient   || dL/d in_v (p) ||            over the positions from the first differing token on
    score      (x_u - x'_u) . dL/d in_v (p)   what the point contributes to the edge's score
    metric     L(p)

A method's score of the edge is the mean of ``score`` over its points. Where the gradient is close to zero the
path is saturated (the paper's Definition 4.1): such points add nothing, and thin out those that do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gradpath.attribution.batch import BatchRuns, PointRun, run_path
from gradpath.attribution.contraction import write_of
from gradpath.attribution.methods import find_path
from gradpath.graph import QKV
from gradpath.model.architecture import at_least_float32
from gradpath.model.transformer import Run, Transformer
from gradpath.runtime import distributed
from gradpath.sweep import Limits, Progress, sweep
from gradpath.tasks import Pairs, Task, encode

QUANTITIES = ("gradient", "score", "metric")
Quantities = dict[str, Tensor]


@dataclass(frozen=True)
class Track:
    """What was met along a path: ``at`` runs from 0, the clean prompt, to 1, the path's end."""

    at: list[float]
    values: Quantities  # each (point, example)


def follow_line(
    model: Transformer,
    task: Task,
    edge: str,
    points: int,
    *,
    limits: Limits = Limits(),
    progress: Progress | None = None,
) -> Track:
    """The straight line from the clean to the corrupted prompt, at equally spaced points."""
    at = torch.linspace(0, 1, points).tolist()

    def line(runs: BatchRuns) -> Iterator[PointRun]:
        for f in at:
            yield runs.run_point(runs.pair.clean + f * (runs.pair.corrupted - runs.pair.clean))

    # One point at a time, in addition to the two ends.
    return Track(at, _follow(model, task, edge, line, len(at), points, limits, progress, n_at_once=2))


def follow_gradpath(
    model: Transformer,
    task: Task,
    edge: str,
    steps: int,
    *,
    limits: Limits = Limits(),
    progress: Progress | None = None,
) -> Track:
    """GradPath from the clean prompt on: its start, which is not scored, and its k points."""
    path = find_path("eap-gp")
    options = path.options({"steps": steps, "start": True, "stride": "unit"}) | {"steps": steps + 1}

    def gradpath(runs: BatchRuns) -> Iterator[PointRun]:
        return (here for here, scored in run_path(runs, path, options) if scored)

    at = [j / steps for j in range(steps + 1)]
    follow = partial(_follow, model, task, edge, gradpath, len(at), steps, limits, progress)
    return Track(at, follow(n_at_once=steps, whole=True))


def _follow(
    model: Transformer,
    task: Task,
    edge: str,
    points: Callable[[BatchRuns], Iterator[PointRun]],
    n_points: int,
    steps: int,
    limits: Limits,
    progress: Progress | None,
    *,
    n_at_once: int,
    whole: bool = False,
) -> Quantities:
    """Each quantity at every point, (point, example)."""
    model.check_one_device("following an edge")
    pairs = encode(task, model.tokenizer)
    source, target = model.graph.index(edge)

    def follow(batch: Pairs) -> tuple[Tensor, Quantities]:
        with torch.enable_grad():
            runs = BatchRuns(model, batch.to(model.device), task.metric, whole)
            difference = write_of(model, runs.writes, source).view(len(batch), -1)
            seen = [_quantities(runs, here, difference, target) for here in points(runs)]
        return batch.index, {name: torch.stack([one[name] for one in seen]).cpu() for name in QUANTITIES}

    parts = sweep(
        follow,
        pairs,
        limits.batch(model, pairs, points=n_at_once, whole=whole),
        model=model,
        task=task,
        doing="following an edge",
        same=lambda: (model.identity, edge, steps),
        progress=progress,
    )
    return _in_order(parts, n_points, len(pairs))


def _in_order(parts: Iterable[tuple[Tensor, Quantities]], n_points: int, n_examples: int) -> Quantities:
    """What was found in batches, here or on another rank, in the order of the task's examples."""
    found = {name: torch.zeros(n_points, n_examples, dtype=torch.float64, device="cpu") for name in QUANTITIES}
    for index, part in parts:
        for name, values in part.items():
            found[name][:, index] = values.double()
    return {name: distributed.all_sum(values) for name, values in found.items()}


def _quantities(runs: BatchRuns, here: PointRun, difference: Tensor, target: int) -> Quantities:
    metric = runs.metric_at(here)[0]
    at = torch.arange(runs.start, runs.start + here.suffix.shape[1], device=metric.device)
    # What lies before an example's own first difference depends on which others are in the batch.
    own = at >= runs.batch.first[:, None]
    gradient = (read_gradient(runs.model, here.run, metric.sum(), target) * own[..., None]).flatten(1)
    return {
        "gradient": gradient.norm(dim=1),
        "score": (difference * gradient).sum(1),
        "metric": metric.detach().float(),
    }


def read_gradient(model: Transformer, run: Run, objective: Tensor, target: int) -> Tensor:
    """The gradient of ``objective`` at what one target reads, before its norm, (batch, pos, d_model)."""
    a = model.arch
    layer, (qkv, head) = model.graph.layer_of_target(target), model.graph.place_in_layer(target)
    if layer == a.n_layers:
        return at_least_float32(_gradient(objective, run.final_in))
    seen, weights = run.layers[layer], model.layers[layer]
    if qkv == len(QKV):
        return at_least_float32(_gradient(objective, seen.mlp_in))
    d = at_least_float32(_gradient(objective, (seen.q, seen.k, seen.v)[qkv]))[..., head, :]
    g = d @ at_least_float32(weights.w_qkv).view(-1, a.d_head, a.d_model)[a.projection_row(qkv, head)]
    if not a.norm_before:
        return g
    y, rstd = at_least_float32(seen.y.detach()), at_least_float32(seen.rstd.detach())
    return rstd * (g - y * (y * g).mean(-1, keepdim=True))


def _gradient(objective: Tensor, at: Tensor) -> Tensor:
    return torch.autograd.grad(objective, at, retain_graph=True)[0]
