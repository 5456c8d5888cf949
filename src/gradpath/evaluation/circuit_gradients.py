r"""Gradients inside a circuit: the effect of each edge on the metric, in the circuit's own run.

Attribution asks what an edge does in the whole model. In a circuit most of the model is corrupted, and the
same edge can do more, less, or the opposite. Its effect there on example i is

    effect_i(u -> v) = sum over positions of (x_u - x'_u) . dm_i / d in_v

with x_u, in_v and the metric m_i of the run in which every edge outside the circuit is corrupted: to first
order, what the example loses if this edge is corrupted as well. It is the gradient of m_i with respect to the
edge's weight, if edges had weights between 0 and 1. For an edge outside the circuit, between nodes inside, the
same product is what the example gains if the edge is added.

Cost per batch, after the set-up: one run of the circuit without gradients, then per layer the same again
with its backward pass. So memory holds one layer's autograd graph at a time, and the writes of live nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gradpath.evaluation.patched_run import Prepared, count_nodes, last_reads, run_heads, run_nodes
from gradpath.evaluation.plan import Plan, SpanReads, SparseReads
from gradpath.graph import Graph
from gradpath.model.transformer import to_device_of
from gradpath.tasks.metrics import Metric, check_metric


@torch.no_grad()
def edge_effects(prepared: Prepared, plan: Plan, metric: Metric, asked: Tensor) -> tuple[Tensor, Tensor]:
    """The metric in the circuit (batch,), and the effects of the edges asked for on it (batch, edge).

    ``asked`` are flat positions in the (source, target) matrix, each once. An edge from a node that writes
    nothing to the circuit, or into a target that reads nothing of it, gets 0.
    """
    model, graph, last = prepared.model, prepared.model.graph, len(plan.layers) - 1
    deltas = run_nodes(prepared, plan)
    ends, final = last_reads(prepared, plan, deltas)
    deltas[:, *prepared.last] = ends
    value, grad_out = _gradient(lambda x: metric(model.unembed(x), prepared.batch.labels), final)
    check_metric(value, len(final))
    effects = deltas.new_zeros(len(final), len(asked))
    back = _Backward(plan, deltas, torch.zeros_like(deltas), _places(graph, asked), effects)
    at_end = deltas.new_zeros(1, *deltas.shape[1:])
    at_end[0, *prepared.last] = grad_out
    back.through(plan.logits, graph.logits, at_end)
    for index in range(last, -1, -1):
        step, before, layer = plan.layers[index], prepared.corrupted.layers[index], model.layers[index]
        count_nodes(prepared, step)
        if step.mlp is not None:
            x = step.mlp.read(before.mlp_in, deltas)
            own = to_device_of(back.grad_out[step.mlp_row][None], x)
            _, grad_out = _gradient(partial(model.mlp, layer), x, own)
            back.through(step.mlp, graph.target_mlp(index), to_device_of(grad_out, deltas))
        if step.attention.targets:
            x = step.attention.read(before.attn_in, deltas)
            own = to_device_of(back.grad_out[step.head_rows], x)
            _, grad_out = _gradient(partial(run_heads, prepared, index, step), x, own)
            back.through(step.attention, graph.target_head(index), to_device_of(grad_out, deltas))
    return value, effects


@dataclass
class _Backward:
    """The backward pass through a circuit: gradients at the writes of live nodes, and the effects so far."""

    plan: Plan
    deltas: Tensor  # (source, batch, pos, d_model)
    grad_out: Tensor  # the gradient at each live node's write, same shape
    places: Tensor  # (source, target): where an edge stands among those asked for, or -1
    effects: Tensor  # (batch, edge)

    def through(self, reads: SparseReads | SpanReads, first_target: int, grad_out: Tensor) -> None:
        """Pass gradients at some targets' inputs, (target, batch, pos, d_model), back along their kept edges."""
        assert isinstance(reads, SparseReads), "effects of edges at spans are not implemented"
        n_sources = reads.n_sources
        if not n_sources:
            return
        target, source = reads.kept
        edges = grad_out.new_zeros(n_sources, len(grad_out))
        edges[source, target] = 1
        self.grad_out[:n_sources] += (edges @ grad_out.flatten(1)).view(n_sources, *grad_out.shape[1:])
        by_example = self.deltas[:n_sources].flatten(2).transpose(0, 1)  # (batch, source, pos d_model)
        effects = torch.bmm(by_example, grad_out.flatten(2).permute(1, 2, 0))  # (batch, source, target)
        columns = first_target + torch.tensor(reads.targets, device="cpu")
        places = self.places[self.plan.sources[:n_sources]][:, columns].to(effects.device)
        asked = places >= 0
        self.effects[:, places[asked]] = to_device_of(effects, self.effects)[:, asked]


def _places(graph: Graph, asked: Tensor) -> Tensor:
    places = torch.full((graph.n_sources * graph.n_targets,), -1, device="cpu")
    places[asked] = torch.arange(len(asked), device="cpu")
    return places.view(graph.n_sources, -1)


def _gradient(function: Callable[[Tensor], Tensor], x: Tensor, grad_out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A function's value at x, and the gradient at x of the value times ``grad_out`` (of its sum without)."""
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        value = function(x)
        (gradient,) = torch.autograd.grad(value, x, torch.ones_like(value) if grad_out is None else grad_out)
    return value.detach(), gradient
