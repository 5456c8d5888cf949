"""From prompts to a measured circuit: what ``gradpath find`` and ``gp.find`` do.

1. Load the task: examples for attribution, and held-out ones for evaluation.
2. Attribute: score every edge.
3. Select a circuit, and circuits of other sizes for the report's curve.
4. Evaluate all of them on the held-out examples.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gradpath import defaults
from gradpath.ablation import ABLATIONS
from gradpath.attribution.attribute import attribute_at_steps
from gradpath.attribution.methods import recorded_method
from gradpath.circuit import Circuit
from gradpath.errors import UsageError, check_type, reason, warn
from gradpath.evaluation import evaluate_many
from gradpath.evaluation.result import Result
from gradpath.model.transformer import Transformer
from gradpath.pipeline.examples import Note, load_examples, note_warnings
from gradpath.pipeline.found import Found
from gradpath.prepared import PreparedBatches
from gradpath.recipe import IN_MEMORY, Recipe
from gradpath.report.data import READABLE
from gradpath.runtime.progress import bars
from gradpath.scores import Scores
from gradpath.selection import Order, edge_count, find_selection, rank, select_nodes
from gradpath.selection.faithful import log_spaced, smallest_faithful
from gradpath.sweep import Limits, own_settings
from gradpath.tasks.load import check_task
from gradpath.tasks.metrics import Metric, find_metric, metric_name
from gradpath.tasks.task import Task
from gradpath.verdict.checks import RANDOM, few_examples

# The sizes of the report's curve, in addition to the requested circuit: from SMALLEST edges to the paper's 97.5%
# sparsity. A large circuit takes as long as several small ones.
SMALLEST, LARGEST, SIZES = 20, 0.025, 8
# Random circuits of each size in the report's grey band. They run on few examples: enough to see what chance gives.
BAND = 3
# The requested circuit, those of other sizes for the curve, and their order, if there is one.
Selected = tuple[Circuit, list[Circuit], Order | None]


def find(
    model: Transformer,
    task: str | Task | None = None,
    *,
    data: Any = None,
    metric: str | Metric | None = None,
    batch_size: int | None = None,
    memory: int | None = None,
    curve: bool = True,
    progress: bool = False,
    **recipe: Any,
) -> Found:
    """Find a circuit and measure it: what ``gradpath find`` does.

    Args:
        model: The model.
        task: A built-in task (``gradpath ls tasks``); by default ``ioi``, if there is no ``data``. Or a ``Task``: half
            of its examples are attributed, and half measured; with fewer than 8, all are used for both.
        data: Your own pairs: a ``Task``, a CSV or JSONL file, a Hugging Face dataset, or rows as dictionaries.
        metric: The metric (``gradpath ls metrics``), ``FILE.py:function`` or a function; by default the task's own.
        batch_size: The largest number of examples in a batch; by default it depends on prompt length and free memory.
        memory: A budget in bytes, weights included; by default the weights and half of the free memory.
        curve: Whether to measure circuits of other sizes as well, for the report.
        progress: Whether to show progress bars.
        **recipe: The other options, fields of ``Recipe``:

    Returns:
        The scores, the circuit and its result, with methods that save them and write the report.
    """
    check_type("the model", model, Transformer)
    if isinstance(task, Task):
        if data is not None:
            raise UsageError("a Task has its own examples: give either a Task or `data`.")
        task, data = None, task
    named = {"data": None if data is None else IN_MEMORY, "metric": None if metric is None else metric_name(metric)}
    request = Recipe(task=task, **named, **recipe)
    with bars(progress):
        return run_find(model, request, data=data, metric=metric, limits=Limits(batch_size, memory), curve=curve)


_NAMED = ("model", "dtype", "bos", "task", "data", "metric")  # fields of the recipe that ``find`` has parameters for


def _document(function: Any) -> None:
    """List the fields of the recipe in the docstring and the signature of a function that takes them as keywords."""
    fields = {name: field for name, field in Recipe.model_fields.items() if name not in _NAMED}
    lines = []
    for name, field in fields.items():
        text = Recipe.default_text(name)
        lines.append(f"            {name}: {field.description}" + (f" [{text}]" if text else ""))
    before, mark, after = function.__doc__.partition("fields of ``Recipe``:\n")
    function.__doc__ = before + mark + "\n".join(lines) + "\n" + after
    signature, keyword = inspect.signature(function), inspect.Parameter.KEYWORD_ONLY
    *own, _ = signature.parameters.values()
    added = [
        inspect.Parameter(name, keyword, default=field.get_default(call_default_factory=True), annotation=Any)
        for name, field in fields.items()
    ]
    function.__signature__ = signature.replace(parameters=[*own, *added])


_document(find)


def checked(recipe: Recipe, data: Any = None, metric: str | Metric | None = None) -> Recipe:
    """The recipe with its selection filled in. What cannot work is refused before a model is loaded."""
    method, options = recorded_method(recipe)
    if isinstance(data, Task) and metric is not None:
        raise UsageError("a Task has its own metric: leave out `metric`, or give it to the Task.")
    if recipe.clean is None:
        check_task(recipe.task or (None if data is not None else defaults.TASK), data)
    if metric is not None:
        method.check_metric(find_metric(metric), options)
    ABLATIONS.find(recipe.ablation)
    if recipe.nodes is not None:
        return recipe
    find_selection(recipe.selection or defaults.SELECTION)
    return recipe.changed(selection=recipe.selection or defaults.SELECTION)


def run_find(
    model: Transformer,
    recipe: Recipe,
    *,
    data: Any = None,
    metric: str | Metric | None = None,
    limits: Limits = Limits(),
    curve: bool = True,
    note: Note = note_warnings,
) -> Found:
    """Attribute some examples of a task, select a circuit, and measure it on others."""
    recipe = checked(recipe, data, metric)
    attributed, measured = load_examples(model, recipe, data=data, metric=metric, note=note)
    prepared = PreparedBatches(model, attributed, recipe.ablation, limits)
    method, options = recorded_method(recipe)
    if recipe.steps is not None and "steps" not in options:
        warn(f"the method {recipe.method!r} has no steps: steps={recipe.steps} is ignored.")
    with own_settings(model):
        *_, scores = attribute_at_steps(prepared, method, options)
    assert scores.recipe is not None
    if recipe.clean is None:  # else it is all that there is
        scores = replace(scores, recipe=scores.recipe.changed(split=recipe.split))
    if limits.memory is not None:
        note(f"batches of {scores.facts.batch_size} examples fit into the memory budget")
    selected = _circuits(recipe, scores, prepared, curve)
    if measured is attributed:
        held_out = prepared.take(range(len(measured)))
        held_out.task = measured
    else:
        held_out = PreparedBatches(model, measured, recipe.ablation, limits, mean_over=prepared, room=0)
    del prepared  # and with it the batches that it keeps
    return _measured(recipe, scores, selected, attributed, held_out, curve)


def _measured(
    recipe: Recipe, scores: Scores, selected: Selected, attributed: Task, held_out: PreparedBatches, curve: bool
) -> Found:
    """Measure the circuit, and for the report those of other sizes, of ``top``, and random ones."""
    circuit, others, order = selected
    compare_top = recipe.nodes is None and recipe.selection != defaults.RANKING
    sizes = [other.requested for other in others]
    sizes = sizes[-2::-3] or sizes  # for comparison, every third is enough; the largest takes longest
    top = rank(scores) if others and compare_top else None
    top_circuits = [] if top is None else [top.circuit(n) for n in (*sizes, circuit.requested)]
    result, *results = _results(held_out, [circuit, *others, *top_circuits])
    by_chance = list[Result]()
    if curve:
        try:
            by_chance = _measured_by_chance(circuit, result, scores, sizes[:3], held_out)
        except Exception as problem:  # it must not cost the scores and the circuit
            warn(f"random circuits could not be measured ({reason(problem)}): the report has none.")
    return Found(
        attributed,
        held_out,
        scores,
        circuit,
        result,
        curve=results[: len(others)],
        order=order,
        top=results[len(others) :],
        few=by_chance[0] if by_chance else None,
        random=by_chance[1:],
    )


def _measured_by_chance(
    circuit: Circuit, result: Result, scores: Scores, sizes: Sequence[int], held_out: PreparedBatches
) -> list[Result]:
    """The circuit and random ones on a few examples: some of its size, and fewer of each of some other sizes."""
    random = list[Circuit]()
    for seed in range(RANDOM):
        counts = [circuit.requested, *(sizes if seed < BAND else ())]
        order = rank(scores, f"random-paths+seed={seed}", sizes=counts)
        random += [order.circuit(n) for n in counts]
    few = held_out.take(range(len(few_examples(held_out.task, result))))
    return _results(few, [circuit, *random])


def _results(examples: PreparedBatches, circuits: Sequence[Circuit]) -> list[Result]:
    """The result of each circuit. Equal circuits are run once."""
    # The largest circuit of refined is that of top, for example.
    keys = [(circuit.requested, circuit) for circuit in circuits]
    different = dict(zip(keys, circuits, strict=True))
    results = evaluate_many(examples, list(different.values()))
    by_key = dict(zip(different, results, strict=True))
    return [by_key[key] for key in keys]


def _circuits(recipe: Recipe, scores: Scores, prepared: PreparedBatches, curve: bool) -> Selected:
    model = prepared.model
    if recipe.nodes is not None:
        # Each of the other circuits has 1.5 times as many nodes as the one before.
        counts = [n for n in (round(1.5**i) for i in range(2, 40)) if n < model.graph.n_sources and n != recipe.nodes]
        others = [select_nodes(scores, n) for n in counts[-12:]] if curve else []
        return select_nodes(scores, recipe.nodes), others, None
    sizes = _curve_sizes(scores.n_edges) if curve else []
    n = None
    if recipe.size in ("edges", "sparsity"):
        n = edge_count(scores.n_edges, recipe.edges, recipe.sparsity)
    smallest = min([n or min(SMALLEST, scores.n_edges), *sizes])
    selection, requested = recipe.selection or defaults.SELECTION, () if n is None else (n,)
    order = rank(
        scores,
        selection,
        sizes=requested,
        smallest=smallest,
        largest=scores.n_edges,
        prepared=prepared,
        resamples=recipe.resamples,
    )
    share = recipe.faithfulness or (defaults.FAITHFULNESS if order.size is None else None)
    if n is None:
        n = order.size if share is None else smallest_faithful(prepared, order, share)
    if not n:
        raise UsageError(
            f"{selection} keeps none of the model's edges on these examples: give a size, or other options."
        )
    if sizes and share is not None and n > READABLE:
        sizes = sorted({*sizes, READABLE})
    circuit = order.circuit(n)
    if share is not None and recipe.size in (None, "faithfulness") and circuit.recipe is not None:
        circuit = replace(circuit, recipe=circuit.recipe.changed(faithfulness=share))
    return circuit, [order.circuit(size) for size in sizes if size != n], order


def _curve_sizes(n_edges: int) -> list[int]:
    """Numbers of edges to measure in addition to n; in a small model up to almost all."""
    largest = max(round(LARGEST * n_edges), min(n_edges, READABLE))
    return log_spaced(min(SMALLEST, max(1, largest // 50)), largest, SIZES)
