r"""What the nodes of a circuit do on every example: where they attend, their effect, what they write.

For an example, a node u of the circuit and the parts p of its prompt::

    attention  mean weight from the queries in one part to the keys in another: on the clean prompt, on the
               corrupted one, and in the circuit's own run
    effect     sum over positions in p of (x_u - x'_u) . g_u: the first-order effect of u on the metric. g_u is the
               gradient of the metric at the output of u, averaged over the clean and the corrupted prompt
    direct     the metric minus the metric when only the edge u->logits carries x'_u: exact
    logits     x_u at the last position, through the final norm (with its scale fixed) and the unembedding,
               minus the mean over all tokens: what u adds to the logit of a token

x_u is the output of u on the clean prompt, x'_u on the corrupted one, or under the circuit's ablation.

A prompt is divided into parts, so that the attention of a query over them adds up to 1. Data with named spans has
those, and "rest". Otherwise a prompt has four: the part before the first difference of the pair, the changed part (from
the first differing token to the last), the part between that and the end, and the end, where the answer is read. A task
gives the changed part its name, such as "subject". Positions without a name (before, between, rest) are split further:

    first token      on which many heads rest
    right answer     tokens that are the example's correct answer: in IOI the "indirect object"
    wrong answer     tokens that are its wrong answer: in IOI the "subject", where it is first mentioned
    after X          the token after such a mention, which a previous-token head marks for an induction head

Cost per batch: two forward and two backward passes, the circuit's run, and for every node the unembedding of the last
position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor

from gradpath.ablation import Ablation
from gradpath.attribution.batch import BatchRuns
from gradpath.attribution.contraction import NodeReads
from gradpath.circuit import Circuit
from gradpath.errors import InputError
from gradpath.evaluation.patched_run import Plan, check_same_graph, plan_of, run_nodes
from gradpath.model.inspection import output_of, patterns
from gradpath.model.tokenizer import Tokenizer
from gradpath.model.transformer import Past, PositionInfo, Run, Transformer, at_least_float32
from gradpath.prepared import Prepared, PreparedBatches
from gradpath.runtime import distributed
from gradpath.sweep import own_settings, sweep
from gradpath.tasks.builtin import TASKS
from gradpath.tasks.metrics import METRICS
from gradpath.tasks.task import Pairs, Spans, Task

RUNS = ("clean", "corrupted", "circuit")
_TOGETHER = 8  # nodes whose direct effect is computed at once
_UNEMBEDDED = 128  # node outputs at once: reading the unembedding takes longer than multiplying a few with it
FIRST, AFTER, END, REST = "first token", "after ", "end", "rest"
UNNAMED = ("before", "between", REST)
SIDES = ("right answer", "wrong answer")
PADDING = -1


@dataclass(frozen=True)
class Parts:
    """The names of parts, and the part of every position of every example, -1 for padding."""

    names: tuple[str, ...]
    at: Int[Tensor, "example pos"]


def answers_of(task: Task, pairs: Pairs) -> Int[Tensor, "example side answer"] | None:
    """The correct and the wrong answers of each example, padded with -1; None for labels of another kind."""
    labels = pairs.labels
    if task.metric not in METRICS.values() or not isinstance(labels, Tensor) or labels.is_floating_point():
        return None
    if labels.ndim not in (2, 3) or labels.shape[1] != len(SIDES):
        return None
    return labels.cpu().reshape(len(labels), len(SIDES), -1)


def names_of_answers(task: Task) -> tuple[str, str]:
    """The names of the correct and the wrong answer: in IOI the indirect object and the subject."""
    known = TASKS.get(task.name)
    if known is None or known.answers is None or task.facts.get("changed") != known.changed:
        return SIDES
    return known.answers


def parts_of(task: Task, pairs: Pairs, tokenizer: Tokenizer | None) -> Parts:
    """The parts that occur in a task's prompts."""
    if task.spans is None:
        spans = _by_difference(pairs, str(task.facts.get("changed", "changed")))
    else:
        spans = _by_name(task, task.spans, pairs, tokenizer)
    names, at = list(spans.names), spans.at.clone()
    unnamed = torch.tensor([*(name in UNNAMED for name in names), False], device="cpu")

    def name(where: Tensor, part: str) -> None:
        """Name the positions that have no name yet."""
        if part not in names:
            names.append(part)
        at[where & unnamed[torch.where(at < len(spans.names), at, PADDING)]] = names.index(part)

    position = torch.arange(at.shape[1], device="cpu")
    name(position == pairs.last[:, None], END)
    answers = answers_of(task, pairs)
    if answers is not None and answers.shape[-1] == 1:  # one of many answers may occur anywhere by chance
        for side, part in enumerate(names_of_answers(task)):
            name((pairs.clean[:, :, None] == answers[:, None, side]).any(-1), part)
        for part in names_of_answers(task):
            mention = at == names.index(part)
            name(F.pad(mention[:, :-1], (1, 0)), f"{AFTER}{part}")
    name(position == 0, FIRST)
    return _that_occur(Parts(tuple(names), at))


def _that_occur(labels: Parts) -> Parts:
    """Drop names that no position has, and order the others by their mean position."""
    position = torch.arange(labels.at.shape[1], device="cpu").expand_as(labels.at).double()
    order = [i for i in range(len(labels.names)) if bool((labels.at == i).any())]
    order.sort(key=lambda i: float(position[labels.at == i].mean()))
    number = torch.full((len(labels.names) + 1,), PADDING, device="cpu")
    number[order] = torch.arange(len(order), device="cpu")
    return Parts(tuple(labels.names[i] for i in order), number[labels.at])


def _by_difference(pairs: Pairs, changed: str) -> Parts:
    position = torch.arange(pairs.clean.shape[1], device="cpu")
    last_changed = torch.where(pairs.clean != pairs.corrupted, position, -1).amax(1, keepdim=True)
    at = torch.where(position < pairs.first[:, None], 0, torch.where(position <= last_changed, 1, 2))
    at[position == pairs.last[:, None]] = 3
    at[position > pairs.last[:, None]] = PADDING
    return Parts(("before", changed, "between", END), at)


def _by_name(task: Task, spans: Sequence[Spans], pairs: Pairs, tokenizer: Tokenizer | None) -> Parts:
    if tokenizer is None or isinstance(task.clean, Tensor):
        raise InputError("spans are named in text, and these prompts are token ids. Give them as text.")
    names = (*dict.fromkeys(name for named in spans for name in named), REST)
    at = torch.full(pairs.clean.shape, PADDING, device="cpu")
    for i, (text, named) in enumerate(zip(task.clean, spans, strict=True)):
        for position, (begin, end) in enumerate(tokenizer.pieces(text)):
            inside = [name for name, (a, b) in named.items() if begin < b and end > a]
            at[i, position] = names.index(inside[0] if inside else REST)
    return Parts(names, at)


@dataclass(frozen=True)
class Measured:
    """What the nodes of a circuit do on every example; see the module's docstring."""

    sources: list[int]  # the nodes, in the order of the graph
    heads: list[int]  # the heads among them
    parts: Parts
    answers: Int[Tensor, "example side answer"] | None
    clean: Float[Tensor, " example"]
    corrupted: Float[Tensor, " example"]
    attention: Float[Tensor, "example run head part part"]
    effect: Float[Tensor, "example source part"]
    direct: Float[Tensor, "example source"]
    mean_write: Float[Tensor, "source d_model"]  # after the final norm, at the last position; the mean over examples
    answer_logits: Float[Tensor, "example source side answer"] | None = None  # zero for padding


@dataclass(frozen=True)
class BatchWork:
    """The runs of one batch, and what the nodes of the circuit do in them."""

    model: Transformer
    runs: BatchRuns
    prepared: Prepared
    corrupted: Run  # or that of the ablation
    change: Float[Tensor, "batch pos d_model"]  # of the node input
    plan: Plan
    sources: list[int]
    heads: dict[int, list[int]]  # the heads among the sources, by layer

    @cached_property
    @torch.no_grad()
    def patterns(self) -> list[Float[Tensor, "run batch head query key"]]:
        """The attention patterns of the heads, layer by layer, in the three runs.

        Queries are the positions from the first difference of the pairs on.
        """
        model, runs = self.model, self.runs
        info = model.position_info(runs.start, runs.clean.suffix.shape[1])
        in_circuit = dict[int, tuple[list[int], Tensor]]()

        def watch(layer: int, heads: list[int], q: Tensor, past: Past, place: PositionInfo) -> None:
            weights_of_heads = model.layers[layer].of_heads(heads)
            in_circuit[layer] = heads, model.attention_weights(weights_of_heads, q, past.keys, place)

        run_nodes(self.prepared, [self.plan], watch)
        cells, n = self.prepared.cells, self.prepared.n_positions
        example, query = cells // n, cells % n  # elsewhere the circuit attends as in the corrupted run
        by_layer = []
        for layer, heads in self.heads.items():
            before = runs.past[layer] if runs.past else None
            three = [
                patterns(model, layer, run.layers[layer], info, before)[:, heads]
                for run in (runs.clean.run, runs.corrupted.run, self.corrupted)
            ]
            live, weights = in_circuit.get(layer, ([], None))
            for i, head in enumerate(heads):
                if head in live and weights is not None:
                    three[2][example, i, query] = weights[example, live.index(head), query]
            by_layer.append(torch.stack(three))
        return by_layer

    @cached_property
    @torch.no_grad()
    def whole_patterns(self) -> list[Float[Tensor, "run batch head query key"]]:
        """The same for all queries: before the first difference of the pairs, attention is the same in all runs."""
        model, start = self.model, self.runs.start
        if not start:
            return self.patterns
        prefix = model.run(model.embed(self.runs.batch.clean[:, :start]))
        info, whole = model.position_info(0, start), []
        for (layer, heads), later in zip(self.heads.items(), self.patterns, strict=True):
            earlier = patterns(model, layer, prefix.layers[layer], info)[:, heads]
            earlier = F.pad(earlier, (0, later.shape[-1] - start))
            whole.append(torch.cat([earlier.expand(len(later), *earlier.shape), later], 3))
        return whole

    @cached_property
    @torch.no_grad()
    def writes(self) -> Float[Tensor, "batch source d_model"]:
        """What each node writes at the last position on the clean prompt, after the final norm."""
        model = self.model
        rstd = model.norm(self.runs.clean.run.final_in[self.last])[1]  # (batch, 1)
        x = at_least_float32(torch.stack([self.last_write(source) for source in self.sources], 1))
        if model.arch.norm == "layer":
            x = x - x.mean(-1, keepdim=True)
        return x * at_least_float32(rstd)[:, None] * at_least_float32(model.final_gain)

    def last_write(self, source: int, *, clean: bool = True) -> Float[Tensor, "batch d_model"]:
        """What a node writes at each prompt's last position."""
        if source == 0:
            written = self.runs.clean.suffix.detach()
            return (written if clean else written - self.change)[self.last]
        run = self.runs.clean.run if clean else self.corrupted
        return output_of(self.model, run, *self.model.graph.place_of_source(source), at=self.last)

    @property
    def last(self) -> tuple[Tensor, Tensor]:
        """The index of each example's last token in the suffix."""
        at = self.runs.batch.last - self.runs.start
        return torch.arange(len(at), device=at.device), at


def check_explainable(model: Transformer, circuit: Circuit) -> None:
    """Refuse a circuit that cannot be explained in this model, before anything is run."""
    check_same_graph(model, circuit)
    if not len(circuit):
        raise InputError("a circuit without edges does nothing that could be explained: find a larger one.")


def measure(
    prepared: PreparedBatches,
    circuit: Circuit,
    *,
    batches: list[Pairs] | None = None,
    inspect: Callable[[BatchWork], None] | None = None,
) -> Measured:
    """Measure what every node of a circuit does on every example.

    Batches have as many examples as fit into memory, unless they are given. ``inspect`` is called with each of them
    when it is measured.
    """
    model, task, pairs, ablation = prepared.model, prepared.task, prepared.pairs, prepared.ablation
    graph, answers = model.graph, answers_of(task, pairs)
    parts = parts_of(task, prepared.encoded, model.tokenizer)
    sources = [graph.source(node) for node in circuit.nodes if node != "logits"]
    heads = [source for source in sources if graph.place_of_source(source)[1] < graph.n_heads]
    plan = plan_of(model, circuit)

    def measure_batch(batch: Pairs) -> tuple[Tensor, dict[str, Tensor]]:
        work = _run_batch(model, task, batch, plan, sources, ablation)
        measured = _measure_work(work, parts, answers)
        if inspect is not None:
            inspect(work)
        return batch.index, measured

    n_parts, of_nodes = len(parts.names), (len(pairs), len(sources))
    values = {
        "clean": torch.zeros(len(pairs)),
        "corrupted": torch.zeros(len(pairs)),
        "attention": torch.zeros(len(pairs), len(RUNS), len(heads), n_parts, n_parts),
        "effect": torch.zeros(*of_nodes, n_parts),
        "direct": torch.zeros(of_nodes),
        "mean_write": torch.zeros(len(sources), model.arch.d_model, dtype=torch.float64),
    }
    if answers is not None:
        values["answer_logits"] = torch.zeros(*of_nodes, *answers.shape[1:])

    def same() -> object:
        return circuit.mask.numpy().tobytes(), ablation is None

    with own_settings(model):
        batches, bar = batches or prepared.limits.batches(model, pairs), "measuring what each node does"
        for rows, new in sweep(model, task, pairs, batches, measure_batch, doing="explaining", same=same, bar=bar):
            for name, x in new.items():
                if name == "mean_write":  # a sum over examples
                    values[name] += x.double().sum(0).cpu()
                else:
                    values[name][rows] = x.float().cpu()
    values = {name: distributed.all_sum(x) for name, x in values.items()}
    values["mean_write"] /= len(pairs)
    return Measured(sources, heads, parts, answers, **{name: x.float() for name, x in values.items()})


def _run_batch(
    model: Transformer, task: Task, batch: Pairs, plan: Plan, sources: list[int], ablation: Ablation | None
) -> BatchWork:
    """Run the clean and the corrupted prompts of a batch, with gradients, and prepare it for the circuit's run."""
    heads = dict[int, list[int]]()
    for layer, head in map(model.graph.place_of_source, sources):
        if head < model.arch.n_heads:
            heads.setdefault(layer, []).append(head)
    with torch.enable_grad():
        runs = BatchRuns(model, batch.to(model.device), task.metric, whole=False, ablation=ablation)
    corrupted_input, corrupted = runs.corrupted.suffix, runs.corrupted.run
    if ablation is not None:
        corrupted_input, corrupted = ablation.run(model, *batch.clean.shape)
    change, ablated = (runs.clean.suffix - corrupted_input).detach(), ablation is not None
    with torch.no_grad():
        prepared = Prepared.of(
            model, runs.batch, corrupted, ablated=ablated, prefix=runs.past, input=change, clean_final=runs.clean.final
        )
    return BatchWork(model, runs, prepared, corrupted, change, plan, sources, heads)


def _measure_work(work: BatchWork, parts: Parts, answers: Tensor | None) -> dict[str, Tensor]:
    """All measurements of one batch."""
    model, runs, reads = work.model, work.runs, NodeReads()
    for point in (runs.clean, runs.corrupted):
        reads.add(model, point.run, runs.metric_of(point.final))
    clean, corrupted = runs.metric_of(torch.cat([runs.clean.final, runs.corrupted.final]))
    rows, length = runs.batch.index.cpu(), runs.batch.clean.shape[1]
    # 1 where a position is in a part, else 0; padding is in none. (batch, pos, part)
    in_part = F.one_hot(parts.at[rows, :length] + 1, len(parts.names) + 1)[..., 1:].to(work.writes)
    measured = {
        "clean": clean,
        "corrupted": corrupted,
        "attention": _part_attention(work, in_part),
        "effect": _part_effects(work, reads, in_part[:, runs.start :]),
        "direct": _direct_effects(work),
        "mean_write": work.writes,
    }
    if answers is not None:
        measured["answer_logits"] = token_logits(model, work.writes, answers[rows].to(model.device))
    return {name: x.detach() for name, x in measured.items()}


@torch.no_grad()
def _part_attention(work: BatchWork, in_part: Tensor) -> Float[Tensor, "batch run head part part"]:
    """The mean attention of every head from each part of a prompt to each part, in the three runs."""
    if not work.patterns:  # a circuit of MLPs alone
        return in_part.new_zeros(len(in_part), len(RUNS), 0, in_part.shape[-1], in_part.shape[-1])
    queries = in_part[:, work.runs.start :]
    mean = queries / queries.sum(1, keepdim=True).clamp(min=1)
    return torch.cat([torch.einsum("bqp,rbhqk,bkt->brhpt", mean, x, in_part) for x in work.patterns], dim=2)


def _part_effects(work: BatchWork, reads: NodeReads, in_part: Tensor) -> Float[Tensor, "batch source part"]:
    """The first-order effect of what each node writes in each part of a prompt."""
    model, writes, columns = work.model, work.runs.writes, list[Tensor]()
    assert reads.input is not None
    for source in work.sources:
        layer, head = model.graph.place_of_source(source)
        if source == 0:
            columns.append((writes.input * reads.input).sum(-1))
        elif head == model.arch.n_heads:
            columns.append((writes.mlps[layer] * reads.mlps[layer]).sum(-1))
        else:
            w_write = at_least_float32(model.head_output_weights(layer))[:, head]
            columns.append((writes.heads[layer][head] * (reads.heads[layer] @ w_write)).sum(-1))
    by_row = torch.stack(columns, -1) / reads.n_points  # (row, source)
    return torch.einsum("bqs,bqp->bsp", by_row.view(*in_part.shape[:2], -1), in_part.to(by_row.dtype))


@torch.no_grad()
def _direct_effects(work: BatchWork) -> Float[Tensor, "batch source"]:
    """The metric minus the metric when only the edge from a node to ``logits`` is corrupted."""
    final, metric_of = work.runs.clean.final, work.runs.metric_of
    metric, effects = metric_of(final)[0], []
    for at in range(0, len(work.sources), _TOGETHER):
        sources = work.sources[at : at + _TOGETHER]
        lost = torch.stack([work.last_write(source) - work.last_write(source, clean=False) for source in sources])
        effects.append(metric - metric_of(final - lost))  # (source, batch)
    return torch.cat(effects).T


def token_logits(
    model: Transformer, writes: Float[Tensor, "batch source d_model"], tokens: Int[Tensor, "batch side answer"]
) -> Float[Tensor, "batch source side answer"]:
    """What each node adds to the logits of some tokens, minus the mean over all tokens; zero where a token is -1."""
    unembedding = at_least_float32(model.unembedding)
    rows = unembedding[tokens.clamp(min=0)] - unembedding.mean(0)
    return torch.einsum("bsd,bkad->bska", writes, rows) * (tokens >= 0)[:, None]


@torch.no_grad()
def most_changed(
    model: Transformer, writes: Float[Tensor, "batch source d_model"], n: int
) -> tuple[Int[Tensor, "batch source token"], Float[Tensor, "batch source token"]]:
    """The n tokens that each node raises and then the n that it lowers most, and what it adds to their logits.

    Logits are relative to the mean over all tokens. Of a very small vocabulary, there are fewer tokens.
    """
    unembedding = at_least_float32(model.unembedding)
    centre, n = unembedding.mean(0), min(n, len(unembedding) // 2)
    ids, values = [], []
    # A few nodes at a time: all logits at once would not fit.
    for x in torch.split(writes, max(1, _UNEMBEDDED // len(writes)), 1):
        logits = (x.reshape(-1, x.shape[-1]) @ unembedding.T).view(*x.shape[:2], -1)
        up, down = logits.topk(n), logits.topk(n, largest=False)
        ids.append(torch.cat([up.indices, down.indices], -1))
        values.append(torch.cat([up.values, down.values], -1) - (x @ centre)[..., None])
    return torch.cat(ids, 1).cpu(), torch.cat(values, 1).float().cpu()
