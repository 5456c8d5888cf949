r"""The contraction: differences of writes times gradients of reads, summed over examples and positions.

Neither side is ever kept per head at full width. Of a head's write only z_h (d_head wide) is kept, and
of the gradient at a head's read only the gradient d_h at its projection's output, which comes through the
norm of queries and keys where there is one, or through what is made of latents. Their expansions are

    x_u           W_O[:, h] z_h        (over its norm, times its gain, where one follows attention)
    dL/d in_h     J^T W_h^T d_h,       J = (I - y y^T / D) / sigma, or I where no norm comes first,
                                       or I / sigma where a rule holds the norm's scale constant

y is the normalised input and 1/sigma its scale, which all heads of a layer share, D = d_model. For several
points p of a path, with c_hp = d_hp . (W_h y_p) / D and W_h y_p the projection's output less its bias,

    sum_p J_p^T W_h^T d_hp  =  W_h^T (sum_p d_hp / sigma_p)  -  sum_p (c_hp / sigma_p) y_p

so the d_h are summed over the points before they are expanded, and the number of points costs one
column of y each. Expansion and contraction are matrix products, made one layer and a few thousand rows
at a time, in float32 (in float64 for a model that is).

All targets that read a node u read the same residual stream, so the sum of the scores of u's out-edges is the
first-order effect of everything that u writes. ``NodeReads`` has the gradients at the stream alone, for ``explain``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradpath.attribution.batch import Writes
from gradpath.model.architecture import Architecture, Layer
from gradpath.model.transformer import LayerRun, Rows, Run, Transformer, at_least_float32
from gradpath.sweep import CHUNK
from gradpath.tasks.metrics import check_gradient


@dataclass
class LayerReads:
    """The gradients at one layer's reads, summed over points as far as they can be."""

    heads: Tensor  # (3 head, row, d_qkv): sum of d_h / sigma
    mlp: Tensor  # (row, d_model)
    correction: list[Tensor]  # per group of points (row, 3 head, point): c_h / sigma; none without a norm
    y: list[Tensor]  # per group of points (row, point, d_model); none without a norm


@dataclass
class Reads:
    """The sum over points of the gradients at all targets, or at those from some layer on.

    A run that began above the bottom has only its own layers: ``first`` is the lowest of them.
    """

    first: int = 0
    n_points: int = 0
    layers: list[LayerReads] = field(default_factory=list)
    logits: Tensor | None = None  # (row, d_model)

    def add(
        self, model: Transformer, run: Run, metric: Tensor, also: Sequence[Tensor] = (), *, retain: bool = True
    ) -> tuple[Tensor, ...]:
        """Add the gradients of ``metric``, (point, batch), at every target of the run that gave it.

        Those at the tensors of the run that are wanted ``also`` are returned as they are.
        ``torch.autograd.grad`` returns them and stores nothing, so they cannot mix with those of another
        backward pass over the same run. Without ``retain`` there can be no other: the autograd graph is freed
        as the backward pass leaves it behind.
        """
        n_points = len(metric)
        taps = [tap for layer in run.layers for tap in (layer.q, layer.k, layer.v, layer.mlp_in)]
        gradients = gradients_at(metric, [*taps, run.final_in, *also], retain=retain)
        for index, layer in enumerate(run.layers):
            weights = model.layers[self.first + index]
            new = _layer_reads(model, weights, layer, gradients[4 * index : 4 * index + 4], n_points)
            if self.n_points:
                old = self.layers[index]
                new = LayerReads(
                    old.heads + new.heads, old.mlp + new.mlp, old.correction + new.correction, old.y + new.y
                )
                self.layers[index] = new
            else:
                self.layers.append(new)
        at = 4 * len(run.layers)
        logits = summed(gradients[at], n_points)
        self.logits = logits if self.logits is None else self.logits + logits
        self.n_points += n_points
        return gradients[at + 1 :]


def gradients_at(metric: Tensor, taps: Sequence[Tensor], *, retain: bool = True) -> tuple[Tensor, ...]:
    """The gradients of the sum of ``metric`` at some tensors of its run; zero where it does not depend on them."""
    check_gradient(metric)
    return torch.autograd.grad(metric.sum(), taps, retain_graph=retain, allow_unused=True, materialize_grads=True)


def summed(x: Tensor, n_points: int) -> Tensor:
    """(point batch, pos, ...) summed over points, as (row, ...)."""
    return at_least_float32(x).reshape(n_points, -1, *x.shape[2:]).sum(0)


def _layer_reads(
    model: Transformer, layer: Layer, run: LayerRun, gradients: Sequence[Tensor], n_points: int
) -> LayerReads:
    a = model.arch
    d = at_least_float32(torch.stack(list(gradients[:3]), -3)).flatten(-3, -2)  # (point batch, pos, 3 head, d_qkv)
    mlp = summed(gradients[3], n_points)
    rstd = at_least_float32(run.rstd.detach())  # ones where no norm comes first
    scaled = summed(d * rstd[..., None], n_points).transpose(0, 1).contiguous()  # (3 head, row, d_qkv)
    if not a.norm_before or model.rules.norm:
        return LayerReads(scaled, mlp, [], [])
    out = at_least_float32(torch.stack([run.q, run.k, run.v], -3).detach()).flatten(-3, -2)
    if layer.b_qkv is not None:
        out = out - _per_query_head(at_least_float32(layer.b_qkv).view(-1, a.d_qkv), a)
    c = (d * out).sum(-1) * (rstd / a.d_model)  # (point batch, pos, 3 head)

    def by_row(x: Tensor) -> Tensor:  # (point batch, pos, ...) -> (row, point, ...)
        return x.reshape(n_points, -1, *x.shape[2:]).transpose(0, 1)

    return LayerReads(
        heads=scaled, mlp=mlp, correction=[by_row(c).transpose(1, 2)], y=[by_row(at_least_float32(run.y.detach()))]
    )


def _per_query_head(bias: Tensor, a: Architecture) -> Tensor:
    """A bias (block, d_qkv) of the fused projection for every query head, (3 head, d_qkv)."""
    parts = torch.split(bias, a.qkv_blocks)
    return torch.cat([x.repeat_interleave(a.n_heads // len(x), 0) for x in parts])


@dataclass
class NodeReads:
    """The sum over points of the gradients at the residual stream, where nodes write to it."""

    n_points: int = 0
    input: Tensor | None = None  # (row, d_model)
    heads: list[Tensor] = field(default_factory=list)  # per layer (row, d_model)
    mlps: list[Tensor] = field(default_factory=list)  # per layer (row, d_model)

    def add(self, model: Transformer, run: Run, metric: Tensor, *, retain: bool = True) -> None:
        """Add the gradients of ``metric``, (point, batch), at the residual stream of the run that gave it."""
        streams = [*(layer.attn_in for layer in run.layers), run.final_in]
        taps = [*streams, *(layer.mlp_in for layer in run.layers)]
        first, *rest = (summed(x, len(metric)) for x in gradients_at(metric, taps, retain=retain))
        above, mlps = rest[: len(run.layers)], rest[len(run.layers) :]
        # A head's write goes on along the stream, and into its own layer's MLP unless that runs beside it.
        heads = above if model.arch.parallel else [a + b for a, b in zip(above, mlps, strict=True)]
        self.input = first if self.input is None else self.input + first
        self.heads = [a + b for a, b in zip(self.heads, heads, strict=True)] if self.n_points else list(heads)
        self.mlps = [a + b for a, b in zip(self.mlps, above, strict=True)] if self.n_points else list(above)
        self.n_points += len(metric)


def contract(model: Transformer, writes: Writes, reads: Reads, groups: Sequence[Tensor] | None = None) -> Tensor:
    """Writes times reads, summed over rows, for every source and target: (source, target).

    With ``groups``, indices of rows that are summed separately, (group, source, target).
    """
    assert reads.logits is not None, "a path has to be run before it is contracted"
    if groups is not None:
        return torch.stack([_contract_rows(model, writes, reads, rows) for rows in groups])
    return _contract_rows(model, writes, reads, None)


def _contract_rows(model: Transformer, writes: Writes, reads: Reads, rows: Tensor | None) -> Tensor:
    graph, d_model = model.graph, model.arch.d_model
    scores = writes.input.new_zeros(graph.n_sources, graph.n_targets)
    n_rows = len(writes.input) if rows is None else len(rows)
    size = max(1, CHUNK // (4 * graph.n_sources * d_model))
    for at in range(0, n_rows, size):
        chunk = slice(at, min(at + size, n_rows)) if rows is None else rows[at : at + size]
        sources = _expanded_writes(model, writes, chunk)  # (source, row d_model)
        for first, targets in _expanded_reads(model, reads, chunk):
            n_before = int(graph.sources_before_target[first + len(targets) - 1])
            scores[:n_before, first : first + len(targets)] += sources[:n_before] @ targets.T
    return scores


def _expanded_writes(model: Transformer, writes: Writes, rows: Rows) -> Tensor:
    a, graph = model.arch, model.graph
    n_rows = len(writes.input[rows])
    sources = writes.input.new_empty(graph.n_sources, n_rows, a.d_model)
    sources[0] = writes.input[rows]
    for index in range(graph.n_layers):
        w_o = at_least_float32(model.head_output_weights(index)).permute(1, 2, 0)
        heads = graph.source_heads(index)
        torch.bmm(writes.heads[index][:, rows], w_o, out=sources[heads])
        sources[graph.source_mlp(index)] = writes.mlps[index][rows]
    return sources.flatten(1)


def _expanded_reads(model: Transformer, reads: Reads, rows: Rows) -> Iterator[tuple[int, Tensor]]:
    """Blocks of consecutive targets: (first target, gradients (target, row d_model)).

    A block is an MLP and the heads of the layer above it. Both read the same sources, but for the MLP
    itself, whose column is masked in the end.
    """
    graph, n_heads = model.graph, model.arch.n_heads
    assert reads.logits is not None
    n_rows = len(reads.logits[rows])
    block = reads.logits.new_empty(1 + 3 * n_heads, n_rows, model.arch.d_model)
    below: LayerReads | None = None
    for index, layer_reads in enumerate(reads.layers, reads.first):
        _expand_heads(model.arch, model.layers[index], layer_reads, rows, out=block[1:])
        if below is None:
            yield graph.target_head(index), block[1:].flatten(1)
        else:
            block[0] = below.mlp[rows]
            yield graph.target_mlp(index - 1), block.flatten(1)
        below = layer_reads
    if below is None:
        yield graph.logits, reads.logits[rows][None].flatten(1)
    else:
        last = torch.stack([below.mlp[rows], reads.logits[rows]])
        yield graph.target_mlp(graph.n_layers - 1), last.flatten(1)


def _expand_heads(a: Architecture, layer: Layer, reads: LayerReads, rows: Rows, out: Tensor) -> None:
    """The gradients at the reads of a layer's heads, (3 head, row, d_model), into ``out``."""
    weights = at_least_float32(layer.w_qkv).view(-1, a.d_qkv, a.d_model)
    for qkv, weight in enumerate(torch.split(weights, a.qkv_blocks)):
        heads = slice(qkv * a.n_heads, (qkv + 1) * a.n_heads)
        d = reads.heads[heads, rows].reshape(len(weight), -1, a.d_qkv)
        torch.bmm(d, weight, out=out[heads].view(len(weight), -1, a.d_model))
    if reads.y:
        correction, y = torch.cat(reads.correction, -1)[rows], torch.cat(reads.y, 1)[rows]
        out.transpose(0, 1).baddbmm_(correction, y, alpha=-1)
