r"""Following one edge along a path: the gradient at its target, its score and the metric at every point.

For an edge u -> v and a point p of a path::

    gradient   || dL/d in_v (p) ||            over an example's positions and dimensions
    score      (x_u - x'_u) . dL/d in_v (p)   what the point contributes to the edge's score
    metric     L(p)

A method's score of the edge is the mean of ``score`` over its points. Where the gradient is close to zero the
path is saturated (the paper's Definition 4.1): such points add nothing, and thin out those that do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradpath.contraction import Writes, write_differences
from gradpath.model.transformer import Run, Transformer, widened
from gradpath.paths import Look, find_path
from gradpath.tasks import Task, encode
from gradpath.visit import Ground, Standing

QUANTITIES = ("gradient", "score", "metric")


@dataclass(frozen=True)
class Track:
    """What was met along a path: ``at`` runs from 0, the clean prompt, to 1, the path's end."""

    at: list[float]
    values: dict[str, Tensor]  # quantity -> (point, example)


def follow_line(
    model: Transformer, task: Task, edge: str, points: int, batch_size: int, done: Callable[[int], None]
) -> Track:
    """The straight line from the clean to the corrupted prompt, at equally spaced points."""
    at = torch.linspace(0, 1, points).tolist()

    def walk(ground: Ground) -> Iterator[Standing]:
        for f in at:
            yield ground.visit(ground.pair.clean + f * (ground.pair.corrupted - ground.pair.clean))

    return Track(at, _follow(model, task, edge, walk, False, batch_size, done))


def follow_gradpath(
    model: Transformer, task: Task, edge: str, steps: int, batch_size: int, done: Callable[[int], None]
) -> Track:
    """GradPath from the clean prompt on: its start, which it does not score, and its k points."""
    path = find_path("eap-gp")
    options = path.options({"steps": steps, "start": True, "stride": "unit"}) | {"steps": steps + 1}

    def walk(ground: Ground) -> Iterator[Standing]:
        generator = path.build(ground.pair, **options)
        asked = next(generator)
        for _ in range(steps + 2):  # the corrupted prompt, to know the goal, then gamma_0 to gamma_k
            visit = ground.visit(asked.point if isinstance(asked, Look) else asked)
            if not isinstance(asked, Look):
                yield visit
            try:
                asked = generator.send(visit)  # type: ignore[arg-type]  # frozen, the protocol is not
            except StopIteration:
                return

    at = [j / steps for j in range(steps + 1)]
    return Track(at, _follow(model, task, edge, walk, True, batch_size, done))


def _follow(
    model: Transformer,
    task: Task,
    edge: str,
    walk: Callable[[Ground], Iterator[Standing]],
    whole: bool,
    batch_size: int,
    done: Callable[[int], None],
) -> dict[str, Tensor]:
    source, target = model.graph.index(edge)
    pairs = encode(task, model.tokenizer)
    columns: dict[str, list[Tensor]] = {name: [] for name in QUANTITIES}
    order = []
    for batch in pairs.batches(batch_size):
        with torch.enable_grad():
            ground = Ground(model, batch.to(model.device), task.metric, whole)
            ends = ground.clean, ground.corrupted
            writes = write_differences(ends[0].suffix, ends[0].run, ends[1].suffix, ends[1].run)
            difference = write_of(model, writes, source).view(len(batch), -1)
            seen = [_quantities(ground, visit, difference, target) for visit in walk(ground)]
        for name in QUANTITIES:
            columns[name].append(torch.stack([one[name] for one in seen]).cpu())
        order.append(batch.index)
        done(len(batch))
    back = torch.cat(order).argsort()
    return {name: torch.cat(parts, 1)[:, back] for name, parts in columns.items()}


def _quantities(ground: Ground, visit: Standing, difference: Tensor, target: int) -> dict[str, Tensor]:
    metric = ground.judge(visit)[0]
    gradient = read_gradient(ground.model, visit.run, metric.sum(), target).flatten(1)
    return {
        "gradient": gradient.norm(dim=1),
        "score": (difference * gradient).sum(1),
        "metric": metric.detach().float(),
    }


def write_of(model: Transformer, writes: Writes, source: int) -> Tensor:
    """What one source writes on the clean prompt less what it writes on the corrupted one, (row, d_model)."""
    if source == 0:
        return writes.input
    layer, head = divmod(source - 1, model.arch.n_heads + 1)
    if head == model.arch.n_heads:
        return writes.mlps[layer]
    a = model.arch
    w_o = widened(model.layers[layer].w_write).view(a.d_model, a.n_heads, a.d_head)[:, head]
    return writes.heads[layer][head] @ w_o.T


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
