r"""Methods that patch activations: ``exact``, and ``atp-star``, which estimates it better than EAP.

``exact``: activation patching, what the metric loses when one edge alone is corrupted.

    exact(u -> v) = mean over examples of  L(clean) - L(clean, v reads x'_u instead of x_u)

This is the evaluation of the circuit of all edges but one, and what every score of this library estimates.
With all other edges clean nothing before v changes, so the run is the clean one up to v and an ordinary fused
forward pass from there on: a part of a layer for v itself, then the layers above it, for many edges at once.

Cost: one clean and one corrupted forward pass per batch of examples, then for an edge into layer l of L about
(L - l) / L of a forward pass over the positions from the first differing token on, and no backward pass.

``atp-star``: EAP with the two corrections of AtP* (Kramar et al. 2024, arXiv 2403.00745), for edges.

Patterns: where a softmax is saturated its gradient vanishes, although another query or key would turn the
pattern over. So for an edge into <q> or <k> of head h the pattern is computed anew with what that query or
key is when u is corrupted (its norm, projection and rotation included), and only what follows is linear:

    score(u -> h<q>) = sum over positions of (z_h - z_h(q without u)) . dL/dz_h

z_h being what the head gathers. An edge is corrupted at all positions at once, so all keys change together.
Where a norm joins all queries or keys of a layer, the heads that this changes count as well.

``drop``: a gradient may vanish because a direct effect and one through later layers cancel, exactly where it
is taken and nowhere else. GradDrop takes it L times, each time as if the heads and the MLP of one layer let
nothing through, and averages the sizes:

    score(u -> v) = mean over examples of  mean over layers l other than v's own of  |score_l(u -> v)|

(v's own layer would leave 0; ``logits`` has the mean over all layers.) These scores are sizes and have no
sign. A layer below v leaves the plain score, so nothing has to be run for it; and with one layer alone there
is nothing to drop.

Cost in passes over the positions from the first differing token on: 2 forward and 1 backward; ``drop`` adds
(L - 1) / 2 backward passes and L - 1 contractions; patterns take the queries, keys and patterns of a layer
once for every source below it, which counts as forward passes by its share of the weights.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from gradpath.attribution.batch import BatchRuns, repeated
from gradpath.attribution.contraction import Reads, contract
from gradpath.attribution.methods import Options, method
from gradpath.graph import QKV, Graph
from gradpath.model.transformer import Transformer, at_least_float32
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


def _pattern_passes(model: Transformer, _: Options) -> float:
    """The two prompts, and the queries and keys of every layer once for every source below it."""
    below = sum(model.graph.source_head(layer) for layer in range(model.graph.n_layers))
    return 2 + below * _qkv_share(model, 0)


@method("atp-star", at_clean=lambda _: True, passes=_pattern_passes)
def atp_star(runs: BatchRuns, *, drop: bool = True) -> Tensor:
    """EAP with AtP*'s corrections: recomputed patterns for queries and keys, and gradients with layers dropped."""
    model, drop = runs.model, drop and runs.model.arch.n_layers > 1
    scores = runs.writes.input.new_zeros(model.graph.n_sources, model.graph.n_targets)
    times = model.graph.layers_of_targets.to(scores) if drop else torch.ones_like(scores[0])  # of the plain slope
    grads_z: list[list[Tensor]] = []  # per slope dL/dz of its layers, (batch, pos, head, d_head) each
    for reads, grad_z in _slopes(runs, drop):
        scores += (1 if grads_z else times) * _contracted(runs, reads, by_size=drop)
        grads_z.append(grad_z)
    for changed in _changed_patterns(runs):
        slopes = torch.stack([grad_z[changed.layer] for grad_z in grads_z if changed.layer < len(grad_z)])
        effect = changed.effect(at_least_float32(slopes))  # (slope, batch, source, target)
        effect[0] *= times[changed.targets]
        effect = effect.abs() if drop else effect
        scores[changed.sources, changed.targets] = effect.sum((0, 1))
    return scores / (_other_layers(model).to(scores) if drop else 1)


def _other_layers(model: Transformer) -> Tensor:
    """The number of layers other than a target's own."""
    others = torch.full((model.graph.n_targets,), model.arch.n_layers - 1, device="cpu")
    others[model.graph.logits] += 1
    return others


def _slopes(runs: BatchRuns, drop: bool) -> Iterator[tuple[Reads, list[Tensor]]]:
    """Gradients at all targets and at what heads gather: the plain ones, then without each layer from 1 on.

    With a layer dropped the gradient above it goes on below it as it is. Above it nothing differs: 0 is left.
    """
    run, n_layers = runs.clean.run, runs.model.arch.n_layers
    streams = [*(layer.attn_in for layer in run.layers[1:]), run.final_in]  # above each layer
    gathered = [layer.z for layer in run.layers]
    reads = Reads()
    plain = reads.add(runs.model, run, runs.metric_of(runs.clean.final), also=[*gathered, *streams])
    runs.passes.backward += 1
    yield reads, list(plain[:n_layers])
    for layer in range(1, n_layers if drop else 1):
        through = (run.layers[layer].attn_in * plain[n_layers + layer].detach()).sum()
        reads = Reads()
        grad_z = reads.add(runs.model, run, through[None], also=gathered[:layer])
        runs.passes.backward += layer / n_layers
        yield reads, list(grad_z)


def _contracted(runs: BatchRuns, reads: Reads, *, by_size: bool) -> Tensor:
    """The scores summed over examples, or their sizes, (source, target)."""
    if not by_size:
        return contract(runs.model, runs.writes, reads)
    rows = torch.arange(len(runs.writes.input), device=runs.model.device).view(len(runs.batch), -1)
    parts = (contract(runs.model, runs.writes, reads, [rows_of_example])[0].abs() for rows_of_example in rows)
    return reduce(torch.add, parts)


@dataclass(frozen=True)
class _Changed:
    """The change of z in a layer's heads when their queries, or keys, read one source's corrupted write."""

    layer: int
    sources: slice
    targets: slice
    change: Tensor  # (source, batch, pos, head, d_head)

    def effect(self, grad_z: Tensor) -> Tensor:
        """On the metric, for slopes (slope, batch, pos, head, d_head): (slope, batch, source, target)."""
        if self.targets.stop - self.targets.start == 1:  # of one head, on all that a norm joins it with
            return torch.einsum("ubphd,nbphd->nbu", self.change, grad_z)[..., None]
        return torch.einsum("ubphd,nbphd->nbuh", self.change, grad_z)


def _qkv_share(model: Transformer, index: int) -> float:
    """The share of the model's weights in the projection of one layer's queries, keys and values."""
    weights = [x.w_qkv.numel() + x.w_o.numel() + x.mlp_weights for x in model.layers]
    return model.layers[index].w_qkv.numel() / sum(weights)


@torch.no_grad()
def _changed_patterns(runs: BatchRuns) -> Iterator[_Changed]:
    """For every source and every layer above it, as many sources at once as memory should hold."""
    model, graph, x = runs.model, runs.model.graph, runs.clean.suffix
    width = 2 * model.arch.d_model + 10 * model.arch.n_heads * model.arch.d_qkv  # of what is alive at once
    size = max(1, CHUNK // (4 * width * x[..., 0].numel()))
    for first in range(0, graph.n_sources, size):
        chunk = range(first, min(first + size, graph.n_sources))
        difference = torch.stack([runs.difference(source) for source in chunk])
        for index in range(graph.n_layers):
            n_below = min(graph.source_head(index), chunk.stop) - first
            if n_below > 0:
                for targets, change in _without(runs, index, difference[:n_below]):
                    yield _Changed(index, slice(first, first + n_below), targets, change)
                runs.passes.forward += n_below * _qkv_share(model, index)


def _without(runs: BatchRuns, index: int, difference: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The change of z in a layer's heads when queries or keys read less by (source, batch, pos, d_model)."""
    model, layer, clean_layer = runs.model, runs.model.layers[index], runs.clean.run.layers[index]
    x = (clean_layer.attn_in - difference).flatten(0, 1)  # (source batch, pos, d_model)
    fresh = model.project(layer, model.read_norm(x)[0])
    clean = [part.repeat(len(difference), 1, 1, 1) for part in (clean_layer.q, clean_layer.k, clean_layer.v)]
    # One head at a time where a norm joins them: otherwise none of them sees the others' change.
    step = 1 if model.arch.qk_norm == "layer" else model.arch.n_heads
    for kind in range(2):
        for head in range(0, model.arch.n_heads, step):
            projected = list(clean)
            projected[kind] = clean[kind].clone()
            projected[kind][:, :, head : head + step] = fresh[kind][:, :, head : head + step]
            first = model.graph.target_head(index, kind, head)
            z = runs.gathered(index, *projected)
            yield (
                slice(first, first + step),
                at_least_float32(clean_layer.z) - at_least_float32(z.view(len(difference), *clean_layer.z.shape)),
            )
