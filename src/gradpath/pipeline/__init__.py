"""From prompts to a measured circuit: what ``gradpath find`` and ``gp.find`` do.

1. Load the task: examples for attribution, and held-out ones for evaluation.
2. Attribute: score every edge.
3. Select a circuit, and circuits of other sizes for the report's curve.
4. Evaluate all of them on the held-out examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradpath import defaults
from gradpath.attribution.attribute import attribute_at_steps
from gradpath.attribution.methods import find_method
from gradpath.circuit import Circuit
from gradpath.errors import UsageError, check_type, warn
from gradpath.evaluation import evaluate, evaluate_many, mib
from gradpath.evaluation.result import Result
from gradpath.limits import Limits
from gradpath.model.transformer import Transformer
from gradpath.pipeline.found import Found
from gradpath.pipeline.request import FindRequest
from gradpath.prepared import PreparedBatches
from gradpath.report.data import READABLE
from gradpath.runtime.progress import bars
from gradpath.scores import Scores
from gradpath.selection import NestedOrder, find_selection, nested_order, select_many, select_nodes
from gradpath.selection.faithful import log_spaced, smallest_faithful, smallest_of
from gradpath.sweep import own_settings
from gradpath.tasks.load import LEAST, WARNING, draw_task, split_in_halves
from gradpath.tasks.metrics import Metric
from gradpath.tasks.task import Task
from gradpath.verdict.checks import QUICK, few_examples

# The sizes of the report's curve, in addition to the requested circuit: from SMALLEST edges to a share of all. The
# largest circuits of the paper have 3.1% of the edges, and a large circuit takes as long as several small ones.
SMALLEST, LARGEST, SIZES = 20, 0.05, 10
# Random circuits of each size in the report's grey band. They run on few examples: enough to see what chance gives.
BAND = 3
# The requested circuit, those of other sizes for the curve, and their order, if there is one.
Selected = tuple[Circuit, list[Circuit], NestedOrder | None]
Note = Callable[[str], None]  # shows a message to the user


def note_warnings(text: str) -> None:
    """Show those messages for the user that are warnings: all that Python calls show."""
    if text.startswith(WARNING):
        warn(text.removeprefix(WARNING))


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
        sparsity: The share of edges to leave out, instead of ``faithfulness``. It is the default, 0.975, for
            selections that are not nested.
        nodes: The number of heads and MLPs, instead of ``faithfulness``: the circuit has all edges between them.
        how: The selection (``gradpath ls selections``); by default ``refined``.
        metric: The metric (``gradpath ls metrics``), ``FILE.py:function`` or a function; by default the task's own.
        examples: The number of examples for attribution; the same number is held out for evaluation. By default 100,
            or all of your own data, half for each.
        split: ``held-out`` to measure on held-out examples (the default), ``same`` to measure on those that were
            attributed, or ``all`` to use every example for both.
        ablation: How ablated edges are replaced: ``corrupted`` (the default), ``zero``, ``mean`` or
            ``mean-positional``.
        batch_size: The largest number of examples in a batch; by default it depends on prompt length and free memory.
        memory: A budget in bytes, weights included; by default the weights and half of the free memory.
        seed: The seed for drawing the examples; by default 0.
        curve: Whether to measure circuits of other sizes as well, for the report.
        progress: Whether to show progress bars.
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
        metric=metric,
        examples=examples,
        split=split,
        ablation=ablation,
        limits=Limits(batch_size, memory),
        seed=seed,
    )
    with bars(progress):
        return run_find(model, request, curve=curve)


def run_find(
    model: Transformer,
    request: FindRequest,
    *,
    curve: bool,
    note: Note = note_warnings,
    examples: tuple[Task, Task] | None = None,
) -> Found:
    """Attribute some examples of a task, select a circuit, and measure it on others; ``load_examples`` gives both."""
    limits = request.limits
    to_attribute, to_measure = examples or load_examples(model, request, note)
    # A selection that measures runs the prompts of the attribution again.
    prepared = PreparedBatches(model, to_attribute, request.ablation, limits, keep_prompts=True)
    with own_settings(model):
        *_, scores = attribute_at_steps(
            model, to_attribute, find_method(request.method), request.method_options, prepared=prepared
        )
    if limits.memory is not None:
        note(f"batches of {scores.provenance.batch_size} examples fit into the memory budget")
    selected = _circuits(request, scores, prepared, curve)
    if to_measure is to_attribute:
        held_out = prepared.take(range(len(to_measure)))
        held_out.task = to_measure
    else:
        held_out = PreparedBatches(
            model, to_measure, request.ablation, limits, mean_over=prepared, room=0, keep_prompts=True
        )
    del prepared  # and with it the batches that it keeps
    return _measured(request, scores, selected, to_attribute, held_out, curve)


def _measured(
    request: FindRequest, scores: Scores, selected: Selected, to_attribute: Task, held_out: PreparedBatches, curve: bool
) -> Found:
    """Measure the circuit, and for the report those of other sizes, of ``top``, and random ones."""
    circuit, others, order = selected
    limits, compare_top = request.limits, request.nodes is None and request.selection != defaults.RANKING
    sizes = [other.asked for other in others]
    sizes = sizes[-2::-3] or sizes  # for comparison, every third is enough; the largest takes longest
    top = select_many(scores, [*sizes, circuit.asked]) if others and compare_top else []
    result, *results = _results(held_out, [circuit, *others, *top])
    subset_result, random = None, list[Result]()
    if curve:
        random_circuits = list[Circuit]()
        for seed in range(QUICK):
            counts = [circuit.asked, *(sizes[:3] if seed < BAND else ())]
            random_circuits += select_many(scores, counts, how=f"random-paths+seed={seed}")
        subset = held_out.take(range(len(few_examples(held_out.task, result))))
        subset_result, *random = _results(subset, [circuit, *random_circuits])
    return Found(
        held_out.model,
        to_attribute,
        held_out.task,
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


def _results(examples: PreparedBatches, circuits: Sequence[Circuit]) -> list[Result]:
    """The result of each circuit. Equal circuits are run once."""
    # The largest circuit of refined is that of top, for example.
    keys = [(circuit.asked, circuit) for circuit in circuits]
    different = dict(zip(keys, circuits, strict=True))
    model, task, limits = examples.model, examples.task, examples.limits
    results = evaluate_many(model, list(different.values()), task, limits, prepared=examples)
    by_key = dict(zip(different, results, strict=True))
    return [by_key[key] for key in keys]


def load_examples(model: Transformer, request: FindRequest, note: Note) -> tuple[Task, Task]:
    """The examples for attribution and those for evaluation."""
    if isinstance(request.data, Task):
        return _halves(request.data, model, request, note)

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
        note(line)
    return to_attribute, to_measure


def _halves(task: Task, model: Transformer, request: FindRequest, note: Note) -> tuple[Task, Task]:
    """The examples of a ``Task`` for attribution and those for evaluation."""
    task = replace(task, name=request.task or task.name)
    n = len(task) if request.examples is None else request.examples
    halves = split_in_halves(task, model.tokenizer)
    if request.split == "all" or not all(halves):
        if request.split != "all":
            note(
                f"{WARNING}nothing is held out, because the task has fewer than {LEAST} examples or a single clean "
                "prompt. All are both attributed and measured, so the circuit may not do as well on other prompts"
            )
        return (task[:n],) * 2
    parts = [
        replace(task.take(rows[:n]), about={**task.about, "half": half})
        for half, rows in zip(("train", "test"), halves, strict=True)
    ]
    return (parts[0], parts[1]) if request.split == defaults.SPLITS[0] else (parts[0], parts[0])


def _circuits(request: FindRequest, scores: Scores, prepared: PreparedBatches, curve: bool) -> Selected:
    model, task, limits = prepared.model, prepared.task, prepared.limits
    if request.nodes is not None:
        # Each of the other circuits has 1.5 times as many nodes as the one before.
        counts = [n for n in (round(1.5**i) for i in range(2, 40)) if n < model.graph.n_sources and n != request.nodes]
        others = [select_nodes(scores, n) for n in counts[-12:]] if curve else []
        return select_nodes(scores, request.nodes), others, None
    how, share = request.selection, request.share
    selection, _ = find_selection(how)
    if not selection.sized:
        circuits = select_many(scores, (), how=how, model=model, task=task, limits=limits, prepared=prepared)
        circuits = [circuit for circuit in circuits if circuit.asked]
        if not circuits:
            smaller = "" if selection.varies is None else f": give a smaller {selection.varies}"
            raise UsageError(f"{how} keeps none of the model's edges on these examples{smaller}.")
        circuit = circuits.pop(0 if share is None else smallest_of(model, task, circuits, share, limits, prepared))
        return circuit, circuits, None
    sizes = _curve_sizes(model.graph.n_edges) if curve else []
    n = None if share is not None else request.edge_count(scores.n_edges)
    if n is not None and not selection.nested:
        sizes = [size for size in sizes if size >= n // 2]  # each takes a selection of its own
        counts = [n, *sizes]
        circuit, *others = select_many(
            scores, counts, how=how, model=model, task=task, limits=limits, prepared=prepared
        )
        return circuit, others, None
    smallest = min([n or min(SMALLEST, scores.n_edges), *sizes])
    requested = () if n is None else (n,)
    order = nested_order(
        scores, how=how, smallest=smallest, sizes=requested, model=model, task=task, limits=limits, prepared=prepared
    )
    if n is None:
        assert share is not None
        n = smallest_faithful(model, task, order, share, limits, prepared)
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
    progress: bool = False,
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
        progress: Whether to show progress bars.
        ablation: How ablated edges are replaced, as in ``evaluate``.
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
        pairs = f"{n:,} pairs for attribution, {len(measured):,} held out"
    else:
        pairs = f"{n:,} {'pair' if n == 1 else 'pairs'} for both attribution and evaluation"
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
