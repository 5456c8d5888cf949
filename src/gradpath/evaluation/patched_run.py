r"""The patched run: run the model with every edge outside a circuit ablated (Algorithm 1 D).

::

    in_v = sum over edges (u, v) of  x_u  if the edge is in the circuit,  else  x'_u

with x_u as computed in this patched run and x'_u in the corrupted one. Written as the corrupted run's input
and the differences that the kept edges bring,

    in_v = in'_v + sum over kept edges of (x_u - x'_u),

it needs no node outside the circuit, and the corrupted run serves every circuit. A target without a kept edge
reads what it reads in the corrupted run, so its projection is taken from there. Positions before the first
differing token have no differences; their keys and values come from the prefix. With another ablation
(``ablation``) x'_u is what that defines, in'_v follows from it, and there is no prefix.

Where a norm joins the heads of a layer (after attention, or over all queries or keys), it is that of this
patched run: all heads of the layer are computed, each from what it reads, and all of them enter the norm.

Cost: per batch of examples one clean and one corrupted forward pass (``Prepared``), then per circuit the
products of the nodes in it, at most one forward pass over the suffix, and no backward pass.

A circuit is laid out in the order of the computation first (``Plan``). Only nodes that write to the circuit are *live*,
and only these are run.

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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Float
from torch import Tensor

from gradpath.circuit import Circuit
from gradpath.errors import InputError
from gradpath.graph import QKV
from gradpath.model.transformer import Past, PositionInfo, Rows, Transformer
from gradpath.prepared import Prepared
from gradpath.tasks.metrics import Metric, metric_of

# Called with a layer, its live heads, and their queries (zero but for rows), keys and values in the circuit's run.
Watch = Callable[[int, list[int], Tensor, Past, PositionInfo], None]
# How many circuits are run at once, if they are small.
TOGETHER = 8
# In circuits with a larger share of the edges MLPs are run nearly everywhere, so it is not worth finding out where.
SMALL = 0.01


def sum_groups(
    nodes: Tensor, members: Tensor, begins: Tensor, weights: Tensor | None = None, at: Rows = slice(None)
) -> Tensor:
    """The sum of each group of nodes, (row, group, d_model), of what the nodes have at each row, (node, row, d_model).

    ``members`` are the nodes of the first group, then those of the second, and so on; ``begins`` is where each group
    begins among them. ``weights`` multiply the members, and ``at`` are the rows at which to sum; by default all.
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

        ``base`` is the corrupted input at the rows of ``at``, (row, d_model), and ``deltas`` are the differences that
        the live sources write, (source, row, d_model). ``out`` is where to put the result.
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
        return torch.add(brought, base, out=out)

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

    ``weights`` are how much of each edge is in the circuit, above 0 and up to 1; by default all of it. An edge of
    weight w brings w times the difference, so it carries w x_u + (1 - w) x'_u.
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


def mlp_rows(prepared: Prepared, plan: Plan, edges: Bool[Tensor, "source target"]) -> list[Rows | None]:
    """For each layer the rows at which its MLP has to be run, or None where it need not be run.

    ``edges`` are those of the circuit, and those outside of it whose effects are requested.
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


def run_circuits(prepared: Prepared, plans: Sequence[Plan], metric: Metric) -> Iterator[Tensor]:
    """For each circuit the metric of the examples, all edges outside it ablated, (batch,).

    Small circuits run together, layer by layer, and are unembedded together: for one batch of one circuit, weights
    take longer to read than to multiply with.
    """
    for group in _groups(plans, prepared.model.graph.n_sources):
        finals = torch.stack(final_reads(prepared, group))
        yield from metric_of(prepared.model, metric, finals, prepared.batch.labels)


def _groups(plans: Sequence[Plan], n_sources: int) -> Iterator[list[Plan]]:
    """The plans in groups, each with at most as many live sources as there are in the model, or of a single plan."""
    group = list[Plan]()
    for plan in plans:
        if group and (len(group) == TOGETHER or sum(len(member.sources) for member in (*group, plan)) > n_sources):
            yield group
            group = []
        group.append(plan)
    if group:
        yield group


def final_reads(prepared: Prepared, plans: Sequence[Plan]) -> list[Tensor]:
    """What ``logits`` reads at the last position in each circuit's run, (batch, d_model)."""
    base, at, runs = prepared.corrupted_final, prepared.last, run_nodes(prepared, plans)
    return [plan.logits.read(base, deltas, at=at)[0] for plan, deltas in zip(plans, runs, strict=True)]


def run_nodes(prepared: Prepared, plans: Sequence[Plan], watch: Watch | None = None) -> list[Tensor]:
    """For each circuit what its live nodes write, minus what they write in the corrupted run, (source, row, d_model).

    MLPs are run where their writes can differ and are read (``mlp_rows``), those of a layer in one product. ``watch``
    sees the attention of every layer that is run; other layers attend as in the corrupted run.
    """
    model, runs = prepared.model, [input_only(prepared, plan) for plan in plans]
    rows = [mlp_rows(prepared, plan, plan.edges) for plan in plans]
    for index, layer in enumerate(model.layers):
        mlps = list[tuple[Tensor, int, Rows, Tensor]]()
        for plan, deltas, rows_of_plan in zip(plans, runs, rows, strict=True):
            step, at = plan.layers[index], rows_of_plan[index]
            _run_attention(prepared, index, step, deltas, watch)
            if step.mlp is not None and at is not None:
                mlps.append((deltas, step.mlp_source, at, read_mlp(prepared, index, step.mlp, deltas, at)))
        if not mlps:
            continue
        written = model.mlp(layer, torch.cat([x for *_, x in mlps]))
        for (deltas, source, at, _), mlp_write in zip(
            mlps, torch.split(written, [len(x) for *_, x in mlps]), strict=True
        ):
            deltas[source, at] = mlp_write - prepared.layers[index].mlp_out[at]
    return runs


def input_only(prepared: Prepared, plan: Plan) -> Tensor:
    """The differences of the live sources before any layer is run, (source, row, d_model)."""
    deltas = prepared.input.new_zeros(len(plan.sources), *prepared.input.shape)
    if len(plan.sources) and plan.sources[0] == 0:
        deltas[0] = prepared.input
    return deltas


def _run_attention(prepared: Prepared, index: int, step: LayerPlan, deltas: Tensor, watch: Watch | None) -> None:
    """Fill in the differences of a layer's live heads."""
    # A head that reads as in the corrupted run writes as in it; one that was ablated does not.
    if step.attention.targets or (prepared.ablated and step.heads):
        x = step.attention.read(prepared.layers[index].attn_in, deltas)
        projected = project(prepared.model, index, step.attention.targets, x).values
        change = run_heads(prepared, index, step, projected, watch)
        deltas[step.head_sources] = write_heads(prepared.model, index, step, change)


def read_mlp(prepared: Prepared, index: int, reads: SparseReads, deltas: Tensor, at: Rows) -> Tensor:
    """What a layer's MLP reads at some rows, (row, d_model)."""
    return reads.read(prepared.layers[index].mlp_in[at], deltas, at=at)[0]


class Projected(NamedTuple):
    """Some q, k and v of a layer, each projected from what it reads."""

    weights: list[Tensor]  # of each target, (d_qkv, d_model)
    product: Tensor  # (target, row, d_qkv): of the weights and x
    rstd: Tensor | None  # (target, row, 1): 1/sigma of x, if the family normalises before attention
    values: Tensor  # (target, row, d_qkv): the projection


def project(model: Transformer, index: int, targets: list[int], x: Tensor) -> Projected:
    """Each target's own head projection of what it reads, x (target, row, d_model).

    The product with the weights is linear, so 1/sigma is multiplied afterwards, where a row is d_head wide and not
    d_model. Behind a LayerNorm the weights are centred and so is x, in place: then both kinds of norm are one.
    """
    a, layer = model.arch, model.layers[index]
    rows = [a.projection_row(*model.graph.place_in_layer(target)) for target in targets]
    of_heads = layer.w_qkv.view(-1, a.d_qkv, a.d_model).unbind()
    weights = [of_heads[row] for row in rows]
    if a.norm_before and a.norm == "layer":
        x -= x.mean(-1, keepdim=True)
        weights = [w - w.mean(-1, keepdim=True) for w in weights]  # again, in the precision of this run
    product = values = products(x, [w.T for w in weights], a.d_qkv)
    rstd = None
    if a.norm_before:
        wide = torch.promote_types(x.dtype, torch.float32)
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide).square() / a.d_model
        rstd = (square + a.norm_eps).rsqrt() + 0 * square  # not finite where the squares are not
        values = (product * rstd).to(x.dtype)
    if layer.b_qkv is not None:
        values = values + layer.b_qkv.view(-1, a.d_qkv)[rows][:, None]
    return Projected(weights, product, rstd, values)


def products(x: Tensor, weights: list[Tensor], d_out: int) -> Tensor:
    """Each x (row, d_in) of several times its own weights (d_in, d_out), as (each, row, d_out)."""
    if x.device.type != "cpu" and weights:
        return torch.bmm(x, torch.stack(weights))
    # One by one: to gather the weights takes longer than a product with a small batch.
    out = x.new_empty(*x.shape[:2], d_out)
    for rows, weight, product in zip(x, weights, out, strict=True):
        torch.mm(rows, weight, out=product)
    return out


def write_heads(model: Transformer, index: int, step: LayerPlan, change: Tensor) -> Tensor:
    """What a layer's live heads write, (head, row, d_model), of their values, (head, row, d_head)."""
    return products(change, [w.T for w in write_weights(model, index, step)], model.arch.d_model)


def write_weights(model: Transformer, index: int, step: LayerPlan) -> list[Tensor]:
    """The maps from the live heads' values to what they write, (d_model, d_head) each."""
    of_heads = model.head_output_weights(index).unbind(1)
    return [of_heads[head] for head in step.heads]


def run_heads(prepared: Prepared, index: int, step: LayerPlan, projected: Tensor, watch: Watch | None = None) -> Tensor:
    """The values of a layer's live heads minus those in the corrupted run, (head, row, d_head).

    ``projected`` are their q, k and v that have a kept edge, (target, row, d_qkv).
    """
    model, layer, a = prepared.model, prepared.model.layers[index], prepared.model.arch
    before, heads, cells = prepared.layers[index], step.heads, prepared.cells
    k, v = (_of_heads(x, heads, a.n_heads, 2) for x in (before.k, before.v))
    q = torch.zeros_like(k).flatten(0, 1).index_copy(0, cells, _of_heads(before.q, heads, a.n_heads, 1)).view_as(k)
    # Every q, k and v as in the corrupted run, but for those that read something else.
    place, each = {head: row for row, head in enumerate(heads)}, 3 * len(heads)
    which = [qkv * len(heads) + place[head] for qkv, head in map(model.graph.place_in_layer, step.attention.targets)]
    fresh = torch.tensor(which, dtype=torch.long, device=cells.device)[:, None] + each * cells  # (target, row)
    qkv_heads = torch.cat([q, k, v], 2)  # (batch, pos, q, k and v of each head, d_qkv)
    qkv_heads = qkv_heads.flatten(0, 2).index_copy(0, fresh.flatten(), projected.flatten(0, 1)).view_as(qkv_heads)
    q, k, v = torch.split(qkv_heads, len(heads), 2)
    positions = prepared.positions
    if len(heads) < a.n_heads:
        layer, positions = layer.of_heads(heads), positions.of_heads(heads)
    prefix = Past(*(_of_heads(x, heads, a.n_heads, 1) for x in prepared.prefix[index])) if prepared.prefix else None
    past = model.keys_and_values(layer, k, v, positions).after(prefix)
    queries = model.queries(layer, q, positions)
    if watch is not None:
        watch(index, heads, queries, past, positions)
    z = model.attend(layer, queries, past, positions)  # (batch, pos, head, d_head)
    z = z.flatten(0, 1).index_select(0, cells)  # (row, head, d_head)
    # Heads that share a norm are all here.
    written = z if layer.attn_gain is None else model.attention_out(layer, z)[1]
    return (written - before.written[:, heads]).transpose(0, 1)


def _of_heads(x: Tensor, heads: list[int], n_heads: int, axis: int) -> Tensor:
    """The part of each head, of a tensor that has one for every head or for every group that shares keys and values."""
    n_parts = x.shape[axis]
    if len(heads) == n_heads == n_parts:
        return x
    parts = [head * n_parts // n_heads for head in heads]
    return x.index_select(axis, torch.tensor(parts, dtype=torch.long, device=x.device))
