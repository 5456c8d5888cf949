"""A circuit laid out in the order of the computation: which nodes have to run, where, and what their targets read.

A target reads its input of the corrupted run and, on top, what its kept edges bring (``patched_run``). Only
nodes that write to the circuit are *live*, and only these are run.

Circuits are run at the *rows* of a batch: the positions at which an example can differ from its corrupted run
(``prepared``). A small circuit differs at few of them, and only the last one of an example is read in the end. So an
MLP of it has to be run at a row only if

1. something that it reads can differ there: the token itself, or the write of a node that can differ there. A head can
   differ where its query can, and from the first position on where its key or its value can.
2. what it writes there can reach the logits: at the last position, and elsewhere if some way leads through a key or a
   value.

Elsewhere its write is that of the corrupted run, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Float
from torch import Tensor

from gradpath.circuit import Circuit
from gradpath.errors import InputError
from gradpath.graph import QKV
from gradpath.model.transformer import Rows, Transformer, to_device_of
from gradpath.prepared import Prepared


def sum_groups(
    nodes: Tensor, members: Tensor, begins: Tensor, weights: Tensor | None = None, at: Rows = slice(None)
) -> Tensor:
    """The sum of each group of nodes, (row, group, d_model).

    Args:
        nodes: What the nodes have at each row, (node, row, d_model).
        members: The nodes of the first group, then those of the second, and so on.
        begins: Where each group begins among the members.
        weights: What each member is multiplied by; by default 1.
        at: The rows at which to sum; by default all.
    """
    # Row by row: what all nodes have there stays in the processor's cache, for all groups.
    row = torch.arange(nodes.shape[1], device=nodes.device)[at, None]
    bags = begins + len(members) * torch.arange(len(row), device=nodes.device)[:, None]
    each = None if weights is None else weights.repeat(len(row))
    index = (members * nodes.shape[1] + row).flatten()
    sums = F.embedding_bag(index, nodes.flatten(0, 1), bags.flatten(), mode="sum", per_sample_weights=each)
    return sums.view(len(row), len(begins), nodes.shape[-1])


@dataclass(frozen=True)
class SparseReads:
    """Targets that read from the same sources, and the edges that feed them, as a sparse sum."""

    targets: list[int]  # in order
    n_sources: int  # the live sources that come before them
    edges: Tensor | tuple[Tensor, ...]  # (target, live source), or as lists: see ``of``

    @classmethod
    def of(cls, targets: list[int], edges: Tensor) -> SparseReads:
        """Store the weights of edges, 1 for one that is in the circuit, in the form that is faster to sum over.

        On a CPU adding up a few rows is up to ten times as fast as a product with a nearly empty matrix;
        elsewhere, and for circuits that hold most edges, the product is faster. The lists (sources, where each
        target's begin, and the weights unless all are 1) also take a fraction of the memory.
        """
        n_sources, in_circuit = edges.shape[1], edges != 0
        as_lists = edges.device.type == "cpu" and edges.numel() > 0 and int(in_circuit.sum()) < 0.5 * edges.numel()
        if not as_lists:
            return cls(targets, n_sources, edges)
        sizes, weights = in_circuit.sum(1), edges[in_circuit]
        lists = in_circuit.nonzero()[:, 1].clone(), sizes.cumsum(0) - sizes
        return cls(targets, n_sources, lists if bool((weights == 1).all()) else (*lists, weights))

    def read(self, base: Tensor, deltas: Tensor, *, at: Rows = slice(None), out: Tensor | None = None) -> Tensor:
        """What the targets read: the corrupted input and what the kept edges bring, (target, row, d_model).

        Args:
            base: The corrupted input at the rows of ``at``, (row, d_model).
            deltas: The differences that the live sources write, (source, row, d_model).
            at: Some of the rows; by default all.
            out: Where to put the result, on the device of ``base``.
        """
        n_targets = len(self.targets)
        out = base.new_empty(n_targets, *base.shape) if out is None else out
        if not self.n_sources:
            return out.copy_(base)
        rows = deltas[: self.n_sources]
        if isinstance(self.edges, Tensor):
            brought = (self.edges @ rows[:, at].flatten(1)).view_as(out)
        else:
            sources, begins, *weights = self.edges
            sums = sum_groups(rows, sources, begins, weights[0] if weights else None, at)
            brought = sums.transpose(0, 1)
        return torch.add(to_device_of(brought, base), base, out=out)

    @property
    def edge_list(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """The edges as (target, source), both numbered as in this object, and their weights unless all are 1."""
        if isinstance(self.edges, Tensor):
            target, source = self.edges.nonzero().unbind(1)
            return target, source, self.edges[target, source]
        sources, begins, *weights = self.edges
        sizes = torch.diff(begins, append=begins.new_tensor([len(sources)]))
        target = torch.arange(len(begins), device=begins.device).repeat_interleave(sizes)
        return target, sources, weights[0] if weights else None


@dataclass(frozen=True)
class LayerPlan:
    """The part of a layer that a circuit needs."""

    heads: list[int]  # heads that write to the circuit, and those that share a norm with them
    attention: SparseReads  # their q, k and v that have a kept edge
    head_sources: slice  # the heads among the live sources
    mlp: SparseReads | None  # if it writes to the circuit
    mlp_source: int


@dataclass(frozen=True)
class Plan:
    """A circuit's edges, laid out in the order of the computation."""

    edges: Bool[Tensor, "source target"]
    sources: Tensor  # the live ones, in order
    layers: list[LayerPlan]
    logits: SparseReads


def plan_of(model: Transformer, circuit: Circuit, weights: Float[Tensor, "source target"] | None = None) -> Plan:
    """The nodes that write to a circuit, and what they read.

    Args:
        model: The model.
        circuit: The circuit.
        weights: How much of each edge is in the circuit, above 0 and up to 1; by default all of it. An edge of weight w
            brings w times the difference, so it carries w x_u + (1 - w) x'_u.

    Returns:
        The plan.
    """
    graph, mask = circuit.graph, circuit.mask
    live = mask.any(1)
    if model.heads_share_a_norm:
        live_heads = graph.sources_by_layer(live)[:, :-1]
        live_heads |= live_heads.any(1, keepdim=True)
    edges = mask[live].mT.to(model.device, model.dtype)  # (target, live source)
    if weights is not None:
        edges = edges * weights[live].mT.to(model.device, model.dtype)

    def reads(targets: list[int], n_sources: int) -> SparseReads:
        return SparseReads.of(targets, edges[targets, :n_sources])

    row, fed = (live.cumsum(0) - 1).tolist(), mask.any(0).tolist()
    layers = []
    for layer in range(graph.n_layers):
        first, last = graph.source_head(layer), graph.source_mlp(layer)
        heads = [h for h in range(graph.n_heads) if live[first + h]]
        begin = int(live[:first].sum())
        targets = [target for target in graph.targets_of_heads(layer, heads) if fed[target]]
        attention = reads(targets, begin)
        rows = slice(begin, begin + len(heads))
        below = begin if graph.parallel else rows.stop
        mlp = reads([graph.target_mlp(layer)], below) if live[last] else None
        layers.append(LayerPlan(heads, attention, rows, mlp, row[last]))
    logits = reads([graph.logits], edges.shape[-1])
    return Plan(mask, live.nonzero()[:, 0], layers, logits)


def check_same_graph(model: Transformer, circuit: Circuit) -> None:
    """Refuse a circuit of a model of another shape."""
    if model.graph != circuit.graph:
        raise InputError(
            f"the circuit is of another model: it has {circuit.graph.shape}, {model.name or 'this model'} has "
            f"{model.graph.shape}. "
            f"Evaluate it on {(circuit.recipe and circuit.recipe.model) or 'the model it was found in'}."
        )


# In circuits with a larger share of the edges MLPs are run nearly everywhere, so it is not worth finding out where.
SMALL = 0.01


def mlp_rows(prepared: Prepared, plan: Plan, edges: Bool[Tensor, "source target"]) -> list[Rows | None]:
    """For each layer the rows at which its MLP has to be run.

    Args:
        prepared: The batch.
        plan: The circuit.
        edges: Its edges, and those outside of it whose effects are requested.

    Returns:
        The rows, or None where the MLP need not be run.
    """
    small = int(edges.sum()) <= SMALL * prepared.model.graph.n_edges
    if not small or prepared.input.device.type != "cpu":
        every: list[Rows] = [slice(None)] * (len(plan.layers) - 1) + [prepared.last]
        return [at if step.mlp is not None else None for at, step in zip(every, plan.layers, strict=True)]
    live_edges = edges[plan.sources].float()  # (live source, target)
    differs = _can_differ(prepared, plan, live_edges)
    everywhere = _read_everywhere(prepared, plan, live_edges)

    def rows(step: LayerPlan) -> Rows | None:
        if step.mlp is None:
            return None
        mlp_differs = differs[step.mlp_source]
        at = mlp_differs.nonzero()[:, 0] if everywhere[step.mlp_source] else prepared.last[mlp_differs[prepared.last]]
        return at if len(at) else None

    return [rows(step) for step in plan.layers]


def _can_differ(prepared: Prepared, plan: Plan, edges: Float[Tensor, "live target"]) -> Bool[Tensor, "live row"]:
    """Where each live source can write something else than in the corrupted run."""
    graph, n_rows = prepared.model.graph, len(prepared.input)
    differs = torch.zeros(len(plan.sources), n_rows)
    if prepared.ablated:  # nodes write something else than what follows from their inputs
        return differs == 0
    firsts = prepared.last + 1 - prepared.sizes
    first = firsts.repeat_interleave(prepared.sizes)  # for each row, the first one of its example
    if len(plan.sources) and plan.sources[0] == 0:
        differs[0] = (prepared.input != 0).any(-1)
    for index, step in enumerate(plan.layers):
        if step.heads:
            targets = graph.targets_of_heads(index, step.heads)
            q, k, v = (edges[:, targets].T @ differs > 0).view(len(QKV), len(step.heads), n_rows)
            n_before = F.pad((k | v).cumsum(-1), (1, 0))  # of the rows whose key or value differs
            heads_differ = q | (n_before[:, 1:] > n_before[:, first])
            if prepared.model.heads_share_a_norm:
                heads_differ = heads_differ.any(0).expand_as(heads_differ)
            differs[step.head_sources] = heads_differ.float()
        if step.mlp is not None:
            differs[step.mlp_source] = (edges[:, graph.target_mlp(index)] @ differs > 0).float()
    return differs > 0


def _read_everywhere(prepared: Prepared, plan: Plan, edges: Float[Tensor, "live target"]) -> list[bool]:
    """Whether what each live source writes before the last position can reach the logits."""
    graph = prepared.model.graph
    everywhere = torch.zeros(len(plan.sources), dtype=torch.bool)
    for index, step in reversed(list(enumerate(plan.layers))):
        if step.mlp is not None and everywhere[step.mlp_source]:
            everywhere |= edges[:, graph.target_mlp(index)] > 0
        if step.heads:
            targets = graph.targets_of_heads(index, step.heads)
            q, k, v = (edges[:, targets] > 0).view(len(edges), len(QKV), -1).unbind(1)
            queries_count = everywhere[step.head_sources]
            if prepared.model.heads_share_a_norm:
                queries_count = queries_count.any().expand_as(queries_count)
            everywhere |= (k | v | (q & queries_count)).any(1)
    return everywhere.tolist()
