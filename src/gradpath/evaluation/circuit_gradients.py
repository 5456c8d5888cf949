r"""Gradients inside a circuit: the effect of each edge on the metric, in the circuit's own run.

Attribution asks what an edge does in the whole model. In a circuit most of the model is corrupted, and the
same edge can do more, less, or the opposite. Its effect there on example i is

    effect_i(u -> v) = sum over positions of (x_u - x'_u) . dm_i / d in_v

with x_u, in_v and the metric m_i of the run in which every edge outside the circuit is corrupted: to first
order, what the example loses if this edge is corrupted as well. It is the gradient of m_i with respect to the
edge's weight, if edges had weights between 0 and 1. For an edge outside the circuit, between nodes inside, the
same product is what the example gains if the edge is added.

Cost per batch, after the set-up: one run of the circuit and one backward pass through it. What every target reads
is kept from the first for the second, and then replaced by the gradient there. The autograd graphs of the nodes
are kept, too, where a batch is small; else each layer is run once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gradpath.evaluation.patched_run import (
    LayerPlan,
    Plan,
    Projected,
    input_only,
    mlp_rows,
    products,
    project,
    read_mlp,
    run_circuits,
    run_heads,
    sum_groups,
    write_heads,
    write_weights,
)
from gradpath.model.transformer import Rows
from gradpath.prepared import Prepared
from gradpath.tasks.metrics import Metric, check_gradient, metric_of

# The largest number of rows, examples times positions, whose autograd graphs are kept.
FEW_ROWS = 256
# Layers whose effects are summed over the examples in one product: each reads what all sources below them write.
LAYERS = 6
# Targets whose effects are computed in one product, at least: a narrow one takes twice as long for each target.
TARGETS = 60


@torch.no_grad()
def edge_effects(prepared: Prepared, plan: Plan, metric: Metric, edges: Tensor) -> tuple[Tensor, Tensor]:
    """The metric in the circuit (batch,), and the effects of some edges on it (batch, edge).

    ``edges`` are flat positions in the (source, target) matrix, each once. An edge from a node that writes
    nothing to the circuit, or into a target that reads nothing of it, gets 0. For no edges there is no backward pass.
    """
    if not len(edges):
        [value] = run_circuits(prepared, [plan], metric)
        return value, value.new_zeros(len(value), 0)
    run = _TracedRun(prepared, plan, edges)
    value, gradient = _forward(run, metric, Tensor.sum)
    effects = _Effects(run, edges)
    run.backward_logits(gradient)
    effects.of_logits(gradient)
    for index in reversed(range(len(plan.layers))):
        run.backward(index)
        effects.add_layer(index)
    return value, effects.values


@torch.no_grad()
def loss_gradient(
    prepared: Prepared, plan: Plan, metric: Metric, edges: Tensor, loss: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """The metric in the circuit (batch,), and the gradient of a loss by the weights of some edges (edge,).

    As ``edge_effects``, of all examples together: the products over positions are over examples as well. ``loss`` is
    that of the batch, from the metric of its examples.
    """
    run = _TracedRun(prepared, plan, edges)
    value, gradient = _forward(run, metric, loss)
    run.backward_logits(gradient)
    for index in reversed(range(len(plan.layers))):
        run.backward(index)
    return value, run.summed_effects(edges)


def _forward(run: _TracedRun, metric: Metric, loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """The metric in the circuit (batch,), and the gradient of a loss at what ``logits`` reads (batch, d_model)."""
    for index in range(len(run.plan.layers)):
        run.forward(index)
    final = run.read_logits().requires_grad_()
    with torch.enable_grad():
        (value,) = metric_of(run.model, metric, final[None], run.prepared.batch.labels)
        check_gradient(value)
        (gradient,) = torch.autograd.grad(loss(value), final)
    return value.detach(), gradient


class _Heads(NamedTuple):
    """What the backward pass needs of a layer's heads."""

    projected: Projected  # its values are a leaf
    change: Tensor | None  # (head, row, d_head): what ``run_heads`` gave, if its graph is kept


class _TracedRun:
    """A patched run that keeps what its backward pass needs.

    ``gradients`` has an entry for every target that the circuit runs, in the order of the computation: what a head's
    q, k or v reads, until the backward pass has come to it; then the gradient there.
    """

    def __init__(self, prepared: Prepared, plan: Plan, edges: Tensor) -> None:
        """``edges`` are those whose effects are computed; they need not be in the circuit."""
        self.prepared, self.plan, self.model = prepared, plan, prepared.model
        mask = plan.edges.flatten().index_fill(0, edges, True).view_as(plan.edges)
        self.mlp_rows = mlp_rows(prepared, plan, mask)  # at which the MLP of each layer is run
        self.deltas = input_only(prepared, plan)
        self.keep_graphs = len(prepared.input) <= FEW_ROWS
        self.heads, self.mlps = dict[int, _Heads](), dict[int, tuple[Tensor, Tensor | None]]()
        self.targets = list[slice]()  # of the heads of each layer; its MLP's comes next
        begin, ends, weights = 0, list[Tensor](), list[Tensor]()
        for reads in [part for step in plan.layers for part in (step.attention, step.mlp)] + [plan.logits]:
            n_targets = 0 if reads is None else len(reads.targets)
            self.targets.append(slice(begin, begin + n_targets))
            if reads is not None:
                target, source, weight = reads.edge_list
                ends.append(torch.stack([source, begin + target]))
                weights.append(self.deltas.new_ones(len(source)) if weight is None else weight)
            begin += n_targets
        self.gradients = self.deltas.new_empty(begin, *prepared.input.shape)
        # The targets that each live source is read by, source by source.
        source, target = torch.cat(ends, 1)
        by_source = source.sort(stable=True).indices
        self.readers, self.weights = target[by_source], torch.cat(weights)[by_source]
        self.weighted = bool((self.weights != 1).any())
        sizes = source.bincount(minlength=len(plan.sources))
        self.begins = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])

    def forward(self, index: int) -> None:
        """Run a layer: fill in what its live nodes write here minus what they write in the corrupted run."""
        prepared, model, deltas = self.prepared, self.model, self.deltas
        step, before, layer = self.plan.layers[index], prepared.layers[index], model.layers[index]
        if step.attention.targets or (prepared.ablated and step.heads):
            reads = self.gradients[self.targets[2 * index]]
            x = step.attention.read(before.attn_in, deltas, out=reads)
            projected = project(model, index, step.attention.targets, x)
            projected = projected._replace(values=projected.values.detach().requires_grad_())
            with torch.set_grad_enabled(self.keep_graphs):
                change = run_heads(prepared, index, step, projected.values)
            deltas[step.head_sources] = write_heads(model, index, step, change.detach())
            self.heads[index] = _Heads(projected, change if self.keep_graphs else None)
        at = self.mlp_rows[index]
        if step.mlp is not None and at is not None:
            x = read_mlp(prepared, index, step.mlp, deltas, at).requires_grad_()
            with torch.set_grad_enabled(self.keep_graphs):
                written = model.mlp(layer, x)
            deltas[step.mlp_source, at] = written.detach() - before.mlp_out[at]
            self.mlps[index] = x, written if self.keep_graphs else None

    def read_logits(self) -> Tensor:
        """What ``logits`` reads at the last position, (batch, d_model)."""
        return self.plan.logits.read(self.prepared.corrupted_final, self.deltas, at=self.prepared.last)[0]

    def backward_logits(self, gradient: Tensor) -> None:
        self.gradients[-1] = 0
        self.gradients[-1, self.prepared.last] = gradient

    def backward(self, index: int) -> None:
        """Fill in the gradients at what a layer's targets read; those of all later targets have to be there."""
        step, model = self.plan.layers[index], self.model
        at, mlp = self.mlp_rows[index], self.targets[2 * index + 1]
        if at is None:
            self.gradients[mlp] = 0
        else:
            x, written = self.mlps.pop(index)
            if written is None:
                with torch.enable_grad():
                    written = model.mlp(model.layers[index], x)
            grad_out = self._at_writes(slice(step.mlp_source, step.mlp_source + 1), at).view_as(written)
            if isinstance(at, Tensor):  # not everywhere
                self.gradients[mlp] = 0
            self.gradients[mlp.start, at] = _gradient(written, x, grad_out)
        if step.attention.targets:
            projected, change = self.heads.pop(index)
            if change is None:
                with torch.enable_grad():
                    change = run_heads(self.prepared, index, step, projected.values)
            grad_out = self._at_writes(step.head_sources)
            grad_out = products(grad_out, write_weights(model, index, step), model.arch.d_head)
            at_values = _gradient(change, projected.values, grad_out)
            reads = self.gradients[self.targets[2 * index]]
            gradient = _through_projection(projected, reads, at_values)
            if gradient.data_ptr() != reads.data_ptr():  # else it is in its place
                reads.copy_(gradient)

    def _at_writes(self, sources: slice, at: Rows = slice(None)) -> Tensor:
        """The gradients at the writes of some live sources, (source, row, d_model)."""
        begin, end = int(self.begins[sources.start]), int(self.begins[sources.stop])
        weights = self.weights[begin:end] if self.weighted else None
        sums = sum_groups(self.gradients, self.readers[begin:end], self.begins[sources] - begin, weights, at)
        return sums.transpose(0, 1)

    def summed_effects(self, edges: Tensor) -> Tensor:
        """The effects of some edges, summed over the examples, (edge,): after the backward pass."""
        graph, layers = self.model.graph, self.plan.layers
        sources, targets = self.deltas.flatten(1), self.gradients.flatten(1)
        effects = sources.new_zeros(len(sources), len(targets))
        for begin in range(0, len(layers), LAYERS):
            first, n_sources, end = self.targets[2 * begin].start, len(sources), len(targets)
            if begin + LAYERS < len(layers):
                above = begin + LAYERS
                n_sources, end = layers[above].attention.n_sources, self.targets[2 * above].start
            effects[:n_sources, first:end] = sources[:n_sources] @ targets[first:end].T
        columns = [column for step in layers for column in _targets(step)]
        places = torch.zeros(graph.n_sources, graph.n_targets, dtype=effects.dtype, device="cpu")
        places[self.plan.sources[:, None], torch.tensor([*columns, graph.logits], device="cpu")] = effects.cpu()
        return places.flatten()[edges]


def _targets(step: LayerPlan) -> list[int]:
    """The targets of a layer that the circuit runs."""
    return step.attention.targets + ([] if step.mlp is None else step.mlp.targets)


def _gradient(written: Tensor, x: Tensor, grad_out: Tensor) -> Tensor:
    """The gradient at x. Through a sum, because PyTorch imports sympy when it is given ``grad_outputs``: a second."""
    with torch.enable_grad():
        along = (written * grad_out).sum()
    return torch.autograd.grad(along, x)[0]


def _through_projection(projected: Projected, x: Tensor, grad_out: Tensor) -> Tensor:
    """The gradient at x, which it replaces, of a projection W x / sigma: W^T g / sigma - x (W x . g) / (d sigma^3)."""
    if projected.rstd is None:
        return products(grad_out, projected.weights, x.shape[-1])
    along = (projected.product * grad_out).sum(-1, keepdim=True, dtype=projected.rstd.dtype)
    along = -along * projected.rstd.pow(3) / x.shape[-1]
    x.mul_(along.to(x.dtype))
    for x_of_target, gradient, weights in zip(
        x, (grad_out * projected.rstd).to(x.dtype), projected.weights, strict=True
    ):
        x_of_target.addmm_(gradient, weights)
    return x


class _Effects:
    """The effects of some edges, taken from a run while it goes backward."""

    def __init__(self, run: _TracedRun, edges: Tensor) -> None:
        self.run, self.graph = run, run.model.graph
        places = torch.full((self.graph.n_pairs,), -1, device="cpu")
        places[edges] = torch.arange(len(edges), device="cpu")
        # The index of an edge among ``edges``, or -1.
        self.places = places.view(self.graph.n_sources, -1)[run.plan.sources]  # (live source, target)
        self.values = run.deltas.new_zeros(len(run.prepared.batch), len(edges))
        self.columns, self.n_sources = list[int](), 0  # targets whose effects are not computed yet, and their sources

    def of_logits(self, gradient: Tensor) -> None:
        ends = self.run.deltas[:, self.run.prepared.last]
        effects = torch.einsum("sbd,bd->bs", ends, gradient)
        self._put(effects[..., None], [self.graph.logits])

    def add_layer(self, index: int) -> None:
        """Take in a layer's gradients; the effects follow when enough targets have come together."""
        step = self.run.plan.layers[index]
        targets = _targets(step)
        if targets and not self.columns:  # the first layer of a group, which is the last to run, has most sources
            self.n_sources = (step.mlp or step.attention).n_sources
        self.columns = targets + self.columns
        if len(self.columns) < TARGETS and index > 0:
            return
        if self.columns and self.n_sources:
            begin, sizes = self.run.targets[2 * index].start, self.run.prepared.sizes.tolist()
            sources = torch.split(self.run.deltas[: self.n_sources], sizes, 1)  # of each example (source, row, d_model)
            gradients = torch.split(self.run.gradients[begin : begin + len(self.columns)], sizes, 1)
            effects = [x.flatten(1) @ y.flatten(1).T for x, y in zip(sources, gradients, strict=True)]
            self._put(torch.stack(effects), self.columns)
        self.columns = []

    def _put(self, effects: Tensor, columns: list[int]) -> None:
        """Take over effects (batch, source, target) of the first live sources on some targets."""
        places = self.places[: effects.shape[1], columns]
        listed = places >= 0
        self.values[:, places[listed]] = effects[:, listed.to(effects.device)]
