"""From prompts to a measured circuit: what ``gradpath find`` and ``gp.find`` do.

1. Load the task: examples to attribute, and others to measure on.
2. Attribute: score every edge.
3. Select a circuit, and circuits of other sizes for the report's curve.
4. Evaluate all of them on the held-out examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from gradpath import defaults
from gradpath.attribution.attribute import attribute_at_steps
from gradpath.attribution.attribute import phase_of as attribution_phase
from gradpath.attribution.methods import find_method
from gradpath.circuit import Circuit
from gradpath.errors import UsageError, check_type, warn
from gradpath.evaluation import evaluate, evaluate_many, mib
from gradpath.evaluation import phase_of as evaluation_phase
from gradpath.evaluation.prepared import PreparedBatches
from gradpath.evaluation.result import Result
from gradpath.limits import Limits
from gradpath.model.prompt_cache import keep_prompts
from gradpath.model.transformer import Transformer
from gradpath.pipeline.found import Found
from gradpath.pipeline.request import FindRequest
from gradpath.report.data import READABLE
from gradpath.runtime.progress import Job, Phase, job
from gradpath.scores import Scores
from gradpath.selection import NestedOrder, find_selection, nested_order, select_many, select_nodes, selecting_passes
from gradpath.selection.faithful import log_spaced, smallest_faithful, smallest_of
from gradpath.sweep import ShowProgress, own_settings, units
from gradpath.tasks.load import LEAST, WARNING, draw_task, split_in_halves
from gradpath.tasks.metrics import Metric
from gradpath.tasks.task import Task
from gradpath.verdict.checks import QUICK, few_examples

# The sizes of the report's curve, in addition to the requested circuit: from SMALLEST edges to a share of all. The
# largest circuits of the paper have 3.1% of the edges, and a large circuit takes as long as several small ones.
SMALLEST, LARGEST, SIZES = 20, 0.05, 10
# Random circuits of each size in the report's grey band. They run on few examples: enough to see what chance gives.
BAND = 3
# Of a counted layer of a selection, in those of a measured circuit, for the progress bar: measured on SmolLM2.
SELECT_PRICE = 2.0
# The requested circuit, those of other sizes for the curve, and their order, if there is one.
Selected = tuple[Circuit, list[Circuit], NestedOrder | None]


def find(
    model: Transformer,
    task: str | Task | None = None,
    *,
    data: Any = None,
    method: str = defaults.METHOD,
    steps: int | None = None,
    faithfulness: float | None = None,
    edges: int | None = None,
    sparsity: float | None = None,
    nodes: int | None = None,
    how: str | None = None,
    positions: str | None = None,
    metric: str | Metric | None = None,
    examples: int | None = None,
    split: str = defaults.SPLITS[0],
    ablation: str = defaults.ABLATION,
    batch_size: int | None = None,
    memory: int | None = None,
    seed: int = defaults.SEED,
    curve: bool = True,
    progress: bool = False,
    **options: Any,
) -> Found:
    """Find a circuit and measure it: what ``gradpath find`` does.

    Args:
        model: The model.
        task: A built-in task (``gradpath ls tasks``); by default ``ioi``, if there is no ``data``. Or a ``Task``: half
            of its examples are attributed, and half measured; with fewer than 8, all are used for both.
        data: Your own pairs: a ``Task``, a CSV or JSONL file, a Hugging Face dataset, or rows as dictionaries.
        method: The method (``gradpath ls methods``); by default ``eap-ig``.
        steps: The number of points of the method's path; by default the method's own.
        faithfulness: The share of the behaviour to keep. ``find`` selects the smallest circuit that keeps it on the
            attributed examples. By default 0.85, if no other size is given.
        edges: The number of edges, instead of ``faithfulness``.
        sparsity: The share of edges to leave out, instead of ``faithfulness``. It is the default, 0.975, with
            ``positions`` and for selections that are not nested.
        nodes: The number of heads and MLPs, instead of ``faithfulness``: the circuit has all edges between them.
        how: The selection (``gradpath ls selections``); by default ``refined``, or ``top`` with ``positions``.
        positions: ``span`` or ``token`` to score and select edges at each part of the prompt or at each token.
        metric: The metric (``gradpath ls metrics``), ``FILE.py:function`` or a function; by default the task's own.
        examples: The number of examples to attribute, and to measure on; by default 100, or all of your own data, half
            to attribute and half to measure on.
        split: ``held-out`` to measure on held-out examples (the default), ``same`` to measure on those that were
            attributed, or ``all`` to use every example for both.
        ablation: What edges outside the circuit carry: ``corrupted`` (the default), ``zero``, ``mean`` or
            ``mean-positional``.
        batch_size: The largest number of examples in a batch; by default it depends on prompt length and free memory.
        memory: A budget in bytes, weights included; by default the weights and half of the free memory.
        seed: The seed for drawing the examples; by default 0.
        curve: Whether to measure circuits of other sizes as well, for the report.
        progress: Whether to show a progress bar.
        **options: Other options of the method. Those of a selection are part of ``how``: ``acdc+threshold=0.01``.

    Returns:
        The scores, the circuit and its result, with methods that save them and write the report.
    """
    check_type("the model", model, Transformer)
    if isinstance(task, Task):
        if data is not None:
            raise UsageError("a Task has its own examples: give either a Task or `data`.")
        task, data = None, task
    request = FindRequest(
        task=task,
        data=data,
        method=method,
        steps=steps,
        options=options,
        faithfulness=faithfulness,
        edges=edges,
        sparsity=sparsity,
        nodes=nodes,
        how=how,
        positions=positions,
        metric=metric,
        examples=examples,
        split=split,
        ablation=ablation,
        limits=Limits(batch_size, memory),
        seed=seed,
    )
    return run_find(model, request, curve=curve, reporter=Plain(progress))


def run_find(
    model: Transformer,
    request: FindRequest,
    *,
    curve: bool,
    reporter: Reporter | None = None,
    examples: tuple[Task, Task] | None = None,
) -> Found:
    """Attribute some examples of a task, select a circuit, and measure it on others; ``load_examples`` gives both."""
    reporter, limits = reporter or Plain(), request.limits
    to_attribute, to_measure = examples or load_examples(model, request, reporter)
    phases = _phases(model, request, to_attribute, to_measure, curve)
    with reporter.job(sum(phase.total for phase in phases.values())) as job:
        with keep_prompts(model):  # a selection that measures runs the prompts of the attribution again
            with job.phase(phases["score"]), own_settings(model):
                *_, scores = attribute_at_steps(
                    model,
                    to_attribute,
                    find_method(request.method),
                    request.method_options,
                    positions=request.positions,
                    limits=limits,
                    ablation=request.ablation,
                )
            if limits.memory is not None:
                reporter.note(f"batches of {scores.provenance.batch_size} examples fit into the memory budget")
            with job.phase(phases["select"]):
                selected = _circuits(model, request, scores, to_attribute, curve)
        with keep_prompts(model), job.phase(phases["measure"]):
            return _measured(model, request, scores, selected, to_attribute, to_measure, curve)


def _measured(
    model: Transformer,
    request: FindRequest,
    scores: Scores,
    selected: Selected,
    to_attribute: Task,
    to_measure: Task,
    curve: bool,
) -> Found:
    """Measure the circuit, and for the report those of other sizes, of ``top``, and random ones."""
    circuit, others, order = selected
    limits, compare_top = request.limits, request.nodes is None and request.selection != defaults.RANKING
    sizes = [other.asked for other in others]
    sizes = sizes[-2::-3] or sizes  # for comparison, every third is enough; the largest takes longest
    top = select_many(scores, [*sizes, circuit.asked]) if others and compare_top else []
    result, *results = _results(model, [circuit, *others, *top], to_measure, limits, to_attribute)
    subset_result, random = None, list[Result]()
    if curve and scores.by_span is None:
        random_circuits = list[Circuit]()
        for seed in range(QUICK):
            counts = [circuit.asked, *(sizes[:3] if seed < BAND else ())]
            random_circuits += select_many(scores, counts, how=f"random-paths+seed={seed}")
        subset = few_examples(to_measure, result)
        subset_result, *random = _results(model, [circuit, *random_circuits], subset, limits, to_attribute)
    return Found(
        model,
        to_attribute,
        to_measure,
        scores,
        circuit,
        result,
        curve=results[: len(others)],
        order=order,
        top=results[len(others) :],
        limits=limits,
        few=subset_result,
        random=random,
        others=others if request.several else [],
    )


def _results(
    model: Transformer, circuits: Sequence[Circuit], task: Task, limits: Limits, mean_over: Task
) -> list[Result]:
    """The result of each circuit, with the ablation that it records. Equal circuits are run once."""
    # The largest circuit of refined is that of top, for example.
    keys = [(circuit.asked, circuit.masks.numpy().tobytes()) for circuit in circuits]
    different = dict(zip(keys, circuits, strict=True))
    results = evaluate_many(model, list(different.values()), task, limits, mean_over=mean_over)
    by_key = dict(zip(different, results, strict=True))
    return [by_key[key] for key in keys]


def _phases(
    model: Transformer, request: FindRequest, to_attribute: Task, to_measure: Task, curve: bool
) -> dict[str, Phase]:
    """The phases of the progress bar, and how much work each is."""
    how, share = request.selection, request.share
    score = attribution_phase(model, to_attribute, find_method(request.method), request.method_options)
    passes = 0.0 if share is None else 7.0  # a search measures about eight small circuits, after two set-ups
    if request.nodes is None:
        passes += selecting_passes(how, len(to_attribute), model.graph.n_edges, 1 if share is None else 0)
    what = f"selecting edges ({how})" + ("" if share is None else f" that keep {share:.0%}")
    select = Phase(what, units(model, to_attribute, passes) / SELECT_PRICE if passes else 0.0, SELECT_PRICE)
    n_circuits = 1 + (4 * SIZES // 3 if curve and request.positions is None else 0)
    return {"score": score, "select": select, "measure": evaluation_phase(model, to_measure, n_circuits)}


def load_examples(model: Transformer, request: FindRequest, reporter: Reporter) -> tuple[Task, Task]:
    """The examples to attribute and those to measure on."""
    if isinstance(request.data, Task):
        return _halves(request.data, request, reporter)

    def examples(split: str) -> Task:
        return draw_task(
            request.task_name,
            model,
            n="auto" if request.examples is None else request.examples,
            seed=request.seed,
            split=split,
            data=request.data,
            metric=request.metric,
        )

    to_attribute = to_measure = examples("all" if request.split == "all" else "train")
    if request.split == defaults.SPLITS[0] and to_attribute.about.get("held_out", True):
        to_measure = examples("test")
    for line in notices(to_attribute, to_measure):
        reporter.note(line)
    return to_attribute, to_measure


def _halves(task: Task, request: FindRequest, reporter: Reporter) -> tuple[Task, Task]:
    """The examples of a ``Task`` to attribute and those to measure on."""
    task = replace(task, name=request.task or task.name)
    n = len(task) if request.examples is None else request.examples
    halves = split_in_halves(task)
    if request.split == "all" or not all(halves):
        if request.split != "all":
            reporter.note(
                f"{WARNING}nothing is held out, because the task has fewer than {LEAST} examples or a single clean "
                "prompt. All are both attributed and measured, so the circuit may not do as well on other prompts"
            )
        return (task[:n],) * 2
    parts = [
        replace(task.take(rows[:n]), about={**task.about, "half": half})
        for half, rows in zip(("train", "test"), halves, strict=True)
    ]
    return (parts[0], parts[1]) if request.split == defaults.SPLITS[0] else (parts[0], parts[0])


def _circuits(model: Transformer, request: FindRequest, scores: Scores, task: Task, curve: bool) -> Selected:
    limits, curve = request.limits, curve and scores.by_span is None
    if request.nodes is not None:
        # Each of the other circuits has 1.5 times as many nodes as the one before.
        counts = [n for n in (round(1.5**i) for i in range(2, 40)) if n < model.graph.n_sources and n != request.nodes]
        others = [select_nodes(scores, n) for n in counts[-12:]] if curve else []
        return select_nodes(scores, request.nodes), others, None
    how, share = request.selection, request.share
    selection, _ = find_selection(how)
    if not selection.sized:
        circuits = select_many(scores, (), how=how, model=model, task=task, limits=limits)
        circuits = [circuit for circuit in circuits if circuit.asked]
        if not circuits:
            smaller = "" if selection.varies is None else f": give a smaller {selection.varies}"
            raise UsageError(f"{how} keeps none of the model's edges on these examples{smaller}.")
        circuit = circuits.pop(0 if share is None else smallest_of(model, task, circuits, share, limits))
        return circuit, circuits, None
    sizes = _curve_sizes(model.graph.n_edges) if curve else []
    n = None if share is not None else request.edge_count(scores.n_edges)
    if n is not None and not selection.nested:
        sizes = [size for size in sizes if size >= n // 2]  # each takes a selection of its own
        circuit, *others = select_many(scores, [n, *sizes], how=how, model=model, task=task, limits=limits)
        return circuit, others, None
    smallest = min([n or min(SMALLEST, scores.n_edges), *sizes])
    requested = () if n is None else (n,)
    with own_settings(model):
        prepared_batches = PreparedBatches.of(
            model, task, scores.provenance.ablation, limits
        )  # shared by the order and the search
    order = nested_order(scores, how=how, smallest=smallest, sizes=requested, model=model, task=task, limits=limits)
    if n is None:
        assert share is not None
        n = smallest_faithful(model, task, order, share, limits)
    del prepared_batches
    return order.circuit(n), [order.circuit(size) for size in sizes if size != n], order


def _curve_sizes(n_edges: int) -> list[int]:
    """Numbers of edges to measure in addition to n; in a small model up to almost all."""
    largest = max(round(LARGEST * n_edges), min(n_edges, READABLE))
    return log_spaced(min(SMALLEST, max(1, largest // 50)), largest, SIZES)


def measure_mib(
    model: Transformer,
    scores: Scores,
    task: Task,
    *,
    rankings: Sequence[str] = defaults.MIB_RANKINGS,
    batch_size: int | None = None,
    memory: int | None = None,
    progress: ShowProgress = None,
    ablation: str | None = None,
    mean_over: Task | None = None,
) -> dict[str, mib.Areas]:
    """MIB's CPR and CMD of the scores on a task: ``measure_mib(...)["signed"].cmd``.

    Args:
        model: The model.
        scores: The scores of all edges.
        task: The examples to measure on.
        rankings: How edges are ranked: ``top``, ``signed``, or both.
        batch_size: The largest number of examples in a batch; by default it depends on prompt length and free memory.
        memory: A budget in bytes, weights included; by default the weights and half of the free memory.
        progress: True for a progress bar; or a function, called with the number of examples of each finished batch.
        ablation: What edges outside the circuit carry, as in ``evaluate``.
        mean_over: The task whose clean prompts the means are taken over, as in ``evaluate``.

    Returns:
        The areas of each ranking.
    """
    counts = [mib.edges_at(scores.graph, fraction) for fraction in mib.FRACTIONS[:-1]]
    circuits = [circuit for how in rankings for circuit in select_many(scores, counts, how=how)]
    results = evaluate(
        model,
        circuits,
        task,
        batch_size=batch_size,
        memory=memory,
        progress=progress,
        ablation=ablation,
        mean_over=mean_over,
    )
    parts = [results[at : at + len(counts)] for at in range(0, len(results), len(counts))]
    return {how: mib.areas_of(part) for how, part in zip(rankings, parts, strict=True)}


@runtime_checkable
class Reporter(Protocol):
    """Shows progress and messages."""

    def job(self, total: float) -> AbstractContextManager[Job]:
        """A bar over phases that together cost ``total``."""

    def note(self, text: str) -> None:
        """Show a message."""


@dataclass(frozen=True)
class Plain:
    """The reporter of Python calls: shows a bar if requested, and of the messages only warnings."""

    shown: bool = False

    def job(self, total: float) -> AbstractContextManager[Job]:
        return job(total, shown=self.shown)

    def note(self, text: str) -> None:
        if text.startswith(WARNING):
            warn(text.removeprefix(WARNING))


def notices(attributed: Task | None, measured: Task) -> list[str]:
    """What the user should know about the pairs: how many are used for what, notes, and which were dropped and why.

    Without ``attributed``, a circuit that was found before is run on ``measured``.
    """
    first = measured if attributed is None else attributed
    about = first.about
    held_out = measured is not first and about.get("held_out", True)
    tasks = [first, measured] if held_out else [first]
    lines = list[str]()
    if "rows_read" in about:
        lines = [_measured_pairs(measured) if attributed is None else _usage(attributed, measured)]
    lines += dict.fromkeys(str(note) for task in tasks for note in task.about.get("notes", []))
    drops = [drop for task in tasks for drop in task.about.get("dropped", {}).values()]
    rows = sum(drop["count"] for drop in drops)
    listed = [row for drop in drops for row in drop.get("rows", ())]
    if listed:
        lines.append(f"{rows:,} {'row is' if rows == 1 else 'rows are'} left out:")
        lines += [f"  {line}" for line in listed]
        lines += [f"  ... and {rows - len(listed):,} more"] if rows > len(listed) else []
        return lines
    return lines + [
        f"{drop['count']:,} {'pair was' if drop['count'] == 1 else 'pairs were'} dropped because {reason} "
        f"(first: {drop['first']})"
        for reason, drop in about.get("dropped", {}).items()
    ]


def _usage(attributed: Task, measured: Task) -> str:
    """How many pairs of the user's own data are attributed, and how many are measured on."""
    about, n = attributed.about, len(attributed)
    if measured is not attributed and about.get("held_out", True):
        pairs = f"{n:,} pairs to attribute and {len(measured):,} others, held out, to measure"
    else:
        pairs = f"{n:,} {'pair' if n == 1 else 'pairs'} to attribute, and the same to measure"
    return f"{_rows_read(about)}, {pairs}; metric {about['metric']}"


def _measured_pairs(task: Task) -> str:
    """How many pairs of the user's own data a saved circuit is run on, and which."""
    about, n = task.about, len(task)
    pairs = f"{n:,} {'pair' if n == 1 else 'pairs'}"
    if about.get("held_out", True) and about["split"] != "all":
        half = "attributes" if about["split"] == "train" else "holds out"
        pairs += f" of the half that find {half} (--split all: of both halves)"
    return f"{_rows_read(about)}, the circuit is run on {pairs}; metric {about['metric']}"


def _rows_read(about: Mapping[str, Any]) -> str:
    return f"{about['source']}: {about['rows_read']:,} {'row' if about['rows_read'] == 1 else 'rows'}"
