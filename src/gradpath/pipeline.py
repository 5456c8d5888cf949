"""The whole way from prompts to a measured circuit: what ``gradpath find`` and ``gp.find`` do.

1. Load the task: examples to attribute, and others to measure on.
2. Attribute: score every edge.
3. Select a circuit, and circuits of other sizes for the report's curve.
4. Evaluate all of them on the held-out examples.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from gradpath import defaults
from gradpath.ablation import ABLATIONS
from gradpath.attribution.attribute import attribute
from gradpath.attribution.attribute import phase_of as attribution_phase
from gradpath.attribution.methods import find_method
from gradpath.circuit import Circuit
from gradpath.errors import InputError, UsageError, check_type, unknown, warn, whole_number
from gradpath.evaluation import mib
from gradpath.evaluation.evaluate import evaluate
from gradpath.evaluation.evaluate import phase_of as evaluation_phase
from gradpath.evaluation.result import Result
from gradpath.explanation.examples import Inside, look_inside
from gradpath.model.transformer import Transformer
from gradpath.report.data import IN_PAGE, SAVED, SHOWN, Chosen, CurvePoint, MethodRun, Report, evidence, spread_examples
from gradpath.report.page import write
from gradpath.report.plots import POSITION_FILES, write_spans
from gradpath.runtime.files import write_together
from gradpath.runtime.progress import Job, Phase, job
from gradpath.scores import Scores
from gradpath.selection import NestedOrder, edge_count, find_selection, nested_order, select_many, select_nodes
from gradpath.selection.faithful import check_share, log_spaced, smallest_faithful
from gradpath.sweep import Limits, units
from gradpath.tasks.load import check_draw, check_task, load_task
from gradpath.tasks.metrics import Metric, find_metric, kl_divergence
from gradpath.tasks.spans import BY
from gradpath.tasks.task import Task
from gradpath.tasks.user_data import WARNING

# The sizes of the report's curve, in addition to the requested circuit: from SMALLEST edges to a share of all.
SMALLEST, LARGEST, SIZES = 20, 0.1, 16
SELECTING = 12.0  # forward passes that a selection which measures takes, for the progress bar: measured on SmolLM2
READABLE = 200  # the most edges that a person can follow in a drawing: a report opens on no more
SPLITS = ("held-out", "same", "all")
# Methods that take the gradient at the clean prompt alone, where that of kl is zero.
_AT_CLEAN = ("eap", "nap", "relp", "atp-star")


@dataclass(frozen=True)
class FindRequest:
    """The options of ``find``; wrong ones are refused before a model is loaded. See ``find``."""

    task: str | None = None
    data: Any = None
    method: str = defaults.METHOD
    steps: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    faithfulness: float | None = None
    edges: int | None = None
    sparsity: float | None = None
    nodes: int | None = None
    how: str | None = None
    positions: str | None = None
    metric: str | Metric | None = None
    examples: int | None = None
    split: str = SPLITS[0]
    ablation: str = defaults.ABLATION
    limits: Limits = Limits()
    seed: int = defaults.SEED

    def __post_init__(self) -> None:
        method = find_method(self.method)
        steps = {} if self.steps is None or "steps" not in method.defaults else {"steps": self.steps}
        method.options({**self.options, **steps})
        check_task(self.task_name, self.data)
        if self.metric is not None and find_metric(self.metric) is kl_divergence and self.method in _AT_CLEAN:
            raise UsageError(
                f"kl has no gradient at the clean prompt, where {self.method} takes it: all scores would be zero. "
                "Use a method with a path, such as eap-ig, or another metric."
            )
        check_draw(self.examples, self.seed, "train")
        sizes = {name: getattr(self, name) for name in ("faithfulness", "edges", "sparsity", "nodes")}
        given = [name for name, value in sizes.items() if value is not None]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} both set the size of the circuit: give one of them.")
        if self.faithfulness is not None:
            check_share(self.faithfulness)
        for name in ("edges", "nodes"):
            if sizes[name] is not None:
                whole_number(f"the number of {name}", sizes[name])
        if self.sparsity is not None and not 0 <= self.sparsity < 1:
            raise UsageError(
                f"the sparsity is the share of edges left out, from 0 up to but not including 1: got {self.sparsity}."
            )
        for what, value, known in (
            ("ablation", self.ablation, ABLATIONS),
            ("split", self.split, SPLITS),
            ("way to split positions", self.positions or BY[0], BY),
        ):
            if value not in known:
                raise unknown(what, value, known)
        selection, _ = find_selection(self.selection, spans=self.positions is not None)
        if not selection.sized and given:
            raise UsageError(f"{selection.name} decides itself how many edges it keeps: leave {given[0]} out.")
        if self.faithfulness is not None and not selection.nested:
            raise UsageError(
                f"faithfulness searches the circuits of one order, and those of how={self.how} are not parts of each "
                "other: give edges or sparsity instead, or another selection."
            )
        if self.nodes is not None and self.positions is not None:
            raise UsageError("nodes and positions cannot be combined: give edges or sparsity instead of nodes.")
        if self.nodes is not None and self.how is not None:
            raise UsageError(f"how={self.how} selects edges, and nodes selects nodes: leave one of them out.")

    @property
    def selection(self) -> str:
        return self.how or (defaults.SELECTION if self.positions is None else defaults.RANKING)

    @property
    def task_name(self) -> str | None:
        return self.task or (None if self.data is not None else defaults.TASK)

    @property
    def share(self) -> float | None:
        """The share of the behaviour to keep, if that sets the size of the circuit."""
        if (self.edges, self.sparsity, self.nodes, self.positions) != (None,) * 4:
            return self.faithfulness
        nested = find_selection(self.selection)[0].nested
        return self.faithfulness or (defaults.FAITHFULNESS if nested else None)

    def edge_count(self, n_edges: int) -> int:
        """The number of edges to select, out of ``n_edges``."""
        sparsity = defaults.SPARSITY if self.edges is None and self.sparsity is None else self.sparsity
        return edge_count(n_edges, self.edges, sparsity)


@runtime_checkable
class Reporter(Protocol):
    """Shows how the work goes on."""

    def job(self, total: float) -> AbstractContextManager[Job]:
        """A bar over work in phases, which together cost ``total``."""

    def note(self, text: str) -> None:
        """Something that the user should know."""


@dataclass(frozen=True)
class Plain:
    """A reporter for Python: shows a bar if that was asked for, and of the notes only warnings."""

    shown: bool = False

    def job(self, total: float) -> AbstractContextManager[Job]:
        return job(total, shown=self.shown)

    def note(self, text: str) -> None:
        if text.startswith(WARNING):
            warn(text.removeprefix(WARNING))


@dataclass(frozen=True, repr=False)
class Found:
    """Everything that one ``find`` computed.

    Args:
        model: The model.
        attributed: The examples that were attributed.
        measured: The examples that the circuit was measured on.
        scores: The scores of all edges.
        circuit: The circuit.
        result: The circuit's result on the measured examples.
        curve: The results of circuits of other sizes, by size.
        order: The order of edges that all of these circuits are beginnings of, if the selection is nested:
            ``found.order.circuit(n)`` is a circuit of another size.
        top: The results of the circuits of ``top`` of these sizes, to compare with.
        limits: How much may be computed at once, for the report too.
    """

    model: Transformer
    attributed: Task
    measured: Task
    scores: Scores
    circuit: Circuit
    result: Result
    curve: list[Result]
    order: NestedOrder | None = None
    top: list[Result] = field(default_factory=list)
    limits: Limits = Limits()

    def __repr__(self) -> str:
        return f"<Found: {self.circuit!r}, {self.result!r}>"

    def __str__(self) -> str:
        same = self.measured is self.attributed
        measured = "the same" if same else f"{len(self.measured):,} held-out ones"
        return "\n".join(
            [
                f"Found: {self.circuit.provenance}",
                *(f"  {line}" for line in str(self.result).splitlines()[:-1]),
                f"  examples      {len(self.attributed):,} to attribute, {measured} to measure",
                '  next          .report("report.html"), .save("folder"), .scores, .circuit, .result, .curve',
            ]
        )

    def _repr_html_(self) -> str:
        return self.circuit._repr_html_() + self.result._repr_html_()

    @property
    def edges_by_span(self) -> dict[str, int]:
        """How many edges the circuit has at each span of a prompt, if it has spans."""
        if self.circuit.span is None:
            return {}
        counts = self.circuit.span.bincount(minlength=len(self.circuit.spans)).tolist()
        return dict(zip(self.circuit.spans, counts, strict=True))

    def report(self, file: str | Path, *, command: str = "", seconds: float | None = None) -> None:
        """Write the interactive report.

        Args:
            file: The HTML file to write.
            command: The command that makes the report again, to show in it.
            seconds: How long it took, to show in it.
        """
        about, how = self.scores.about, self.circuit.provenance.how
        points = [CurvePoint.of(how, result) for result in [*self.curve, self.result]]
        points += [CurvePoint.of(defaults.RANKING, result) for result in self.top]
        run, chosen = self._shown(how)
        facts: dict[str, Any] = {} if seconds is None else {"seconds": seconds}
        facts |= {
            "examples measured": len(self.measured),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": importlib.metadata.version("transformers"),
        }
        report = Report(
            title=f"{about['task']} in {about['model']}",
            model=about["model"],
            task=about["task"],
            runs=[replace(run, curve=points)],
            chosen=chosen,
            examples=evidence(self.measured, self.result, self.model.tokenizer),
            inside=self._inside(),
            command=command,
            about=facts,
        )
        write(report, Path(file))

    def _shown(self, how: str) -> tuple[MethodRun, Chosen]:
        """How the page gets the circuits: it selects them itself, or has their order, or only the one found."""
        asked = self.circuit.asked
        if self.circuit.spans or (how not in IN_PAGE and self.order is None):
            circuit = self.circuit.anywhere()  # edges at spans are drawn once
            return MethodRun(self.scores, circuit=circuit), Chosen(len(circuit), SAVED)
        sizes = [result.edges_asked for result in [*self.curve, self.result]]
        opens = asked if asked <= READABLE else max((n for n in sizes if n <= READABLE), default=asked)
        if how in IN_PAGE:
            return MethodRun(self.scores), Chosen(asked, how, opens=opens)
        assert self.order is not None
        whole = self.order.circuit(max(sizes), prune=False)
        return MethodRun(self.scores, circuit=whole, smallest=self.order.smallest), Chosen(asked, SAVED, opens=opens)

    def _inside(self) -> Inside | None:
        """What the circuit does on the examples that the report shows."""
        shown = self.measured.take(spread_examples(self.result, SHOWN))
        try:
            return look_inside(self.model, self.circuit, shown, limits=self.limits, mean_over=self.attributed)
        except (InputError, UsageError):
            return None  # a metric without a gradient, or a model on several devices: the report has all else

    def save(self, folder: str | Path, *, command: str = "", seconds: float | None = None) -> None:
        """Write the scores, the circuit and the report (or the figure of positions): all of them, or none.

        Args:
            folder: The folder to write to.
            command: The command that makes the report again, to show in it.
            seconds: How long it took, to show in it.
        """
        # A report of an earlier run would not belong to these scores.
        with write_together(Path(folder), instead_of=("report.html", *POSITION_FILES)) as draft:
            self.scores.save(draft / "scores.safetensors")
            self.circuit.save(draft / "circuit.json")
            if self.circuit.spans:
                write_spans(self.circuit, draft)
            else:
                self.report(draft / "report.html", command=command, seconds=seconds)


def find(
    model: Transformer,
    task: str | None = None,
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
    split: str = SPLITS[0],
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
        task: A built-in task (``gradpath ls tasks``); by default ``ioi``, if there is no ``data``.
        data: Your own pairs: a CSV or JSONL file, a Hugging Face dataset, or rows as dictionaries.
        method: The method (``gradpath ls methods``); by default ``eap-ig``.
        steps: The number of points of the method's path; by default the method's own.
        faithfulness: The share of the behaviour to keep: the smallest circuit that does so on the attributed examples;
            by default 0.85, if no other size is given.
        edges: The number of edges of the circuit, instead.
        sparsity: The share of edges to leave out, instead. With ``positions``, and for selections that are not nested,
            it is the default: 0.975.
        nodes: The number of heads and MLPs, instead: the circuit has all edges among them.
        how: The selection (``gradpath ls selections``); by default ``refined``, with ``positions`` ``top``.
        positions: ``span`` or ``token`` to select edges at parts of the prompt.
        metric: The metric (``gradpath ls metrics``), ``FILE.py:function`` or a function; by default the task's own.
        examples: The number of examples to attribute, and to measure on; by default 100, or all of your own data, half
            to attribute and half to measure on.
        split: ``held-out`` to measure on other examples than were attributed (the default), ``same`` to measure on the
            attributed ones, or ``all`` to attribute and measure both halves.
        ablation: What edges outside of the circuit carry: ``corrupted`` (the default), ``zero``, ``mean`` or
            ``mean-positional``.
        batch_size: The largest number of examples in a batch; by default it follows from the prompts and the memory.
        memory: A budget in bytes, weights included; by default the weights and half of the memory that is free.
        seed: Chooses the examples; by default 0.
        curve: Whether to measure circuits of other sizes, too, for the report.
        progress: Whether to show a progress bar.
        **options: Other options of the method.

    Returns:
        The scores, the circuit and its result, and how to save them.
    """
    check_type("the model", model, Transformer)
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
        with job.phase(phases["score"]):
            scores = attribute(
                model,
                to_attribute,
                request.method,
                steps=request.steps,
                positions=request.positions,
                batch_size=limits.batch_size,
                memory=limits.memory,
                ablation=request.ablation,
                **request.options,
            )
        if limits.memory is not None:
            reporter.note(f"batches of {scores.about['batch_size']} examples fit into the memory budget")
        with job.phase(phases["select"]):
            circuit, others, order = _circuits(model, request, scores, to_attribute, curve)
        compared = others and request.nodes is None and request.selection != defaults.RANKING
        top = select_many(scores, [one.asked for one in (*others, circuit)]) if compared else []
        with job.phase(phases["measure"]):
            # The circuits record how they were found, so they are measured with the same ablation.
            results = evaluate(
                model,
                [circuit, *others, *top],
                to_measure,
                batch_size=limits.batch_size,
                memory=limits.memory,
                mean_over=to_attribute,
            )
    result, split = results[0], 1 + len(others)
    rest = {"curve": results[1:split], "top": results[split:]}
    return Found(model, to_attribute, to_measure, scores, circuit, result, order=order, limits=limits, **rest)


def _phases(
    model: Transformer, request: FindRequest, to_attribute: Task, to_measure: Task, curve: bool
) -> dict[str, Phase]:
    """What is going to be done, and how much work it is."""
    method, options = find_method(request.method), dict(request.options)
    if request.steps is not None and "steps" in method.defaults:
        options["steps"] = request.steps
    score = attribution_phase(model, to_attribute, method, method.options(options))
    how, share = request.selection, request.share
    measures = find_selection(how)[0].measures and request.nodes is None
    # A search measures a dozen small circuits, after two set-ups.
    passes = (SELECTING if measures else 0.0) + (0.0 if share is None else 7.0)
    what = f"selecting edges ({how})" + ("" if share is None else f" that keep {share:.0%}")
    select = Phase(what, units(model, to_attribute, passes) if passes else 0.0)
    n_circuits = 1 + (2 * SIZES if curve and request.positions is None else 0)
    return {"score": score, "select": select, "measure": evaluation_phase(model, to_measure, n_circuits)}


def load_examples(model: Transformer, request: FindRequest, reporter: Reporter) -> tuple[Task, Task]:
    """The examples to attribute and those to measure on."""

    def examples(split: str) -> Task:
        return load_task(
            request.task_name,
            model,
            n="auto" if request.examples is None else request.examples,
            seed=request.seed,
            split=split,
            data=request.data,
            metric=request.metric,
        )

    to_attribute = to_measure = examples("all" if request.split == "all" else "train")
    if request.split == SPLITS[0] and to_attribute.about.get("held_out", True):
        to_measure = examples("test")
    for line in notices(to_attribute, to_measure):
        reporter.note(line)
    return to_attribute, to_measure


def _circuits(
    model: Transformer, request: FindRequest, scores: Scores, task: Task, curve: bool
) -> tuple[Circuit, list[Circuit], NestedOrder | None]:
    """The requested circuit, those of other sizes for the curve, and their order, if there is one."""
    limits, curve = request.limits, curve and scores.by_span is None
    if request.nodes is not None:
        counts = _node_counts(model.graph.n_sources, request.nodes) if curve else []
        return select_nodes(scores, request.nodes), [select_nodes(scores, n) for n in counts], None
    how = request.selection
    sizes = _curve_sizes(model.graph.n_edges) if curve and find_selection(how)[0].sized else []
    share = request.share
    n = None if share is not None else request.edge_count(scores.n_edges)
    if n is not None and not find_selection(how)[0].nested:
        sizes = [size for size in sizes if size >= n // 2]  # each takes a selection of its own
        circuit, *others = select_many(scores, [n, *sizes], how=how, model=model, task=task, limits=limits)
        return circuit, others, None
    smallest = min([n or min(SMALLEST, scores.n_edges), *sizes])
    order = nested_order(scores, how=how, smallest=smallest, model=model, task=task, limits=limits)
    if n is None:
        assert share is not None
        n = smallest_faithful(model, task, order, share, limits)
    return order.circuit(n), [order.circuit(size) for size in sizes if size != n], order


def _curve_sizes(n_edges: int) -> list[int]:
    """Numbers of edges to measure in addition to n; of a small model almost all."""
    largest = max(round(LARGEST * n_edges), min(n_edges, READABLE))
    return log_spaced(min(SMALLEST, max(1, largest // 50)), largest, SIZES)


def _node_counts(n_sources: int, n: int) -> list[int]:
    """Numbers of nodes to measure in addition to n: each 1.5 times the one before."""
    return [k for k in (round(1.5**i) for i in range(2, 40)) if k < n_sources and k != n][-12:]


def notices(attributed: Task, measured: Task) -> list[str]:
    """What the user should know about the pairs: how many are used for what, notes, and which were dropped and why."""
    tasks = [attributed] if measured is attributed else [attributed, measured]
    lines = [] if "rows_read" not in attributed.about else [_taken(attributed, measured)]
    lines += dict.fromkeys(str(note) for task in tasks for note in task.about.get("notes", []))
    rows = sum(sum(drop["count"] for drop in task.about.get("dropped", {}).values()) for task in tasks)
    listed = [row for task in tasks for drop in task.about.get("dropped", {}).values() for row in drop.get("rows", ())]
    if listed:
        lines.append(f"{rows:,} {'row is' if rows == 1 else 'rows are'} left out:")
        lines += [f"  {line}" for line in listed]
        lines += [f"  ... and {rows - len(listed):,} more"] if rows > len(listed) else []
        return lines
    return lines + [
        f"{drop['count']:,} {'pair was' if drop['count'] == 1 else 'pairs were'} dropped because {reason} "
        f"(first: {drop['first']})"
        for reason, drop in attributed.about.get("dropped", {}).items()
    ]


def _taken(attributed: Task, measured: Task) -> str:
    """What was taken of the user's own data."""
    about, held_out = attributed.about, measured is not attributed and attributed.about.get("held_out", True)
    head = f"{about['source']}: {about['rows_read']:,} {'row' if about['rows_read'] == 1 else 'rows'}, "
    tail = f"; metric {about['metric']}"
    if not held_out:
        n = f"{len(attributed):,} {'pair' if len(attributed) == 1 else 'pairs'}"
        return f"{head}{n} to attribute, and the same to measure{tail}"
    return f"{head}{len(attributed):,} pairs to attribute and {len(measured):,} others, held out, to measure{tail}"


def measure_mib(
    model: Transformer,
    scores: Scores,
    task: Task,
    *,
    rankings: Sequence[str] = mib.RANKINGS,
    batch_size: int | None = None,
    memory: int | None = None,
    progress: Callable[[int], None] | None = None,
    ablation: str | None = None,
    mean_over: Task | None = None,
) -> dict[str, mib.Areas]:
    """MIB's CPR and CMD of the scores on a task: ``measure_mib(...)["signed"].cmd``.

    Args:
        model: The model.
        scores: The scores of all edges.
        task: The examples to measure on.
        rankings: How edges are ranked: ``top``, ``signed``, or both.
        batch_size: The largest number of examples in a batch; by default it follows from the prompts and the memory.
        memory: A budget in bytes, weights included; by default the weights and half of the memory that is free.
        progress: Called with the number of examples of each finished batch.
        ablation: What edges outside of a circuit carry, as in ``evaluate``.
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
