r"""Effects: what each edge of a circuit does for the metric, in the circuit's own run.

Attribution asks what an edge does in the whole model. In a circuit most of the model is corrupted, and the
same edge can do more, less, or the opposite. Its effect there on example i is

    effect_i(u -> v) = sum over positions of (x_u - x'_u) . dm_i / d in_v

with x_u, in_v and the metric m_i of the run in which every edge outside the circuit is corrupted: to first
order, what the example loses if this edge is corrupted as well. It is the gradient of m_i by the edge's
weight, were it not all or nothing. Of an edge that is not in the circuit, between nodes that are, the same
product is what the example gains if it is taken in.

Cost per batch, after the set-up: one run of the circuit without gradients, then per layer the same again
with its backward pass. So memory holds one layer's graph at a time, and what the live nodes write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gradpath.graph import Graph
from gradpath.intervention import Plan, Stage, last_reads, run_heads, run_nodes
from gradpath.model.transformer import beside
from gradpath.reader import Reader, SpanReader
from gradpath.tasks.metrics import Metric
from gradpath.visit import check_metric


@torch.no_grad()
def edge_effects(stage: Stage, todo: Plan, metric: Metric, asked: Tensor) -> tuple[Tensor, Tensor]:
    """The metric in the circuit (batch,), and the effects on it of the edges asked for (batch, edge).

    ``asked`` are flat positions in the (source, target) matrix, each once. An edge from a node that writes
    nothing to the circuit, or into a target that reads nothing of it, gets 0.
    """
    model, graph, last = stage.model, stage.model.graph, len(todo.layers) - 1
    deltas = run_nodes(stage, todo)
    ends, final = last_reads(stage, todo, deltas)
    deltas[:, *stage.last] = ends
    value, pull = _gradient(lambda x: metric(model.unembed(x), stage.batch.labels), final)
    check_metric(value, len(final))
    effects = deltas.new_zeros(len(final), len(asked))
    back = _Backward(todo, deltas, torch.zeros_like(deltas), _places(graph, asked), effects)
    at_end = deltas.new_zeros(1, *deltas.shape[1:])
    at_end[0, *stage.last] = pull
    back.through(todo.logits, graph.logits, at_end)
    for index in range(last, -1, -1):
        step, before, layer = todo.layers[index], stage.corrupted.layers[index], model.layers[index]
        if step.mlp is not None:
            x = step.mlp.read(before.mlp_in, deltas)
            own = beside(back.pull[step.mlp_row][None], x)
            _, pull = _gradient(partial(model.mlp, layer), x, own)
            back.through(step.mlp, graph.target_mlp(index), beside(pull, deltas))
        if step.attention.targets:
            x = step.attention.read(before.attn_in, deltas)
            own = beside(back.pull[step.head_rows], x)
            _, pull = _gradient(partial(run_heads, stage, index, step), x, own)
            back.through(step.attention, graph.target_head(index), beside(pull, deltas))
    return value, effects


@dataclass
class _Backward:
    """The way back through a circuit: gradients at what live nodes write, and the effects seen so far."""

    todo: Plan
    deltas: Tensor  # (source, batch, pos, d_model)
    pull: Tensor  # the gradient at each live node's write, the same
    places: Tensor  # (source, target): where an edge stands among those asked for, or -1
    effects: Tensor  # (batch, edge)

    def through(self, reader: Reader | SpanReader, first_target: int, pull: Tensor) -> None:
        """Take gradients at some targets' reads, (target, batch, pos, d_model), along the edges they keep."""
        assert isinstance(reader, Reader), "circuits of positions have no effects of edges yet"
        n_sources = reader.n_sources
        if not n_sources:
            return
        target, source = reader.kept
        edges = pull.new_zeros(n_sources, len(pull))
        edges[source, target] = 1
        self.pull[:n_sources] += (edges @ pull.flatten(1)).view(n_sources, *pull.shape[1:])
        by_example = self.deltas[:n_sources].flatten(2).transpose(0, 1)  # (batch, source, pos d_model)
        effects = torch.bmm(by_example, pull.flatten(2).permute(1, 2, 0))  # (batch, source, target)
        columns = first_target + torch.tensor(reader.targets, device="cpu")
        places = self.places[self.todo.sources[:n_sources]][:, columns].to(effects.device)
        asked = places >= 0
        self.effects[:, places[asked]] = beside(effects, self.effects)[:, asked]


def _places(graph: Graph, asked: Tensor) -> Tensor:
    places = torch.full((graph.n_sources * graph.n_targets,), -1, device="cpu")
    places[asked] = torch.arange(len(asked), device="cpu")
    return places.view(graph.n_sources, -1)


def _gradient(
    function: Callable[[Tensor], Tensor], x: Tensor, pull: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A function's value at x, and the gradient at x of the value times ``pull`` (of its sum without)."""
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        value = function(x)
        (gradient,) = torch.autograd.grad(value, x, torch.ones_like(value) if pull is None else pull)
    return value.detach(), gradient
