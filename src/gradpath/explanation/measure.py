r"""What the nodes of a circuit do on every example: how they attend, what they bring about, what they write.

For an example, a node u of the circuit and the parts p of its prompt::

    attention  mean weight from the queries in one part to the keys in another: on the clean prompt, on the
               corrupted one, and in the circuit's own run
    effect     sum over positions in p of (x_u - x'_u) . g_u,   g_u the gradient of the metric at what u writes,
               the mean of that on the clean and on the corrupted prompt: what the metric owes to u, to first order
    direct     the metric less the metric when only the edge u->logits carries x'_u: exact
    logits     x_u at the last position, through the final norm (with its scale as it is) and the unembedding,
               less the mean over all tokens: what u adds to the logit of a token

x_u is u's write on the clean prompt, x'_u on the corrupted one, or what the circuit's ablation says.

A prompt is divided into parts, so that the attention of a query over them adds up to 1. Data with named spans has
those. Elsewhere the parts are those of ``labels_of``: before the first difference of the pair, the changed part,
between that and the end, and the end. Out of what has no name of its own (before, between, rest) come

    first token      on which many heads rest
    right answer     tokens that are the example's right answer: in IOI the "indirect object"
    wrong answer     tokens that are its wrong answer: in IOI the "subject", where it is first mentioned
    after X          the token behind such a mention, which a previous-token head marks for an induction head

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

from gradpath.ablation import Ablation, ablation_of, all_positions
from gradpath.attribution.batch import BatchRuns, Writes
from gradpath.attribution.contraction import NodeReads
from gradpath.circuit import Circuit
from gradpath.errors import InputError
from gradpath.evaluation import named_positions
from gradpath.evaluation.patched_run import run_nodes
from gradpath.evaluation.plan import Plan, check_same_graph, plan_of
from gradpath.evaluation.prepared import Prepared
from gradpath.explanation.experts import NUMBERS, expert_parts, mixtures_of, n_columns
from gradpath.limits import Limits
from gradpath.model.inspection import output_of, patterns
from gradpath.model.tokenizer import Tokenizer
from gradpath.model.transformer import Past, PositionInfo, Run, Transformer, at_least_float32
from gradpath.runtime import distributed
from gradpath.sweep import Progress, own_settings, sweep
from gradpath.tasks.builtin import TASKS
from gradpath.tasks.metrics import METRICS
from gradpath.tasks.task import PADDING, REST, Labels, Pairs, Task, encode, labels_of

FIRST, AFTER, END = "first token", "after ", "end"
UNNAMED = ("before", "between", REST)
SIDES = ("right answer", "wrong answer")
RUNS = ("clean", "corrupted", "circuit")
_TOGETHER = 8  # nodes whose direct effect is computed at once


def answers_of(task: Task, pairs: Pairs) -> Int[Tensor, "example side answer"] | None:
    """The right and the wrong answers of each example, padded with -1; None for labels of another kind."""
    labels = pairs.labels
    if task.metric not in METRICS.values() or not isinstance(labels, Tensor) or labels.is_floating_point():
        return None
    if labels.ndim not in (2, 3) or labels.shape[1] != len(SIDES):
        return None
    return labels.cpu().reshape(len(labels), len(SIDES), -1)


def names_of_answers(task: Task) -> tuple[str, str]:
    """What the right and the wrong answer are called: in IOI the indirect object and the subject."""
    known = TASKS.get(task.name)
    if known is None or known.answers is None or task.about.get("changed") != known.changed:
        return SIDES
    return known.answers


def parts_of(task: Task, pairs: Pairs, tokenizer: Tokenizer | None) -> Labels:
    """Name the part of every position of a task's prompts.

    Args:
        task: The task.
        pairs: Its prompts as token ids.
        tokenizer: The model's tokenizer, for spans that are named in text.

    Returns:
        The names that occur, and the part of each position, -1 for padding.
    """
    spans = labels_of(task, pairs, tokenizer, "span")
    names, at = list(spans.names), spans.at.clone()
    unnamed = torch.tensor([*(name in UNNAMED for name in names), False], device="cpu")

    def name(where: Tensor, part: str) -> None:
        """Give positions that have no name of their own one."""
        if part not in names:
            names.append(part)
        at[where & unnamed[torch.where(at < len(spans.names), at, PADDING)]] = names.index(part)

    position = torch.arange(at.shape[1], device="cpu")
    name(position == pairs.last[:, None], END)
    answers = answers_of(task, pairs)
    if answers is not None and answers.shape[-1] == 1:  # one of many answers may stand anywhere by chance
        said = [(pairs.clean[:, :, None] == answers[:, None, side]).any(-1) for side in range(len(SIDES))]
        for where, part in zip(said, names_of_answers(task), strict=True):
            name(where, part)
        for part in names_of_answers(task):
            mention = at == names.index(part)
            name(torch.nn.functional.pad(mention[:, :-1], (1, 0)), f"{AFTER}{part}")
    name(position == 0, FIRST)
    return _that_occur(Labels(tuple(names), at), pairs)


def _that_occur(labels: Labels, pairs: Pairs) -> Labels:
    """The same without names that no position has, in the order in which they begin in the prompts."""
    where = torch.arange(labels.at.shape[1], device="cpu").expand_as(labels.at).double()
    seen = [i for i in range(len(labels.names)) if bool((labels.at == i).any())]
    seen.sort(key=lambda i: float(where[labels.at == i].mean()))
    number = torch.full((len(labels.names) + 1,), PADDING, device="cpu")
    number[seen] = torch.arange(len(seen), device="cpu")
    return Labels(tuple(labels.names[i] for i in seen), number[labels.at])


@dataclass(frozen=True)
class Measured:
    """What the nodes of a circuit do on every example; see above."""

    sources: list[int]  # the nodes, in the order of the graph
    heads: list[int]  # those of them that are heads
    parts: Labels
    answers: Int[Tensor, "example side answer"] | None
    clean: Float[Tensor, " example"]
    corrupted: Float[Tensor, " example"]
    attention: Float[Tensor, "run example head part part"]
    effect: Float[Tensor, "example source part"]
    direct: Float[Tensor, "example source"]
    mean_write: Float[Tensor, "source d_model"]  # at the last position, behind the final norm; the mean over examples
    answer_logits: Float[Tensor, "example source side answer"] | None  # zero for padding
    mixtures: list[int]  # those nodes that are MLPs with experts
    experts: Float[Tensor, "number mixture expert"]  # ``experts.NUMBERS``, summed over the examples
    n_tokens: int  # from the first changed token of each example on


@dataclass(frozen=True)
class BatchWork:
    """Everything that is run for one batch, and the nodes to look at."""

    model: Transformer
    runs: BatchRuns
    prepared: Prepared
    plan: Plan
    sources: list[int]
    before: Float[Tensor, "batch head query key"] | None  # patterns before the first difference, where asked for

    @cached_property
    def patterns(self) -> list[Float[Tensor, "run batch head query key"]]:
        """See ``head_patterns``."""
        return head_patterns(self)

    @cached_property
    def writes(self) -> Float[Tensor, "batch source d_model"]:
        """See ``normed_writes``."""
        return normed_writes(self)

    @property
    def last(self) -> tuple[Tensor, Tensor]:
        return self.prepared.last

    def heads_of(self, layer: int) -> list[int]:
        """The heads of a layer that are looked at."""
        return _heads_of(self.model, self.sources, layer)


def measure(
    model: Transformer,
    circuit: Circuit,
    task: Task,
    *,
    limits: Limits = Limits(),
    progress: Progress | None = None,
    ablation: str | None = None,
    mean_over: Task | None = None,
    batches: list[Pairs] | None = None,
    see: Callable[[BatchWork], None] | None = None,
    finish: Callable[[BatchRuns], None] | None = None,
) -> Measured:
    """Measure what every node of a circuit does on every example of a task.

    Args:
        model: The model that the circuit is of.
        circuit: The circuit.
        task: The examples.
        limits: How many examples may be run at once.
        progress: Called with the number of examples of each finished batch.
        ablation: What edges outside the circuit carry; by default as the circuit was found.
        mean_over: The task whose clean prompts means are taken over; by default ``task`` itself.
        batches: The batches; by default as many examples as fit into memory.
        see: Called with everything that is run for a batch.
        finish: Called with the clean and the corrupted run of a batch in the end, when all else is freed.

    Returns:
        The measurements.
    """
    check_same_graph(model, circuit)
    model.check_one_device("explaining a circuit")
    if not len(circuit):
        raise InputError("a circuit without edges does nothing that could be explained: find a larger one.")
    pairs = encode(task, model.tokenizer)
    parts, answers = parts_of(task, pairs, model.tokenizer), answers_of(task, pairs)
    graph, plan = model.graph, plan_of(model, circuit)
    sources = [graph.source(node) for node in circuit.nodes if node != "logits"]
    heads = [source for source in sources if source and graph.place_of_source(source)[1] < graph.n_heads]
    n, width, mixtures = len(pairs), len(parts.names), mixtures_of(model, sources)
    totals = _zeros(n, len(sources), len(heads), width, answers)
    totals["write"] = torch.zeros(len(sources), model.arch.d_model, dtype=torch.float64)
    totals["experts"] = torch.zeros(len(NUMBERS), len(mixtures), n_columns(model, mixtures), dtype=torch.float64)
    with own_settings(model):
        instead = ablation_of(ablation or circuit.provenance.ablation, model, mean_over or task, limits)
        pairs = all_positions(named_positions(pairs, [circuit], task, model), instead)

        def work(batch: Pairs) -> dict[str, Tensor]:
            here = batch_work(model, task, batch, plan, sources, instead, whole_patterns=see is not None)
            if see is not None:
                see(here)
            rows, length = batch.index, batch.clean.shape[1]
            own = _one_hot(parts.at[rows, :length], width).to(model.device)  # (batch, pos, part)
            new = _of_batch(here, own, None if answers is None else answers[rows].to(model.device), mixtures)
            new, runs = {name: x.detach() for name, x in new.items()}, here.runs
            del here
            if finish is not None:
                finish(runs)
            # Nothing is added up before: a batch that does not fit is run again, in halves.
            for name in ("write", "experts"):
                totals[name] += new.pop(name).double().sum(0).cpu()
            new = {name: x.float().cpu() for name, x in new.items()}
            for name, x in new.items():
                place = (slice(None), rows) if name in ("metric", "attention") else (rows,)
                totals[name][place] = x
            return new

        def same() -> object:
            return model.identity, circuit.masks.numpy().tobytes(), instead is None

        size = limits.batch(model, pairs)
        for _ in sweep(
            work, pairs, size, model=model, task=task, doing="explaining", same=same, progress=progress, batches=batches
        ):
            pass
    done = {name: distributed.all_sum(x) for name, x in totals.items()}
    return Measured(
        sources=sources,
        heads=heads,
        parts=parts,
        answers=answers,
        clean=done["metric"][0],
        corrupted=done["metric"][1],
        attention=done["attention"],
        effect=done["effect"],
        direct=done["direct"],
        mean_write=(done["write"] / n).float(),
        answer_logits=None if answers is None else done["answers"],
        mixtures=mixtures,
        experts=done["experts"].float(),
        n_tokens=int((pairs.last - pairs.first + 1).sum()),
    )


def _zeros(n: int, n_sources: int, n_heads: int, width: int, answers: Tensor | None) -> dict[str, Tensor]:
    """Room for what is measured of each of n examples, whose prompts have ``width`` parts."""
    return {
        "metric": torch.zeros(2, n),
        "attention": torch.zeros(len(RUNS), n, n_heads, width, width),
        "effect": torch.zeros(n, n_sources, width),
        "direct": torch.zeros(n, n_sources),
        "answers": torch.zeros(n, n_sources, *(answers.shape[1:] if answers is not None else (0, 0))),
    }


def batch_work(
    model: Transformer,
    task: Task,
    batch: Pairs,
    plan: Plan,
    sources: list[int],
    ablation: Ablation | None,
    *,
    whole_patterns: bool = False,
) -> BatchWork:
    """Run the clean and the corrupted prompts of a batch, with gradients, and prepare it for the circuit's run.

    With ``whole_patterns`` attention before the first difference of the pairs is kept, too.
    """
    batch, start, prefix, before = batch.to(model.device), batch.start, None, None
    heads = {layer: own for layer in range(model.arch.n_layers) if (own := _heads_of(model, sources, layer))}
    if whole_patterns and start and heads:
        with torch.no_grad():
            run, info = model.run(model.embed(batch.clean[:, :start])), model.position_info(0, start)
            parts = [patterns(model, layer, run.layers[layer], info)[:, own] for layer, own in heads.items()]
            prefix, before = [layer.past for layer in run.layers], torch.cat(parts, 1)
    with torch.enable_grad():
        runs = BatchRuns(model, batch, task.metric, whole=False, ablation=ablation, prefix=prefix)
    corrupted_input, corrupted = runs.corrupted.suffix, runs.corrupted.run
    if ablation is not None:
        corrupted_input, corrupted = ablation.run(model, *batch.clean.shape)
    prepared = Prepared(
        model=model,
        batch=runs.batch,
        corrupted=corrupted,
        ablated=ablation is not None,
        prefix=runs.past,
        input=(runs.clean.suffix - corrupted_input).detach(),
        clean_final=runs.clean.final,
    )
    return BatchWork(model, runs, prepared, plan, sources, before)


def _heads_of(model: Transformer, sources: Sequence[int], layer: int) -> list[int]:
    """The heads of a layer among some sources."""
    here = model.graph.source_heads(layer)
    return [source - here.start for source in sources if here.start <= source < here.stop]


def _of_batch(here: BatchWork, own: Tensor, answers: Tensor | None, mixtures: list[int]) -> dict[str, Tensor]:
    """All measurements of one batch; ``own`` says which part a position is in."""
    writes, reads = here.writes, node_reads(here)
    ends = torch.cat([here.runs.clean.final, here.runs.corrupted.final])
    measured = {
        "metric": here.runs.metric_of(ends),
        "attention": part_attention(here, own),
        "effect": part_effects(here, reads, own[:, here.runs.start :]),
        "experts": expert_parts(here, reads, mixtures, n_columns(here.model, mixtures)),
        "direct": direct_effects(here),
        "write": writes,
    }
    if answers is not None:
        measured["answers"] = token_logits(here.model, writes, answers)
    return measured


def _one_hot(at: Tensor, width: int) -> Tensor:
    """(batch, pos) as (batch, pos, part); zero for padding."""
    return F.one_hot(at + 1, width + 1)[..., 1:].float()


@torch.no_grad()
def part_attention(here: BatchWork, own: Tensor) -> Float[Tensor, "run batch head part part"]:
    """The mean attention of every head from each part of a prompt to each part, in the three runs."""
    queries = own[:, here.runs.start :]
    mean = queries / queries.sum(1, keepdim=True).clamp(min=1)
    return torch.cat([torch.einsum("bqp,rbhqk,bkt->rbhpt", mean, seen, own) for seen in here.patterns], dim=2)


@torch.no_grad()
def head_patterns(here: BatchWork) -> list[Float[Tensor, "run batch head query key"]]:
    """The attention patterns of the heads that are looked at, layer by layer, in the three runs.

    Queries are the positions from the first difference of the pairs on.
    """
    model, runs, prepared = here.model, here.runs, here.prepared
    info = model.position_info(runs.start, runs.clean.suffix.shape[1])
    in_circuit = dict[int, tuple[list[int], Tensor]]()

    def watch(layer: int, heads: list[int], q: Tensor, past: Past, place: PositionInfo) -> None:
        own = model.layers[layer].of_heads(heads)
        in_circuit[layer] = heads, model.attention_weights(own, q, past.keys, place)

    run_nodes(prepared, [here.plan], watch)
    seen = []
    for layer in range(model.arch.n_layers):
        heads = here.heads_of(layer)
        if not heads:
            continue
        before = runs.past[layer] if runs.past else None
        three = [
            patterns(model, layer, run.layers[layer], info, before)[:, heads]
            for run in (runs.clean.run, runs.corrupted.run, prepared.corrupted)
        ]
        live, weights = in_circuit.get(layer, ([], None))
        for i, head in enumerate(heads):
            if head in live and weights is not None:
                three[2][:, i] = weights[:, live.index(head)]
        seen.append(torch.stack(three))
    return seen


def node_reads(here: BatchWork) -> NodeReads:
    """The gradients at what the nodes write, on the clean and on the corrupted prompts."""
    reads = NodeReads()
    for point in (here.runs.clean, here.runs.corrupted):
        reads.add(here.model, point.run, here.runs.metric_of(point.final))
    return reads


def part_effects(here: BatchWork, reads: NodeReads, own: Tensor) -> Float[Tensor, "batch source part"]:
    """What the metric owes to each node's write in each part of a prompt, to first order."""
    by_row = _effects(here.model, here.runs.writes, reads, here.sources) / reads.n_points  # (row, source)
    return torch.einsum("bqs,bqp->bsp", by_row.view(*own.shape[:2], -1), own.to(by_row.dtype))


def _effects(model: Transformer, writes: Writes, reads: NodeReads, sources: Sequence[int]) -> Tensor:
    """Writes times gradients of every row, (row, source)."""
    a, columns = model.arch, list[Tensor]()
    assert reads.input is not None
    for source in sources:
        layer, head = model.graph.place_of_source(source)
        if source == 0:
            columns.append((writes.input * reads.input).sum(-1))
        elif head == a.n_heads:
            columns.append((writes.mlps[layer] * reads.mlps[layer]).sum(-1))
        else:
            w_write = at_least_float32(model.layers[layer].w_write).view(a.d_model, a.n_heads, a.d_head)[:, head]
            columns.append((writes.heads[layer][head] * (reads.heads[layer] @ w_write)).sum(-1))
    return torch.stack(columns, -1)


@torch.no_grad()
def direct_effects(here: BatchWork) -> Float[Tensor, "batch source"]:
    """The metric less the metric when the edge from a node to ``logits`` alone is corrupted."""
    clean = here.runs.clean
    final, metric = clean.final, here.runs.metric_of(clean.final)[0]
    effects = []
    for at in range(0, len(here.sources), _TOGETHER):
        lost = [
            _last_write(here, source) - _last_write(here, source, clean=False)
            for source in here.sources[at:][:_TOGETHER]
        ]
        effects.append(metric - here.runs.metric_of(final - torch.stack(lost)))  # (source, batch)
    return torch.cat(effects).T


@torch.no_grad()
def normed_writes(here: BatchWork) -> Float[Tensor, "batch source d_model"]:
    """What each node writes at the last position on the clean prompt, behind the final norm."""
    model = here.model
    rstd = model.norm(here.runs.clean.run.final_in[here.last])[1]  # (batch, 1)
    x = at_least_float32(torch.stack([_last_write(here, source) for source in here.sources], 1))
    if model.arch.norm == "layer":
        x = x - x.mean(-1, keepdim=True)
    return x * at_least_float32(rstd)[:, None] * at_least_float32(model.final_gain)


def _last_write(here: BatchWork, source: int, *, clean: bool = True) -> Tensor:
    """What a node writes at each prompt's last position, (batch, d_model)."""
    if source == 0:
        written = here.runs.clean.suffix.detach()
        return (written if clean else written - here.prepared.input)[here.last]
    run: Run = here.runs.clean.run if clean else here.prepared.corrupted
    return output_of(here.model, run, *here.model.graph.place_of_source(source), at=here.last)


def token_logits(
    model: Transformer, behind: Float[Tensor, "batch source d_model"], tokens: Int[Tensor, "batch side answer"]
) -> Float[Tensor, "batch source side answer"]:
    """What each node adds to the logits of some tokens, less the mean over all tokens; zero where a token is -1."""
    unembedding = at_least_float32(model.unembedding)
    rows = unembedding[tokens.clamp(min=0)] - unembedding.mean(0)
    return torch.einsum("bsd,bkad->bska", behind, rows) * (tokens >= 0)[:, None]
