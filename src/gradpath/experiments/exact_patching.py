r"""Exact edge patching: what the metric loses when one edge alone is corrupted.

    exact(u -> v) = mean over examples of  L(clean) - L(clean, v reads x'_u instead of x_u)

This is the evaluation of the circuit of all edges but one, and what every score of this library estimates.
With all other edges clean nothing before v changes, so the run is the clean one up to v and an ordinary fused
forward pass from there on: a part of a layer for v itself, then the layers above it, for many edges at once.

Cost: one clean and one corrupted forward pass per batch of examples, then for an edge into layer l of L about
(L - l) / L of a forward pass over the positions from the first differing token on, and no backward pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from gradpath import ranks
from gradpath.contraction import Writes, write_differences
from gradpath.experiments.follow import write_of
from gradpath.memory import Progress, batch_that_fits, in_shared_batches
from gradpath.model.transformer import Past, Run, Transformer
from gradpath.nonfinite import of_prompts, watched
from gradpath.tasks import Pairs, Task, encode
from gradpath.tasks.metrics import Metric

# Rows (edge x example) that go through the model at once, where memory has no budget.
_ROWS = 256
Edge = tuple[int, int]  # (source, target)


def exact_scores(
    model: Transformer,
    task: Task,
    edges: Sequence[Edge],
    *,
    batch_size: int = 20,
    memory: int | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """The exact score of each edge, (edge,)."""
    model.check_one_device("exact patching")
    pairs = encode(task, model.tokenizer)
    # Beside the two ends of an example there is room for two rows of edges, as for two points of a path.
    size = batch_that_fits(model, pairs, batch_size, memory, points=3)
    rows = _ROWS if memory is None else 2 * size
    total = torch.zeros(len(edges), dtype=torch.float64)
    work = watched(
        partial(_one_batch, model, task.metric, edges, rows),
        lambda found: [found],
        model=model,
        task=task,
        doing="exact patching",
        places=partial(of_prompts, model, task.metric),
    )
    for part in in_shared_batches(work, pairs, size, progress, asked=lambda: (model.identity, edges)):
        total += part
    return ranks.add_up(total) / len(pairs)


def passes(model: Transformer, edges: Sequence[Edge]) -> float:
    """Forward passes over an example's suffix that the edges cost together, set-up included."""
    n_layers = model.arch.n_layers
    return 2 + sum(1 - _layer_of(model, target) / n_layers for _, target in edges)


def _layer_of(model: Transformer, target: int) -> int:
    """The layer of a target; n_layers for ``logits``."""
    return target // (3 * model.arch.n_heads + 1)


@dataclass(frozen=True)
class _Scene:
    """The clean run of a batch, and how far the corrupted one is from it."""

    model: Transformer
    batch: Pairs
    metric: Metric
    past: list[Past]
    clean: Run
    writes: Writes

    def difference(self, source: int) -> Tensor:
        """x_u - x'_u, (batch, pos, d_model)."""
        return write_of(self.model, self.writes, source).view_as(self.clean.final_in).to(self.model.dtype)

    def above(self, layer: int) -> Tensor:
        """The residual stream above a layer, (batch, pos, d_model)."""
        last = layer + 1 == len(self.clean.layers)
        return self.clean.final_in if last else self.clean.layers[layer + 1].attn_in

    def judged(self, final_in: Tensor) -> Tensor:
        """The summed metric of each edge, from what ``logits`` reads, (edge batch, pos, d_model)."""
        n_edges = len(final_in) // len(self.batch)
        last = (self.batch.last - self.batch.start).repeat(n_edges)
        logits = self.model.unembed(final_in[torch.arange(len(final_in), device=last.device), last])
        rows = torch.split(logits, len(self.batch))
        return torch.stack([self.metric(one, self.batch.labels).double().sum() for one in rows])


@torch.no_grad()
def _one_batch(model: Transformer, metric: Metric, edges: Sequence[Edge], rows: int, batch: Pairs) -> Tensor:
    """The batch's summed loss of the metric for each edge, so many rows (edge x example) at once."""
    batch = batch.to(model.device)
    start = batch.start
    ends = [model.embed(ids) for ids in (batch.clean, batch.corrupted)]
    past = model.prefix(ends[0][:, :start]) if start else []
    clean, corrupted = (model.run(x[:, start:], start=start, past=past) for x in ends)
    writes = write_differences(ends[0][:, start:], clean, ends[1][:, start:], corrupted)
    scene = _Scene(model, batch, metric, past, clean, writes)
    whole = scene.judged(clean.final_in)

    by_layer: dict[int, list[int]] = defaultdict(list)
    for i, (_, target) in enumerate(edges):
        by_layer[_layer_of(model, target)].append(i)
    found = torch.zeros(len(edges), dtype=torch.float64, device=model.device)
    at_once = max(1, rows // len(batch))
    for layer, indices in by_layer.items():
        for first in range(0, len(indices), at_once):
            some = indices[first : first + at_once]
            found[some] = whole - _patched(scene, layer, [edges[i] for i in some])
    return found.cpu()


def _patched(scene: _Scene, layer: int, edges: Sequence[Edge]) -> Tensor:
    """The summed metric with one edge corrupted, for several edges into the same layer, (edge,)."""
    model, start = scene.model, scene.batch.start
    if layer == model.arch.n_layers:
        return scene.judged(torch.cat([scene.clean.final_in - scene.difference(u) for u, _ in edges]))
    resid = torch.cat([_after_layer(scene, layer, edge) for edge in edges])  # (edge batch, pos, d_model)
    above = model.layers[layer + 1 :]
    if not above:
        return scene.judged(resid)
    past = [_repeated(one, len(edges)) for one in scene.past[layer + 1 :]]
    # The layers above, as a model of their own; positions were added at the bottom already.
    rest = replace(model, layers=above, positions=None)
    return scene.judged(rest.run(resid, start=start, past=past).final_in)


def _after_layer(scene: _Scene, layer: int, edge: Edge) -> Tensor:
    """The residual stream above the layer that the edge's target is in, (batch, pos, d_model)."""
    model, seen = scene.model, scene.clean.layers[layer]
    weights, (source, target) = model.layers[layer], edge
    less = scene.difference(source)
    place = target % (3 * model.arch.n_heads + 1)
    if place == 3 * model.arch.n_heads:
        return scene.above(layer) - seen.mlp_out + model.mlp(weights, seen.mlp_in - less)
    change = _attention_change(scene, layer, *divmod(place, model.arch.n_heads), less)
    if model.arch.parallel:
        return scene.above(layer) + change
    mid = seen.mlp_in + change
    return mid + model.mlp(weights, mid)


def _attention_change(scene: _Scene, layer: int, qkv: int, head: int, less: Tensor) -> Tensor:
    """What attention adds when q, k or v of one head reads ``less`` less, minus what it adds if not."""
    model, seen, weights = scene.model, scene.clean.layers[layer], scene.model.layers[layer]
    made = [seen.q, seen.k, seen.v]
    fresh = model.project(weights, model.read_norm(seen.attn_in - less)[0])[qkv]
    made[qkv] = made[qkv].clone()
    made[qkv][:, :, head] = fresh[:, :, head]
    place = model.place(scene.batch.start, less.shape[1])
    before = scene.past[layer] if scene.past else None
    own = model.keys_and_values(weights, made[1], made[2], place).behind(before)
    z = model.attend(weights, model.queries(weights, made[0], place), own, place)
    return model.attention_out(weights, z)[0] - model.attention_out(weights, seen.z)[0]


def _repeated(past: Past, times: int) -> Past:
    return Past(past.keys.repeat(times, 1, 1, 1), past.values.repeat(times, 1, 1, 1))
