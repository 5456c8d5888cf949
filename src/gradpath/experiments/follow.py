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

from gradpath import ranks
from gradpath.contraction import write_differences, write_of
from gradpath.memory import Progress, batch_that_fits, in_shared_batches
from gradpath.model.transformer import Run, Transformer, widened
from gradpath.nonfinite import of_prompts, watched
from gradpath.paths import find_path
from gradpath.tasks import Pairs, Task, encode
from gradpath.tasks.metrics import Metric
from gradpath.visit import Ground, Standing, walk

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
    batch_size: int,
    memory: int | None = None,
    progress: Progress | None = None,
) -> Track:
    """The straight line from the clean to the corrupted prompt, at equally spaced points."""
    at = torch.linspace(0, 1, points).tolist()

    def visits(ground: Ground) -> Iterator[Standing]:
        for f in at:
            yield ground.visit(ground.pair.clean + f * (ground.pair.corrupted - ground.pair.clean))

    model.check_one_device("following an edge")
    pairs = encode(task, model.tokenizer)
    size = batch_that_fits(model, pairs, batch_size, memory, points=2)  # one at a time, beside the ends
    work = _watched(model, task, partial(_follow, model, task.metric, edge, visits, False))
    asked = partial(_asked, model, edge, points)
    return Track(
        at, _in_order(in_shared_batches(work, pairs, size, progress, asked=asked), points, len(pairs))
    )


def follow_gradpath(
    model: Transformer,
    task: Task,
    edge: str,
    steps: int,
    *,
    batch_size: int,
    memory: int | None = None,
    progress: Progress | None = None,
) -> Track:
    """GradPath from the clean prompt on: its start, which it does not score, and its k points."""
    path = find_path("eap-gp")
    options = path.options({"steps": steps, "start": True, "stride": "unit"}) | {"steps": steps + 1}

    def visits(ground: Ground) -> Iterator[Standing]:
        return (visit for visit, scored in walk(ground, path, options) if scored)

    model.check_one_device("following an edge")
    pairs = encode(task, model.tokenizer)
    size = batch_that_fits(model, pairs, batch_size, memory, points=steps, whole=True)
    work = _watched(model, task, partial(_follow, model, task.metric, edge, visits, True))
    at = [j / steps for j in range(steps + 1)]
    asked = partial(_asked, model, edge, steps)
    return Track(
        at, _in_order(in_shared_batches(work, pairs, size, progress, asked=asked), len(at), len(pairs))
    )


Follow = Callable[[Pairs], tuple[Tensor, Quantities]]


def _watched(model: Transformer, task: Task, work: Follow) -> Follow:
    places = partial(of_prompts, model, task.metric)
    return watched(
        work, lambda x: x[1].values(), model=model, task=task, doing="following an edge", places=places
    )


def _asked(model: Transformer, edge: str, points: int) -> object:
    return model.identity, edge, points


def _follow(
    model: Transformer,
    metric: Metric,
    edge: str,
    visits: Callable[[Ground], Iterator[Standing]],
    whole: bool,
    batch: Pairs,
) -> tuple[Tensor, Quantities]:
    """Which examples these are, and each quantity of theirs, (point, batch)."""
    source, target = model.graph.index(edge)
    with torch.enable_grad():
        ground = Ground(model, batch.to(model.device), metric, whole)
        ends = ground.clean, ground.corrupted
        writes = write_differences(ends[0].suffix, ends[0].run, ends[1].suffix, ends[1].run)
        difference = write_of(model, writes, source).view(len(batch), -1)
        seen = [_quantities(ground, visit, difference, target) for visit in visits(ground)]
    return batch.index, {name: torch.stack([one[name] for one in seen]).cpu() for name in QUANTITIES}


def _in_order(parts: Iterable[tuple[Tensor, Quantities]], n_points: int, n_examples: int) -> Quantities:
    """What was found in batches, here or on another rank, in the order of the task's examples."""
    found = {
        name: torch.zeros(n_points, n_examples, dtype=torch.float64, device="cpu") for name in QUANTITIES
    }
    for index, part in parts:
        for name, values in part.items():
            found[name][:, index] = values.double()
    return {name: ranks.add_up(values) for name, values in found.items()}


def _quantities(ground: Ground, visit: Standing, difference: Tensor, target: int) -> Quantities:
    metric = ground.judge(visit)[0]
    at = torch.arange(ground.start, ground.start + visit.suffix.shape[1], device=metric.device)
    # What lies before an example's own first difference depends on which others are in the batch.
    own = at >= ground.batch.first[:, None]
    gradient = (read_gradient(ground.model, visit.run, metric.sum(), target) * own[..., None]).flatten(1)
    return {
        "gradient": gradient.norm(dim=1),
        "score": (difference * gradient).sum(1),
        "metric": metric.detach().float(),
    }


def read_gradient(model: Transformer, run: Run, objective: Tensor, target: int) -> Tensor:
    """The gradient of ``objective`` at what one target reads, before its norm, (batch, pos, d_model)."""
    a = model.arch
    layer, place = divmod(target, 3 * a.n_heads + 1)
    if layer == a.n_layers:
        return widened(_gradient(objective, run.final_in))
    seen, weights = run.layers[layer], model.layers[layer]
    if place == 3 * a.n_heads:
        return widened(_gradient(objective, seen.mlp_in))
    qkv, head = divmod(place, a.n_heads)
    d = widened(_gradient(objective, (seen.q, seen.k, seen.v)[qkv]))[..., head, :]
    shared = head // (a.n_heads // a.n_kv_heads)
    row = head if qkv == 0 else a.n_heads + (qkv - 1) * a.n_kv_heads + shared
    g = d @ widened(weights.w_qkv).view(-1, a.d_head, a.d_model)[row]
    if not a.norm_before:
        return g
    y, rstd = widened(seen.y.detach()), widened(seen.rstd.detach())
    return rstd * (g - y * (y * g).mean(-1, keepdim=True))


def _gradient(objective: Tensor, at: Tensor) -> Tensor:
    return torch.autograd.grad(objective, at, retain_graph=True)[0]
