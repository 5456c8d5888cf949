"""The data of a report: what was measured. The page computes circuits of other sizes, pruning and sparsities itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gradpath.circuit import Circuit
from gradpath.errors import InputError
from gradpath.evaluation.mib import Areas
from gradpath.evaluation.result import Result
from gradpath.explanation import Inside
from gradpath.graph import Graph
from gradpath.model.tokenizer import Tokenizer
from gradpath.scores import Scores
from gradpath.tasks.metrics import logit_difference, probability_difference
from gradpath.tasks.task import Task, encode
from gradpath.verdict import Verdict
from gradpath.verdict.checks import Check
from gradpath.verdict.effects import Effects

IN_PAGE = ("top", "greedy", "signed")  # the selections that the page can compute
READABLE = 200  # the most edges that a person can follow in a drawing: a page opens on no more
SHOWN = 16  # examples that the page offers
SAVED = "saved"  # the page's name for the order of the edges in a circuit
CHANCE = "random"  # the points of a curve with this selection are drawn as a grey band


@dataclass(frozen=True)
class CurvePoint:
    """The measured faithfulness of one circuit: a point of a method's curve."""

    how: str
    edges_asked: int
    edges_kept: int
    faithfulness: float
    low: float | None
    high: float | None
    error: float

    @classmethod
    def of(cls, how: str, result: Result) -> CurvePoint:
        """The point of a result; ``how`` is the selection of its circuit."""
        low, high = result.interval or (None, None)
        return cls(how, result.edges_asked, result.edges_kept, result.faithfulness, low, high, result.error)


def selected_by(circuit: Circuit, how: str) -> Circuit:
    """The same circuit with another name for its selection: that of the curve on which it is one of several points."""
    return replace(circuit, about={**circuit.about, "selection": {**circuit.provenance.selection, "how": how}})


@dataclass(frozen=True)
class MethodRun:
    """The scores of one method, and the circuits of them that were measured.

    Args:
        scores: The scores; None if there is only a circuit.
        curve: The measured circuits. Those of ``random`` are drawn as a grey band, from the worst to the best.
        circuit: A circuit that the page cannot select, or that has no scores. The page offers its edges in their
            order. Points of the curve whose ``how`` is that of the circuit's selection belong to it.
        smallest: If the first n edges of ``circuit`` are what its selection gives for n edges, the smallest such n. The
            circuit is then the largest one, not pruned.
        name: A name that tells runs of the same method apart.
        areas: The areas of the MIB benchmark, by selection.
    """

    scores: Scores | None
    curve: Sequence[CurvePoint] = ()
    circuit: Circuit | None = None
    smallest: int | None = None
    name: str | None = None
    areas: Mapping[str, Areas] = field(default_factory=dict)

    @property
    def origin(self) -> Scores | Circuit:
        """The scores, or the circuit if there are none."""
        origin = self.scores if self.scores is not None else self.circuit
        if origin is None:
            raise InputError("a method in a report needs its scores or a circuit: got neither.")
        return origin

    @property
    def graph(self) -> Graph:
        return self.origin.graph

    @property
    def label(self) -> str:
        return self.name or self.origin.provenance.method or "circuit"

    @property
    def selections(self) -> tuple[str, ...]:
        """The selections that the page offers for this run."""
        return (() if self.circuit is None else (SAVED,)) + (() if self.scores is None else IN_PAGE)


@dataclass(frozen=True)
class Example:
    """One pair of prompts as tokens, the answer, and the metric in the three runs."""

    clean_tokens: Sequence[str]
    corrupted_tokens: Sequence[str]
    answer: str
    clean: float
    corrupted: float
    circuit: float | None = None


@dataclass(frozen=True)
class Chosen:
    """The requested circuit, on which the examples were run; or of several measured circuits the largest.

    Args:
        edges: The number of edges.
        how: The selection.
        run: The index of its run in the report.
        pruned: Whether edges that are on no path from ``input`` to ``logits`` were removed.
        opens: The number of edges that the page shows first; by default the requested circuit.
        largest_of_curve: Whether this is the largest circuit of a curve, not one that was looked for.
    """

    edges: int
    how: str = "top"
    run: int = 0
    pruned: bool = True
    opens: int | None = None
    largest_of_curve: bool = False


@dataclass(frozen=True)
class Report:
    """Everything that one page shows.

    Args:
        title: The heading.
        model: The name of the model.
        task: The name of the task.
        runs: One entry for each method.
        chosen: The requested circuit.
        examples: A few examples, as ``evidence`` gives them.
        command: The command that makes the report again.
        about: Further facts to list, such as the seed, the time and the versions.
        inside: What the nodes and edges of the requested circuit do on these examples, or a text that says why that
            is not known.
        checks: The results of the tests of the requested circuit, by name (``verdict.test`` and ``quick_checks``).
        effects: The estimated and the measured effects of a sample of its edges, from the verdict.
    """

    title: str
    model: str
    task: str
    runs: Sequence[MethodRun]
    chosen: Chosen
    examples: Sequence[Example] = ()
    command: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)
    inside: Inside | str | None = None
    checks: Mapping[str, Check] = field(default_factory=dict)
    effects: Effects | None = None


def circuit_report(circuit: Circuit, command: str = "") -> Report:
    """The report of a circuit alone: its edges, without a curve and examples."""
    model, task = circuit.provenance.model or "a model", circuit.provenance.task or "a task"
    chosen = Chosen(len(circuit), SAVED, pruned=circuit.provenance.pruned)
    return Report(f"{task} in {model}", model, task, [MethodRun(None, circuit=circuit)], chosen, command=command)


def verdict_report(circuit: Circuit, verdict: Verdict, command: str = "") -> Report:
    """The report of a circuit that was tested, with the verdict of ``gp.test`` at the top."""
    point = CurvePoint.of(circuit.provenance.how or SAVED, verdict.result)
    return replace(
        circuit_report(circuit, command),
        title=f"{verdict.task} in {verdict.model}",
        model=verdict.model,
        task=verdict.task,
        runs=[MethodRun(None, [point], circuit=circuit)],
        checks=verdict.checks,
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


def evidence(task: Task, result: Result, tokenizer: Tokenizer | None, n: int = SHOWN) -> tuple[Example, ...]:
    """Pick examples to show, evenly from the one that the circuit preserves best to the worst.

    Args:
        task: The examples that the circuit was evaluated on.
        result: What ``evaluate`` gave.
        tokenizer: The model's tokenizer; without one, tokens are shown as numbers.
        n: The number of examples.

    Returns:
        The examples, in order of the circuit's distance from the model.
    """
    pairs = encode(task, tokenizer)
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
