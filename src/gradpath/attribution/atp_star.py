r"""``atp-star``: EAP with the two corrections of AtP* (Kramar et al. 2024, arXiv 2403.00745), for edges.

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

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from gradpath.attribution.batch import BatchRuns
from gradpath.attribution.contraction import Reads, contract
from gradpath.attribution.methods import Options, method
from gradpath.model.transformer import Transformer, at_least_float32
from gradpath.sweep import CHUNK


def _passes(model: Transformer, _: Options) -> float:
    """The two prompts, and the queries and keys of every layer once for every source below it."""
    below = sum(model.graph.source_head(layer) for layer in range(model.graph.n_layers))
    return 2 + below * _qkv_share(model, 0)


@method("atp-star", at_clean=lambda _: True, passes=_passes)
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
