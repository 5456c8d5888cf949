r"""``eap-ig-activations``: integrated gradients over what the nodes write, instead of over the prompt.

There are 2 L + 1 *places*: ``input``, the heads of a layer together, and an MLP. For each, k runs in which
everything is clean but what that place writes, which is put between the ablated and the clean value,

    x'_p + (j/k) (x_p - x'_p),  j = 1..k,

and is constant: no gradient goes back through the place itself. With g_v(p, j) = dL/d in_v in these runs,

    ``points=all``  score(u -> v) = (x_u - x'_u) . mean over all places p and j of g_v(p, j)
    ``points=own``  score(u -> v) = (x_u - x'_u) . mean over j of g_v(p, j) at u's own place p

The first is what the EAP-IG library calls EAP-IG-activations: every edge is scored with the mean over all
places, also those that v does not read. The second is integrated gradients of what u writes itself, as for
the nodes of Marks et al. (2024): with many points, the out-edges of ``input``, of an MLP, or of a layer's
heads together sum to what the metric loses when this place alone is ablated.

Below its place a run is the clean one, so it begins there: with the clean residual stream less the missing
part of the difference. For targets below, which only ``all`` counts, the gradients of all runs go back
through the same clean layers, so their sum does it once.

Cost, in passes over the positions from the first differing token on: k (L + 1) + 2 forward, and k (L + 1)
backward, one more for ``all``; of a place in layer l of L only the layers from there on are run and count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from gradpath.attribution.batch import BatchRuns, repeated
from gradpath.attribution.contraction import Reads, contract
from gradpath.attribution.methods import Options, method
from gradpath.model.transformer import LayerRun, Run, Transformer
from gradpath.sweep import SUM_AT_ONCE


def _passes(model: Transformer, options: Options) -> float:
    return 2 + float(options["steps"]) * (model.arch.n_layers + 1)


@method("eap-ig-activations", passes=_passes)
def eap_ig_activations(runs: BatchRuns, *, steps: int = 5, points: Literal["all", "own"] = "all") -> Tensor:
    """Integrated gradients over what the nodes write, layer by layer, instead of over the prompt."""
    graph = runs.model.graph
    scores = runs.writes.input.new_zeros(graph.n_sources, graph.n_targets)
    lower: list[tuple[_Place, Tensor]] = []
    for place in _places(runs.model):
        sources = place.sources if points == "own" else slice(None)
        grad_out = torch.zeros_like(runs.clean.suffix)
        for at in range(0, steps, SUM_AT_ONCE):
            reads, grad = _walk(runs, place, [j / steps for j in range(at + 1, steps + 1)][:SUM_AT_ONCE])
            scores[sources] += contract(runs.model, runs.writes, reads)[sources]
            grad_out += grad
        lower.append((place, grad_out))
    if points == "own":
        return scores / steps
    reads = _reads_below(runs, lower)
    return (scores + contract(runs.model, runs.writes, reads)) / (len(lower) * steps)


@dataclass(frozen=True)
class _Place:
    """Where something is written to the residual stream: by ``input``, by a layer's heads, or by its MLP."""

    layer: int  # -1 for ``input``
    heads: bool
    sources: slice

    def difference(self, runs: BatchRuns) -> Tensor:
        """x - x' of what it writes, (batch, pos, d_model)."""
        writes, x = runs.writes, runs.clean.suffix
        if self.layer < 0:
            difference = writes.input
        elif not self.heads:
            difference = writes.mlps[self.layer]
        else:
            heads = writes.heads[self.layer].transpose(0, 1).flatten(1)  # (row, head d_head)
            difference = heads @ runs.model.layers[self.layer].w_write.T.to(heads.dtype)
        return difference.view_as(x).to(x.dtype)

    def above(self, runs: BatchRuns) -> Tensor:
        """The clean residual stream that the place has written to, (batch, pos, d_model)."""
        run, after = runs.clean.run, self.layer + 1
        if self.heads and not runs.model.arch.parallel:
            return run.layers[self.layer].mlp_in
        return run.final_in if after == len(run.layers) else run.layers[after].attn_in

    def below(self, runs: BatchRuns) -> Tensor:
        """The same without what the place wrote, but for constants, as a part of the clean run's graph.

        It is added up anew: the stream itself is what ``logits`` or the MLP reads, and a place must not
        receive gradients through those readers.
        """
        run, layer = runs.clean.run.layers[self.layer], runs.model.layers[self.layer]
        if not self.heads:
            return run.attn_in + F.linear(run.written.flatten(-2), layer.w_write)
        return run.attn_in + run.mlp_out if runs.model.arch.parallel else run.attn_in


def _places(model: Transformer) -> Iterator[_Place]:
    graph = model.graph
    yield _Place(-1, False, slice(0, 1))
    for layer in range(graph.n_layers):
        mlp = graph.source_mlp(layer)
        yield _Place(layer, True, graph.source_heads(layer))
        yield _Place(layer, False, slice(mlp, mlp + 1))


def _walk(runs: BatchRuns, place: _Place, fractions: Sequence[float]) -> tuple[Reads, Tensor]:
    """The gradients at the targets above a place, and at the residual stream there, summed over points."""
    n_layers = runs.model.arch.n_layers
    clean, difference = place.above(runs).detach(), place.difference(runs)
    reads, grad_out = Reads(), torch.zeros_like(clean)
    for at in range(0, len(fractions), runs.at_once):
        chunk = fractions[at : at + runs.at_once]
        x = torch.cat([clean - (1 - f) * difference for f in chunk]).requires_grad_()
        run = _run_from(runs, place, x, len(chunk))
        reads.first = n_layers - len(run.layers)
        metric = runs.metric_of(runs.at_last(run.final_in))
        (grad,) = reads.add(runs.model, run, metric, also=[x])
        grad_out += grad.view(len(chunk), *clean.shape).sum(0)
        share = len(chunk) * (n_layers - max(place.layer + (not place.heads), 0)) / n_layers
        runs.passes.forward += share
        runs.passes.backward += share
    return reads, grad_out


def _run_from(runs: BatchRuns, place: _Place, x: Tensor, n_points: int) -> Run:
    """The layers above a place on the residual stream x, (point batch, pos, d_model)."""
    model, layers, after = runs.model, list[LayerRun](), place.layer + 1
    if place.heads and not model.arch.parallel:
        # The layer's own MLP reads what its heads wrote; its heads stand before the place.
        mlp_in = x.view_as(x)
        mlp_out = model.mlp(model.layers[place.layer], mlp_in)
        before = runs.clean.run.layers[place.layer]
        y, rstd, q, k, v = (
            x.detach().repeat(n_points, *[1] * (x.ndim - 1)).requires_grad_()
            for x in (before.y, before.rstd, before.q, before.k, before.v)
        )
        layers.append(replace(before, y=y, rstd=rstd, q=q, k=k, v=v, mlp_in=mlp_in, mlp_out=mlp_out))
        x = x + mlp_out
    past = [repeated(layer_past, n_points) for layer_past in runs.past[after:]]
    rest = model.above(after).run(x, start=runs.start, past=past)
    return Run(layers + rest.layers, rest.final_in)


def _reads_below(runs: BatchRuns, grads: Sequence[tuple[_Place, Tensor]]) -> Reads:
    """The gradients at the targets below each place, and in parallel to it, summed over all points.

    Whatever a place wrote, the layers below it were run on the clean prompt alone.
    """
    objective = [(grad_out * place.below(runs)).sum() for place, grad_out in grads if place.layer >= 0]
    reads = Reads()
    reads.add(runs.model, runs.clean.run, torch.stack(objective).sum()[None])
    runs.passes.backward += 1
    return reads
