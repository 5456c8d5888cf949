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
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from gradpath.ablation import Ablation, ablation_of
from gradpath.evaluation.plan import LayerPlan, Plan, SpanReads, SparseReads
from gradpath.limits import Limits
from gradpath.model.transformer import LayerRun, Past, PositionInfo, Run, Transformer, to_device_of
from gradpath.runtime import progress
from gradpath.sweep import Places
from gradpath.tasks.metrics import Metric, metric_of
from gradpath.tasks.task import Pairs, Task

# Called with a layer, its live heads, and their queries, keys and values in the circuit's run.
Watch = Callable[[int, list[int], Tensor, Past, PositionInfo], None]
# How many circuits are unembedded at once.
TOGETHER = 8
# Bytes of set-ups that are kept; others are made again.
ROOM = 3 * 2**27


@dataclass(frozen=True)
class Prepared:
    """One batch, set up for any number of circuits: its corrupted run, and what ``logits`` reads at both ends."""

    model: Transformer
    batch: Pairs
    corrupted: Run  # or that of the ablation
    ablated: bool  # whether its nodes write something else than what follows from their inputs
    prefix: list[Past]  # per layer, or empty if the prompts differ from the first token on
    input: Tensor  # (batch, pos, d_model): x - x' of the node input
    clean_final: Tensor  # (batch, d_model): what logits reads at the last position of the clean prompts

    @property
    def spans(self) -> Tensor | None:
        """The span of each position of the suffix, (batch, pos), where positions have names."""
        return None if self.batch.spans is None else self.batch.spans[:, self.batch.start :]

    def for_circuits(self) -> Prepared:
        """The same without what no circuit reads: parts of the corrupted run, and copies of shared keys and values."""
        none, a = self.input.new_empty(0), self.model.arch

        def once(x: Tensor, axis: int, n_own: int) -> Tensor:
            first_of_group = torch.arange(0, a.n_heads, a.n_heads // n_own, device=x.device)
            return x if n_own == a.n_heads else x.index_select(axis, first_of_group)

        layers = []
        for x in self.layers:
            q, k, v = (once(part, 2, n_own) for part, n_own in zip((x.q, x.k, x.v), a.qkv_blocks, strict=True))
            layers.append(replace(x, q=q, k=k, v=v, y=none, rstd=none, z=none, past=Past(none, none)))
        n_keys = a.n_kv_heads if a.d_latent is None else a.n_heads  # what is made of a latent differs between heads
        prefix = [Past(once(past.keys, 1, n_keys), once(past.values, 1, n_keys)) for past in self.prefix]
        return replace(self, corrupted=replace(self.corrupted, layers=layers), prefix=prefix)

    def ends(self, metric: Metric) -> Tensor:
        """The metric of the examples on the clean prompts, and on the corrupted ones or ablated, (2, batch)."""
        finals = torch.stack([self.clean_final, self.corrupted.final_in[self.last]])
        return metric_of(self.model, metric, finals, self.batch.labels)

    @property
    def n_bytes(self) -> int:
        """The memory that the runs take."""
        parts = [x for layer in self.layers for x in vars(layer).values() if isinstance(x, Tensor)]
        return sum(x.nbytes for x in (*parts, *(x for past in self.prefix for x in past)))

    @property
    def layers(self) -> list[LayerRun]:
        """The layers of the corrupted run."""
        return self.corrupted.layers

    @cached_property
    def positions(self) -> PositionInfo:
        """Masks and rotations of the suffix."""
        return self.model.position_info(self.batch.start, self.input.shape[1])

    @property
    def last(self) -> tuple[Tensor, Tensor]:
        """The index of each example's last token in the suffix."""
        at = self.batch.last - self.batch.start
        return torch.arange(len(at), device=at.device), at

    @cached_property
    def differing(self) -> tuple[slice | Tensor, slice | Tensor]:
        """The positions of the suffix where an example can differ from its corrupted run, (batch, pos).

        They are those from its first differing token to its last token; the rest is padding, or before that token.
        """
        pos = torch.arange(self.batch.start, self.batch.start + self.input.shape[1], device=self.batch.last.device)
        inside = (self.batch.first[:, None] <= pos) & (pos <= self.batch.last[:, None])
        if bool(inside.all()):
            return slice(None), slice(None)
        row, at = inside.nonzero().unbind(1)
        return row, at


def prepare(model: Transformer, batch: Pairs, ablation: Ablation | None = None) -> Prepared:
    """Run the clean and the corrupted prompts of a batch; or take an ablation for the corrupted run."""
    start = batch.start
    clean, corrupted = model.embed(batch.clean), model.embed(batch.corrupted)
    past = model.prefix(clean[:, :start]) if start else []
    row, at = torch.arange(len(batch), device=model.device), batch.last - start
    clean_final = model.final_in(clean[:, start:], start=start, past=past)
    if ablation is None:
        run = model.run(corrupted[:, start:], start=start, past=past)
    else:
        corrupted, run = ablation.run(model, *batch.clean.shape)
    return Prepared(
        model=model,
        batch=batch,
        corrupted=run,
        ablated=ablation is not None,
        prefix=past,
        input=(clean - corrupted)[:, start:],
        clean_final=clean_final[row, at],
    )


class SetUp(NamedTuple):
    """A batch that is ready for circuits, and the metric of its examples at both ends, (batch,)."""

    prepared: Prepared
    clean: Tensor
    corrupted: Tensor


class SetUps:
    """The set-ups of batches. They are kept for further circuits as long as there is room for them."""

    def __init__(self, model: Transformer, metric: Metric, ablation: Ablation | None, room: int = ROOM) -> None:
        """``room`` is the memory in bytes that may be kept."""
        self.model, self.metric, self.ablation, self.room = model, metric, ablation, room
        self.task: Task | None = None
        self.batches: list[Pairs] | None = None  # all examples, in the batches in which they were set up
        self._kept = dict[tuple[int, ...], SetUp]()

    @classmethod
    def of(cls, model: Transformer, task: Task, ablation: str, limits: Limits) -> SetUps:
        """The set-ups of a task's examples, which all share that ask for them while someone holds them."""
        key = id(model), id(task), ablation
        held = _HELD.get(key)
        if held is None:
            held = _HELD[key] = cls(model, task.metric, ablation_of(ablation, model, task, limits))
            held.task = task  # so that no other task gets its id
        return held

    @torch.no_grad()
    def prepare(self, batch: Pairs) -> SetUp:
        """The set-up of a batch; a batch is known by the numbers of its examples."""
        key = tuple(batch.index.tolist())
        if key in self._kept:
            return self._kept[key]
        prepared = prepare(self.model, batch.to(self.model.device), self.ablation)
        set_up = SetUp(prepared.for_circuits(), *prepared.ends(self.metric))
        if (n_bytes := set_up.prepared.n_bytes) <= self.room:
            self._kept[key] = set_up
            self.room -= n_bytes
        return set_up

    def keep_only(self, examples: Collection[int]) -> None:
        """Forget the batches with other examples than these."""
        inside = set(examples)
        for key in [key for key in self._kept if not inside.issuperset(key)]:
            self.room += self._kept.pop(key).prepared.n_bytes


_HELD = WeakValueDictionary[tuple[int, int, str], SetUps]()


def run_circuits(prepared: Prepared, plans: Sequence[Plan], metric: Metric) -> Iterator[Tensor]:
    """For each circuit the metric of the examples, every other edge corrupted, (batch,).

    Several are unembedded together: for one batch alone the unembedding's weights take longer to read
    than to multiply with.
    """
    for at in range(0, len(plans), TOGETHER):
        finals = torch.stack([final_read(prepared, plan) for plan in plans[at : at + TOGETHER]])
        yield from metric_of(prepared.model, metric, finals, prepared.batch.labels)


def final_read(prepared: Prepared, plan: Plan) -> Tensor:
    """What ``logits`` reads at the last position in the circuit's run, (batch, d_model)."""
    return last_reads(prepared, plan, run_nodes(prepared, plan))[1]


def run_nodes(prepared: Prepared, plan: Plan, watch: Watch | None = None) -> Tensor:
    """The writes of live nodes here minus those in the corrupted run, (source, batch, pos, d_model).

    Of the last MLP, as of the logits, only each prompt's last position is ever read: its row stays zero. ``watch``
    sees the attention of every layer that is run; other layers attend as in the corrupted run.
    """
    model = prepared.model
    deltas = prepared.input.new_zeros(len(plan.sources), *prepared.input.shape)
    if len(plan.sources) and plan.sources[0] == 0:
        deltas[0] = prepared.input
    for index, step in enumerate(plan.layers):
        before = prepared.layers[index]
        count_nodes(prepared, step)
        # A head that reads as in the corrupted run writes as in it; one that was ablated does not.
        if step.attention.targets or (prepared.ablated and step.heads):
            x = step.attention.read(before.attn_in, deltas, prepared.spans)
            projected = project(model, index, step.attention.targets, x).values
            change = run_heads(prepared, index, step, projected, watch)
            deltas[step.head_rows] = to_device_of(write_heads(model, index, step, change), deltas).view_as(
                deltas[step.head_rows]
            )
        if step.mlp is not None and index + 1 < len(plan.layers):
            x = read_mlp(prepared, index, step.mlp, deltas)
            at = prepared.differing
            written = to_device_of(model.mlp(model.layers[index], x), deltas)
            deltas[step.mlp_row, *at] = written - to_device_of(before.mlp_out, deltas)[at]
    return deltas


def read_mlp(prepared: Prepared, index: int, reads: SparseReads | SpanReads, deltas: Tensor) -> Tensor:
    """What a layer's MLP reads where examples can differ from their corrupted run, (row, d_model) if not everywhere."""
    mlp_in = prepared.layers[index].mlp_in
    x = reads.read(mlp_in, deltas, prepared.spans)[0]
    return to_device_of(to_device_of(x, deltas)[prepared.differing], mlp_in)


def count_nodes(prepared: Prepared, step: LayerPlan) -> None:
    """Count the live nodes of a layer as a share of its work."""
    live = len(step.heads) + (step.mlp is not None)
    progress.count(prepared.input[..., 0].numel() * live / (prepared.model.arch.n_heads + 1))


def places_in_circuits(prepared: Prepared, plans: Sequence[Plan], metric: Metric) -> Places:
    """Every live node of each circuit, its logits and metric: where a value may not be finite."""
    for number, plan in enumerate(plans, start=1):
        where = "in the circuit" + (f" {number} of {len(plans)}" if len(plans) > 1 else "")
        for source, delta in zip(plan.sources.tolist(), run_nodes(prepared, plan), strict=True):
            yield f"{prepared.model.graph.sources[source]} {where}", delta
        final = final_read(prepared, plan)
        yield f"logits {where}", prepared.model.unembed(final)
        yield f"the metric {where}", metric_of(prepared.model, metric, final[None], prepared.batch.labels)


def last_reads(prepared: Prepared, plan: Plan, deltas: Tensor) -> tuple[Tensor, Tensor]:
    """The writes of live nodes at the last position, (source, batch, d_model), and what ``logits`` reads."""
    model = prepared.model
    ends, before, step = deltas[:, *prepared.last], prepared.layers[-1], plan.layers[-1]
    spans = None if prepared.spans is None else prepared.spans[prepared.last]
    if step.mlp is not None:
        mlp_in, mlp_out = (to_device_of(x, deltas)[prepared.last] for x in (before.mlp_in, before.mlp_out))
        x = to_device_of(step.mlp.read(mlp_in, ends, spans)[0], before.mlp_in)
        ends[step.mlp_row] = to_device_of(model.mlp(model.layers[-1], x), ends) - mlp_out
    return ends, plan.logits.read(prepared.corrupted.final_in[prepared.last], ends, spans)[0]


class Projected(NamedTuple):
    """Some q, k and v of a layer, each projected from what it reads."""

    weights: Tensor  # (target, d_qkv, d_model)
    product: Tensor  # (target, row, d_qkv): of the weights and x
    rstd: Tensor | None  # (target, row, 1): 1/sigma of x, if the family normalises before attention
    values: Tensor  # (target, row, d_qkv): the projection


def project(model: Transformer, index: int, targets: list[int], x: Tensor) -> Projected:
    """Each target's own head projection of what it reads, x (target, batch, pos, d_model).

    The product with the weights is linear, so 1/sigma is multiplied afterwards, where a row is d_head wide and not
    d_model. Behind a LayerNorm the weights are centred and so is x, in place: then both kinds of norm are one.
    """
    a, layer = model.arch, model.layers[index]
    rows = [a.projection_row(*divmod(target, a.n_heads)) for target in targets]
    weights = layer.w_qkv.view(-1, a.d_qkv, a.d_model)[rows]
    x = x.flatten(1, 2)
    if a.norm_before and a.norm == "layer":
        x -= x.mean(-1, keepdim=True)
        weights = weights - weights.mean(-1, keepdim=True)  # again, in the precision of this run
    product = values = torch.bmm(x, weights.mT)
    rstd = None
    if a.norm_before:
        wide = torch.promote_types(x.dtype, torch.float32)
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide).square() / a.d_model
        rstd = (square + a.norm_eps).rsqrt() + 0 * square  # not finite where the squares are not
        values = (product * rstd).to(x.dtype)
    if layer.b_qkv is not None:
        values = values + layer.b_qkv.view(-1, a.d_qkv)[rows][:, None]
    return Projected(weights, product, rstd, values)


def write_heads(model: Transformer, index: int, step: LayerPlan, change: Tensor) -> Tensor:
    """What a layer's live heads write, (head, row, d_model), of their values, (head, row, d_head)."""
    return torch.bmm(change, write_weights(model, index, step))


def write_weights(model: Transformer, index: int, step: LayerPlan) -> Tensor:
    """The maps from the live heads' values to what they write, (head, d_head, d_model)."""
    a = model.arch
    return model.layers[index].w_write.view(a.d_model, a.n_heads, a.d_head)[:, step.heads].permute(1, 2, 0)


def run_heads(prepared: Prepared, index: int, step: LayerPlan, projected: Tensor, watch: Watch | None = None) -> Tensor:
    """The values of a layer's live heads minus those in the corrupted run, (head, row, d_head).

    ``projected`` are their q, k and v that have a kept edge, (target, row, d_qkv).
    """
    model, layer, a = prepared.model, prepared.model.layers[index], prepared.model.arch
    before, heads = prepared.layers[index], step.heads
    q, k, v = (_of_heads(x, heads, a.n_heads, 2) for x in (before.q, before.k, before.v))
    # Every q, k and v as in the corrupted run, but for those that read something else.
    place = {head: row for row, head in enumerate(heads)}
    rows = [qkv * len(heads) + place[head] for qkv, head in (divmod(x, a.n_heads) for x in step.attention.targets)]
    qkv_heads = torch.cat([q, k, v], 2).permute(2, 0, 1, 3)  # (q, k, v of each head; batch, pos, d_qkv)
    fresh = projected.view(-1, *prepared.input.shape[:2], a.d_qkv)
    qkv_heads = qkv_heads.index_copy(0, torch.tensor(rows, dtype=torch.long, device=fresh.device), fresh)
    q, k, v = torch.split(qkv_heads.permute(1, 2, 0, 3), len(heads), 2)
    positions = prepared.positions.to_device_of(layer.w_qkv)
    if len(heads) < a.n_heads:
        layer, positions = layer.of_heads(heads), positions.of_heads(heads)
    prefix = Past(*(_of_heads(x, heads, a.n_heads, 1) for x in prepared.prefix[index])) if prepared.prefix else None
    past = model.keys_and_values(layer, k, v, positions).after(prefix)
    queries = model.queries(layer, q, positions)
    if watch is not None:
        watch(index, heads, queries, past, positions)
    z = model.attend(layer, queries, past, positions)  # (batch, pos, head, d_head)
    # Heads that share a norm are all here.
    written = z if layer.attn_gain is None else model.attention_out(layer, z)[1]
    return (written - before.written[:, :, heads]).flatten(0, 1).transpose(0, 1)


def _of_heads(x: Tensor, heads: list[int], n_heads: int, axis: int) -> Tensor:
    """The part of each head, of a tensor that has one for every head or for every group that shares keys and values."""
    n_parts = x.shape[axis]
    if len(heads) == n_heads == n_parts:
        return x
    parts = [head * n_parts // n_heads for head in heads]
    return x.index_select(axis, torch.tensor(parts, dtype=torch.long, device=x.device))
