"""The data of a report: what was measured, as Python passes it. ``payload`` makes the page's JSON of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gradpath.circuit import Circuit
from gradpath.evaluation.mib import Areas
from gradpath.evaluation.result import Result
from gradpath.explanation import Inside
from gradpath.graph import Graph
from gradpath.model.tokenizer import Tokenizer
from gradpath.prepared import PreparedBatches
from gradpath.recipe import Recipe
from gradpath.scores import Scores
from gradpath.selection.ranking import Sample
from gradpath.tasks.metrics import logit_difference, probability_difference
from gradpath.verdict import Verdict
from gradpath.verdict.checks import Check
from gradpath.verdict.effects import Effects

IN_PAGE = ("top", "greedy", "signed")  # the selections that a page of scores offers
READABLE = 200  # the most edges that a person can follow in a drawing: the page draws no more until it is told to
SAVED = "saved"  # the page's name for the order of the edges in a circuit
SHOWN = 16  # examples
CHANCE = "random"  # the points of a curve with this selection are drawn as a grey band


@dataclass(frozen=True)
class CurvePoint:
    """The measured faithfulness of one circuit: a point of a method's curve."""

    how: str  # the selection of the circuit
    requested: int  # edges that were requested
    kept: int  # edges after pruning
    faithfulness: float
    low: float | None  # of the 95% interval, if there is one
    high: float | None
    error: float

    @classmethod
    def of(cls, how: str, result: Result) -> CurvePoint:
        """The point of a result; ``how`` is the selection of its circuit."""
        low, high = result.interval or (None, None)
        return cls(how, result.edges_requested, result.edges_kept, result.faithfulness, low, high, result.error)


def selected_by(circuit: Circuit, how: str) -> Circuit:
    """The same circuit with another name for its selection: that of the curve on which it is one of several points."""
    return replace(circuit, recipe=(circuit.recipe or Recipe()).selected(how))


@dataclass(frozen=True)
class MethodRun:
    """The scores of one method, and the circuits of them that were measured.

    ``circuit`` is one of another selection than ``IN_PAGE``, or one without scores. The page offers its edges in their
    order, and points of the curve whose ``how`` is that of its selection belong to it. If its first n edges are what
    the selection gives for n edges, ``smallest`` is the smallest such n, and the circuit the largest one, not pruned.
    """

    scores: Scores | None  # None if there is only a circuit
    curve: Sequence[CurvePoint] = ()  # those of ``random`` are drawn as a grey band, from the worst to the best
    circuit: Circuit | None = None
    samples: Sequence[Sample] = ()  # the orders of edges on the resamples that the circuit is a consensus of
    smallest: int | None = None
    name: str | None = None  # tells runs of the same method apart
    areas: Mapping[str, Areas] = field(default_factory=dict)  # of the MIB benchmark, by selection

    @property
    def origin(self) -> Scores | Circuit:
        """The scores, or the circuit if there are none."""
        origin = self.scores if self.scores is not None else self.circuit
        assert origin is not None
        return origin

    @property
    def graph(self) -> Graph:
        return self.origin.graph

    @property
    def label(self) -> str:
        return self.name or (self.origin.recipe and self.origin.recipe.method) or "circuit"


@dataclass(frozen=True)
class Example:
    """One pair of prompts."""

    clean_tokens: Sequence[str]
    corrupted_tokens: Sequence[str]
    answer: str  # empty if the metric names none
    clean: float  # the metric on the clean prompt
    corrupted: float  # on the corrupted prompt
    circuit: float | None = None  # on the clean prompt, with all edges outside the circuit ablated


@dataclass(frozen=True)
class Chosen:
    """The circuit that the page opens on; examples, tests and roles are of it."""

    edges: int
    how: str = "top"  # the selection
    run: int = 0  # the index of its run in the report
    pruned: bool = True
    found: bool = True  # whether it was looked for; else it is one of the circuits of a curve
    requested: int | None = None  # edges that were requested, if not ``edges``


@dataclass(frozen=True)
class Report:
    """Everything that one page shows."""

    title: str
    model: str
    task: str
    runs: Sequence[MethodRun]  # one for each method
    chosen: Chosen
    examples: Sequence[Example] = ()
    command: str = ""  # that makes the report again
    about: Mapping[str, Any] = field(default_factory=dict)  # further facts to list, such as the time and versions
    inside: Inside | str | None = None  # what the circuit does on these examples, or why that is not known
    checks: Mapping[str, Check] = field(default_factory=dict)  # the results of ``verdict.test``, by name
    summary: str = ""  # what is known of the circuit without them, in one sentence
    undone: bool = False  # whether the model does not do the task, so that faithfulness means nothing
    effects: Effects | None = None  # estimated and measured effects of a sample of its edges, from the verdict
    small: int | None = None  # the edges of the best circuit that can be read, where the chosen one has too many
    small_text: str = ""  # a sentence about it


def circuit_report(circuit: Circuit, command: str = "") -> Report:
    """The report of a circuit alone: its edges, without a curve and examples."""
    recipe = circuit.recipe or Recipe()
    model, task = recipe.model or "a model", recipe.task or "a task"
    chosen = Chosen(len(circuit), SAVED, pruned=circuit.pruned)
    return Report(f"{task} in {model}", model, task, [MethodRun(None, circuit=circuit)], chosen, command=command)


def verdict_report(circuit: Circuit, verdict: Verdict, command: str = "") -> Report:
    """The report of a circuit that was tested, with the verdict of ``gp.test`` at the top."""
    result = replace(verdict.result, edges_requested=circuit.requested)  # tests run the pruned circuit
    point = CurvePoint.of(circuit.selection or SAVED, result)
    return replace(
        circuit_report(circuit, command),
        title=f"{verdict.task} in {verdict.model}",
        model=verdict.model,
        task=verdict.task,
        runs=[MethodRun(None, [point], circuit=circuit)],
        checks=verdict.checks,
        undone=verdict.result.does_task == "no",
        effects=verdict.effects,
        about={"tested on": f"{verdict.examples} examples of {verdict.task}"},
    )


def spread_examples(result: Result, n: int) -> list[int]:
    """The numbers of n examples, evenly from the one that the circuit preserves best to the worst."""
    distance = (result.circuit_values - result.clean_values).abs()
    total = len(distance)
    step = (total - 1) / (n - 1) if total > n >= 2 else 1
    places = [round(i * step) for i in range(min(total, n))]
    examples: list[int] = distance.argsort(stable=True)[places].tolist()
    return examples


def evidence(prepared: PreparedBatches, result: Result, n: int = SHOWN) -> tuple[Example, ...]:
    """Pick n examples to show, evenly from the one that the circuit preserves best to the worst."""
    task, pairs, tokenizer = prepared.task, prepared.encoded, prepared.model.tokenizer
    has_answers = task.metric in (logit_difference, probability_difference)

    def example(i: int) -> Example:
        end = int(pairs.last[i]) + 1
        return Example(
            clean_tokens=[_text(token, tokenizer) for token in pairs.clean[i, :end].tolist()],
            corrupted_tokens=[_text(token, tokenizer) for token in pairs.corrupted[i, :end].tolist()],
            answer=_answer(pairs.labels[i], tokenizer) if has_answers else "",
            clean=float(result.clean_values[i]),
            corrupted=float(result.corrupted_values[i]),
            circuit=float(result.circuit_values[i]),
        )

    return tuple(map(example, spread_examples(result, n)))


def _text(token: int, tokenizer: Tokenizer | None) -> str:
    return f" {token}" if tokenizer is None else tokenizer.decode([token])


def _answer(label: Any, tokenizer: Tokenizer | None) -> str:
    """The correct answer; of several the first, with the number of the others."""
    correct = [token for token in label[0].reshape(-1).tolist() if token >= 0]
    if not correct:
        return ""
    return _text(correct[0], tokenizer) + (f" (or {len(correct) - 1} more)" if len(correct) > 1 else "")
