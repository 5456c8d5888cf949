r"""The intervention: run the model with every edge outside a circuit corrupted (Algorithm 1 D).

::

    in_v = sum over edges (u, v) of  x_u  if the edge is in the circuit,  else  x'_u

x_u as computed in this patched run, x'_u in the corrupted one. Written as the corrupted run's input and
the differences that the kept edges bring,

    in_v = in'_v + sum over kept edges of (x_u - x'_u),

it needs nothing of a node that is outside the circuit, and the corrupted run serves every circuit. A
target without a kept edge reads what it reads in the corrupted run, so its projection is taken from there.
Positions before the first differing token have no differences; their keys and values come from the prefix.
With another ablation (``ablation``) x'_u is what that says, in'_v follows from it, and there is no prefix.

Where a norm joins the heads of a layer (after attention, or over all queries or keys), it is that of this
patched run: all heads of the layer are computed, each from what it reads, and all of them enter the norm.

Cost: per batch of examples one clean and one corrupted forward pass (``Stage``), then per circuit the
products of the nodes in it, at most one forward pass over the suffix, and no backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from gradpath.ablation import Ablation
from gradpath.circuit import Circuit
from gradpath.errors import InputError
from gradpath.model.transformer import Past, Run, Transformer, beside
from gradpath.nonfinite import Places
from gradpath.reader import Reader, SpanReader
from gradpath.tasks.metrics import Metric
from gradpath.tasks.task import Pairs

# How many circuits are unembedded at once.
TOGETHER = 8


@dataclass(frozen=True)
class LayerPlan:
    """What a circuit needs of one layer."""

    heads: list[int]  # heads that write to the circuit, and those that share a norm with them
    attention: Reader | SpanReader  # their q, k and v that have a kept edge
    head_rows: slice  # where the heads stand among the live sources
    mlp: Reader | SpanReader | None  # if it writes to the circuit
    mlp_row: int


@dataclass(frozen=True)
class Plan:
    """A circuit's edges, laid out in the order of the computation."""

    sources: Tensor  # the live ones, in order
    layers: list[LayerPlan]
    logits: Reader | SpanReader


def plan(model: Transformer, circuit: Circuit) -> Plan:
    """Find what has to be computed for a circuit: the nodes that write to it, and what they read."""
    graph, mask, masks = circuit.graph, circuit.mask, circuit.masks
    live = mask.any(1)
    if model.heads_share_a_norm:
        live_heads = live[1:].view(graph.n_layers, -1)[:, :-1]
        live_heads |= live_heads.any(1, keepdim=True)
    edges = masks[:, live].mT.to(model.device, model.dtype)  # (span, target, live source)

    def reader(targets: list[int], columns: Tensor, n_sources: int) -> Reader | SpanReader:
        parts = [Reader.of(targets, own[columns, :n_sources]) for own in edges]
        return SpanReader(parts) if circuit.spans else parts[0]

    row = (live.cumsum(0) - 1).tolist()
    layers = []
    for layer in range(graph.n_layers):
        first, last = graph.source_head(layer), graph.source_mlp(layer)
        heads = [h for h in range(graph.n_heads) if live[first + h]]
        begin = int(live[:first].sum())
        own = [qkv * graph.n_heads + h for qkv in range(3) for h in heads]
        columns = graph.target_head(layer) + torch.tensor(own, dtype=torch.long, device="cpu")
        fed = mask[:, columns].any(0)
        targets = [x for x, is_fed in zip(own, fed.tolist(), strict=True) if is_fed]
        attention = reader(targets, columns[fed], begin)
        rows = slice(begin, begin + len(heads))
        below = begin if graph.parallel else rows.stop
        mlp = (
            reader([0], torch.tensor([graph.target_mlp(layer)], device="cpu"), below) if live[last] else None
        )
        layers.append(LayerPlan(heads, attention, rows, mlp, row[last]))
    logits = reader([0], torch.tensor([graph.logits], device="cpu"), edges.shape[-1])
    return Plan(live.nonzero()[:, 0], layers, logits)


@dataclass(frozen=True)
class Stage:
    """One batch, set up for any number of circuits: its corrupted run, and the logits of both ends."""

    model: Transformer
    batch: Pairs
    corrupted: Run  # or that of the ablation
    ablated: bool  # its nodes write something else than what follows from what they read
    prefix: list[Past]  # per layer, or empty if the prompts differ from the first token on
    input: Tensor  # (batch, pos, d_model): x - x' of the node input
    clean_logits: Tensor  # (batch, vocab)
    corrupted_logits: Tensor

    @property
    def spans(self) -> Tensor | None:
        """The span of each position of the suffix, (batch, pos), where positions have names."""
        return None if self.batch.spans is None else self.batch.spans[:, self.batch.start :]

    @property
    def last(self) -> tuple[Tensor, Tensor]:
        """Where each example's last token stands in the suffix."""
        at = self.batch.last - self.batch.start
        return torch.arange(len(at), device=at.device), at


def set_stage(model: Transformer, batch: Pairs, ablation: Ablation | None = None) -> Stage:
    """Run the clean and the corrupted prompts of a batch; or take an ablation for the corrupted run."""
    start = batch.start
    clean, corrupted = model.embed(batch.clean), model.embed(batch.corrupted)
    past = model.prefix(clean[:, :start]) if start else []
    row, at = torch.arange(len(batch), device=model.device), batch.last - start
    clean_run = model.run(clean[:, start:], start=start, past=past)
    if ablation is None:
        run = model.run(corrupted[:, start:], start=start, past=past)
    else:
        corrupted, run = ablation.run(model, *batch.clean.shape)
    return Stage(
        model=model,
        batch=batch,
        corrupted=run,
        ablated=ablation is not None,
        prefix=past,
        input=(clean - corrupted)[:, start:],
        clean_logits=model.unembed(clean_run.final_in[row, at]),
        corrupted_logits=model.unembed(run.final_in[row, at]),
    )


def run_circuits(stage: Stage, plans: Sequence[Plan]) -> Iterator[Tensor]:
    """For each circuit the logits at the last position, every other edge corrupted, (batch, vocab).

    Several are unembedded together: for one batch alone the unembedding's weights take longer to read
    than to multiply with.
    """
    for at in range(0, len(plans), TOGETHER):
        finals = torch.stack([_final_read(stage, todo) for todo in plans[at : at + TOGETHER]])
        yield from stage.model.unembed(finals)


def _final_read(stage: Stage, todo: Plan) -> Tensor:
    """What ``logits`` reads at the last position in the circuit's run, (batch, d_model)."""
    return last_reads(stage, todo, run_nodes(stage, todo))[1]


def run_nodes(stage: Stage, todo: Plan) -> Tensor:
    """What live nodes write here less what they write in the corrupted run, (source, batch, pos, d_model).

    Of the last MLP, as of the logits, only each prompt's last position is ever read: its row stays zero.
    """
    model = stage.model
    deltas = stage.input.new_zeros(len(todo.sources), *stage.input.shape)
    if len(todo.sources) and todo.sources[0] == 0:
        deltas[0] = stage.input
    for index, step in enumerate(todo.layers):
        before = stage.corrupted.layers[index]
        # A head that reads as in the corrupted run writes as in it; one that was ablated does not.
        if step.attention.targets or (stage.ablated and step.heads):
            x = step.attention.read(before.attn_in, deltas, stage.spans)
            deltas[step.head_rows] = beside(run_heads(stage, index, step, x), deltas)
        if step.mlp is not None and index + 1 < len(todo.layers):
            x = step.mlp.read(before.mlp_in, deltas, stage.spans)[0]
            deltas[step.mlp_row] = beside(model.mlp(model.layers[index], x) - before.mlp_out, deltas)
    return deltas


def of_circuits(stage: Stage, plans: Sequence[Plan], metric: Metric) -> Places:
    """What each live node brings in each circuit, its logits and metric: where a value may not be finite."""
    for number, todo in enumerate(plans, start=1):
        where = "in the circuit" + (f" {number} of {len(plans)}" if len(plans) > 1 else "")
        for source, delta in zip(todo.sources.tolist(), run_nodes(stage, todo), strict=True):
            yield f"{stage.model.graph.sources[source]} {where}", delta
        logits = stage.model.unembed(_final_read(stage, todo))
        yield f"logits {where}", logits
        yield f"the metric {where}", metric(logits, stage.batch.labels)


def last_reads(stage: Stage, todo: Plan, deltas: Tensor) -> tuple[Tensor, Tensor]:
    """What live nodes bring to the last position, (source, batch, d_model), and what ``logits`` reads."""
    model = stage.model
    ends, before, step = deltas[:, *stage.last], stage.corrupted.layers[-1], todo.layers[-1]
    spans = None if stage.spans is None else stage.spans[stage.last]
    if step.mlp is not None:
        mlp_in, mlp_out = (beside(x, deltas)[stage.last] for x in (before.mlp_in, before.mlp_out))
        x = beside(step.mlp.read(mlp_in, ends, spans)[0], before.mlp_in)
        ends[step.mlp_row] = beside(model.mlp(model.layers[-1], x), ends) - mlp_out
    return ends, todo.logits.read(stage.corrupted.final_in[stage.last], ends, spans)[0]


def run_heads(stage: Stage, index: int, step: LayerPlan, x: Tensor) -> Tensor:
    """What a layer's live heads write beyond the corrupted run, (head, batch, pos, d_model).

    ``x`` is what each of their q, k and v that has a kept edge reads, (target, batch, pos, d_model).
    """
    model, layer, a = stage.model, stage.model.layers[index], stage.model.arch
    before, heads = stage.corrupted.layers[index], step.heads
    fresh = _project(model, index, step.attention.targets, model.read_norm(x)[0])
    q, k, v = made = [corrupted[:, :, heads] for corrupted in (before.q, before.k, before.v)]
    for target, projected in zip(step.attention.targets, fresh, strict=True):
        qkv, head = divmod(target, a.n_heads)
        made[qkv][:, :, heads.index(head)] = projected
    place = model.place(stage.batch.start, x.shape[-2]).beside(layer.w_qkv)
    prefix = Past(*(x[:, heads] for x in stage.prefix[index])) if stage.prefix else None
    past = model.keys_and_values(layer, k, v, place).behind(prefix)
    z = model.attend(layer, model.queries(layer, q, place), past, place)  # (batch, pos, head, d_head)
    # Heads that share a norm are all here.
    written = z if layer.attn_gain is None else model.attention_out(layer, z)[1]
    change = (written - before.written[:, :, heads]).flatten(0, 1).transpose(0, 1)  # (head, row, d_head)
    w_write = layer.w_write.view(a.d_model, a.n_heads, a.d_head)[:, heads].permute(1, 2, 0)
    return torch.bmm(change, w_write).view(len(heads), *before.attn_in.shape)


def _project(model: Transformer, index: int, targets: list[int], y: Tensor) -> list[Tensor]:
    """Each target's own head projection of its own normalised input, (batch, pos, d_head) each."""
    a, layer = model.arch, model.layers[index]
    weights = layer.w_qkv.view(-1, a.d_head, a.d_model)
    biases = None if layer.b_qkv is None else layer.b_qkv.view(-1, a.d_head)
    rows = [_weight_row(target, a.n_heads, a.n_kv_heads) for target in targets]
    return [F.linear(y[i], weights[r], None if biases is None else biases[r]) for i, r in enumerate(rows)]


def _weight_row(target: int, n_heads: int, n_kv_heads: int) -> int:
    """Where the fused projection keeps the head of a target: query heads share keys and values."""
    qkv, head = divmod(target, n_heads)
    if qkv == 0:
        return head
    return n_heads + (qkv - 1) * n_kv_heads + head // (n_heads // n_kv_heads)


def check_same_graph(model: Transformer, circuit: Circuit) -> None:
    if model.graph != circuit.graph:
        ours, theirs = (
            f"{x.n_layers} {'parallel ' if x.parallel else ''}layers of {x.n_heads} heads"
            for x in (model.graph, circuit.graph)
        )
        raise InputError(
            f"the circuit is of another model: it has {theirs}, {model.name or 'this model'} has {ours}. "
            f"Evaluate it on {circuit.about.get('model') or 'the model it was found in'}."
        )
