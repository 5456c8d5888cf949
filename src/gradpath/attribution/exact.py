r"""``exact``: activation patching, what the metric loses when one edge alone is corrupted.

    exact(u -> v) = mean over examples of  L(clean) - L(clean, v reads x'_u instead of x_u)

This is the evaluation of the circuit of all edges but one, and what every score of this library estimates.
With all other edges clean nothing before v changes, so the run is the clean one up to v and an ordinary fused
forward pass from there on: a part of a layer for v itself, then the layers above it, for many edges at once.

Cost: one clean and one corrupted forward pass per batch of examples, then for an edge into layer l of L about
(L - l) / L of a forward pass over the positions from the first differing token on, and no backward pass.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from gradpath.attribution.batch import BatchRuns, repeated
from gradpath.attribution.methods import Options, method
from gradpath.graph import QKV, Graph
from gradpath.model.transformer import Transformer
from gradpath.sweep import CHUNK, check_affordable
from gradpath.tasks.task import Pairs

Edge = tuple[int, int]  # (source, target)


def _affordable(model: Transformer, pairs: Pairs, options: Options) -> None:
    """Refuse what would take very long, unless the user is sure."""
    edges = sample(model.graph, options["edges"], options["seed"])
    what, cost = f"patching {len(edges):,} edges on {len(pairs):,} examples", len(pairs) * passes(model, edges)
    check_affordable(what, cost, "patch fewer edges with edges=1000, use fewer examples", sure=options["sure"])


def _passes(model: Transformer, options: Options) -> float:
    return passes(model, sample(model.graph, options["edges"], options["seed"]))


@method("exact", check=_affordable, passes=_passes)
def exact(runs: BatchRuns, *, edges: int = 0, seed: int = 0, sure: bool = False) -> Tensor:
    """Activation patching of every edge by itself, or of a random sample; the others score 0.

    ``edges=0`` are all. ``sure`` allows what would take very long.
    """
    graph = runs.model.graph
    chosen = sample(graph, edges, seed)
    scores = torch.zeros(graph.n_sources, graph.n_targets, dtype=torch.float64, device=runs.model.device)
    sources, targets = torch.tensor(chosen, device=scores.device).unbind(1)
    scores[sources, targets] = _losses(runs, chosen)
    runs.passes.forward += passes(runs.model, chosen) - 2
    return scores


def sample(graph: Graph, n: int, seed: int) -> list[Edge]:
    """All edges, or n random ones if n is not 0, sorted by target."""
    every = [(int(u), int(v)) for u, v in graph.mask.nonzero().tolist()]
    if 0 < n < len(every):
        every = random.Random(seed).sample(every, n)
    return sorted(every, key=lambda edge: (edge[1], edge[0]))


def passes(model: Transformer, edges: Sequence[Edge]) -> float:
    """Forward passes over an example's suffix that the edges cost together, set-up included."""
    n_layers = model.arch.n_layers
    return 2.0 + sum(1 - model.graph.layer_of_target(target) / n_layers for _, target in edges)


@torch.no_grad()
def _losses(runs: BatchRuns, edges: Sequence[Edge]) -> Tensor:
    """The batch's summed loss of the metric for each edge, as many at once as memory should hold, (edge,)."""
    model = runs.model
    by_layer: dict[int, list[int]] = defaultdict(list)
    for i, (_, target) in enumerate(edges):
        by_layer[model.graph.layer_of_target(target)].append(i)
    whole = _metric(runs, runs.clean.run.final_in)
    losses = torch.zeros(len(edges), dtype=torch.float64, device=model.device)
    # Without a graph, what is alive at once is about what one layer makes of the residual stream.
    width = 7 * model.arch.d_model + max(layer.d_hidden for layer in model.layers)
    rows = runs.clean.suffix[..., 0].numel()
    at_once = max(1, CHUNK // (rows * width * model.embedding.element_size()))
    for layer, indices in by_layer.items():
        for first in range(0, len(indices), at_once):
            chunk = indices[first : first + at_once]
            losses[chunk] = whole - _patched(runs, layer, [edges[i] for i in chunk])
    return losses


def _metric(runs: BatchRuns, final_in: Tensor) -> Tensor:
    """The summed metric of each edge, from what ``logits`` reads, (edge batch, pos, d_model)."""
    return runs.metric_of(runs.at_last(final_in)).double().sum(1)


def _patched(runs: BatchRuns, layer: int, edges: Sequence[Edge]) -> Tensor:
    """The summed metric with one edge corrupted, for several edges into the same layer, (edge,)."""
    model = runs.model
    if layer == model.arch.n_layers:
        final_in = runs.clean.run.final_in
        return _metric(runs, torch.cat([final_in - runs.difference(u) for u, _ in edges]))
    resid = torch.cat([_after_layer(runs, layer, edge) for edge in edges])  # (edge batch, pos, d_model)
    past = [repeated(layer_past, len(edges)) for layer_past in runs.past[layer + 1 :]]
    return _metric(runs, model.above(layer + 1).run(resid, start=runs.start, past=past).final_in)


def _after_layer(runs: BatchRuns, layer: int, edge: Edge) -> Tensor:
    """The residual stream above the layer that the edge's target is in, (batch, pos, d_model)."""
    model, run = runs.model, runs.clean.run
    clean, weights, (source, target) = run.layers[layer], model.layers[layer], edge
    above = run.final_in if layer + 1 == len(run.layers) else run.layers[layer + 1].attn_in
    difference = runs.difference(source)
    qkv, head = model.graph.place_in_layer(target)
    if qkv == len(QKV):
        return above - clean.mlp_out + model.mlp(weights, clean.mlp_in - difference)
    change = _attention_change(runs, layer, qkv, head, difference)
    if model.arch.parallel:
        return above + change
    mid = clean.mlp_in + change
    return mid + model.mlp(weights, mid)


def _attention_change(runs: BatchRuns, layer: int, qkv: int, head: int, difference: Tensor) -> Tensor:
    """The change of attention's output when q, k or v of one head reads less by ``difference``."""
    model, clean, weights = runs.model, runs.clean.run.layers[layer], runs.model.layers[layer]
    projected = [clean.q, clean.k, clean.v]
    fresh = model.project(weights, model.read_norm(clean.attn_in - difference)[0])[qkv]
    projected[qkv] = projected[qkv].clone()
    projected[qkv][:, :, head] = fresh[:, :, head]
    z = runs.gathered(layer, *projected)
    return model.attention_out(weights, z)[0] - model.attention_out(weights, clean.z)[0]
