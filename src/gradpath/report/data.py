"""What a report is made from: plain values, filled in by whoever ran the methods.

Only what was measured is in here. What can be computed from it (circuits of other sizes, pruning,
sparsities) is computed in the page.

A few examples of a task as a page can show them: tokens, the answer, the metric in the three runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gradpath.circuit import Circuit
from gradpath.errors import InputError
from gradpath.evaluation.evaluate import Result
from gradpath.evaluation.mib import Areas
from gradpath.graph import Graph
from gradpath.model.tokenizer import Tokenizer
from gradpath.scores import Scores
from gradpath.tasks.metrics import METRICS
from gradpath.tasks.task import Task, encode

SAVED = "saved"  # the page's name for the order in which a circuit's own edges stand in its file
IN_PAGE = ("top", "greedy", "signed")  # the selections that the page can compute for itself


@dataclass(frozen=True)
class CurvePoint:
    """The faithfulness of one circuit, measured: a point of a method's curve."""

    how: str
    edges_asked: int
    edges_kept: int
    faithfulness: float
    low: float
    high: float
    error: float

    @classmethod
    def of(cls, how: str, result: Result) -> CurvePoint:
        low, high = result.interval
        return cls(how, result.edges_asked, result.edges_kept, result.faithfulness, low, high, result.error)


@dataclass(frozen=True)
class MethodRun:
    """One method's scores, the circuits of it that were measured, and perhaps one circuit it gave.

    ``found`` is needed where there are no scores (a circuit file alone), or where its edges were chosen
    in a way that the page cannot compute; its edges can then be gone through in their own order, and the
    points of the curve whose ``how`` is that of the circuit's ``about["selection"]`` belong to it.
    """

    scores: Scores | None
    curve: Sequence[CurvePoint] = ()
    found: Circuit | None = None
    name: str | None = None
    areas: Mapping[str, Areas] = field(default_factory=dict)  # MIB's, by selection

    @property
    def origin(self) -> Scores | Circuit:
        """What the run is about: its scores, or the circuit that stands in for them."""
        origin = self.scores if self.scores is not None else self.found
        if origin is None:
            raise InputError("a method in a report needs its scores or a circuit: got neither.")
        return origin

    @property
    def graph(self) -> Graph:
        return self.origin.graph

    @property
    def about(self) -> Mapping[str, Any]:
        return self.origin.about

    @property
    def label(self) -> str:
        return self.name or str(self.about.get("method", "circuit"))

    @property
    def selections(self) -> tuple[str, ...]:
        """The ways of selecting edges that the page can offer for this run."""
        saved = () if self.found is None else (SAVED,)
        return saved if self.scores is None else (*IN_PAGE, *saved)


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
    """The circuit that was asked for: what the page shows first, and what the examples were run on."""

    edges: int
    how: str = "top"
    run: int = 0
    pruned: bool = True


@dataclass(frozen=True)
class Report:
    """Everything that one page shows.

    ``about`` holds further facts to list, such as the seed, the time it took and the versions used;
    ``command`` is what to type to make the report again.
    """

    title: str
    model: str
    task: str
    runs: Sequence[MethodRun]
    chosen: Chosen
    examples: Sequence[Example] = ()
    command: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)


def circuit_report(circuit: Circuit, command: str = "") -> Report:
    """The report of a circuit file alone: its own edges, no curve, no examples."""
    about = circuit.about
    model, task = str(about.get("model") or "a model"), str(about.get("task") or "a task")
    pruned = bool(about.get("selection", {}).get("pruned", True))
    return Report(
        title=f"{task} in {model}",
        model=model,
        task=task,
        runs=(MethodRun(None, found=circuit),),
        chosen=Chosen(len(circuit), SAVED, pruned=pruned),
        command=command,
    )


def evidence(task: Task, result: Result, tokenizer: Tokenizer | None, n: int = 6) -> tuple[Example, ...]:
    """``n`` examples of the task that ``result`` was measured on, from the best kept to the worst.

    They are spread evenly over all examples as the circuit's distance from the model orders them, so that
    nobody has to wonder how they were picked.
    """
    pairs = encode(task, tokenizer)
    off = (result.circuit_values - result.clean_values).abs()
    chosen = off.argsort(stable=True)[_spread(len(task), n)].tolist()
    known = task.metric in METRICS.values()
    examples = []
    for i in chosen:
        end = int(pairs.last[i]) + 1
        examples.append(
            Example(
                clean_tokens=_tokens(pairs.clean[i, :end], tokenizer),
                corrupted_tokens=_tokens(pairs.corrupted[i, :end], tokenizer),
                answer=_answer(pairs.labels[i], tokenizer) if known else "",
                clean=float(result.clean_values[i]),
                corrupted=float(result.corrupted_values[i]),
                circuit=float(result.circuit_values[i]),
            )
        )
    return tuple(examples)


def _spread(total: int, n: int) -> list[int]:
    """At most n positions from the first to the last, evenly."""
    if total <= n or n < 2:
        return list(range(min(total, n)))
    return [round(i * (total - 1) / (n - 1)) for i in range(n)]


def _tokens(ids: Tensor, tokenizer: Tokenizer | None) -> list[str]:
    return [_text([i], tokenizer) for i in ids.tolist()]


def _text(ids: list[int], tokenizer: Tokenizer | None) -> str:
    return " ".join(["", *map(str, ids)]) if tokenizer is None else tokenizer.decode(ids)


def _answer(label: Any, tokenizer: Tokenizer | None) -> str:
    """The right answer, or the first of several with their number."""
    right = [i for i in label[0].reshape(-1).tolist() if i >= 0]
    if not right:
        return ""
    more = f" (or {len(right) - 1} more)" if len(right) > 1 else ""
    return _text(right[:1], tokenizer) + more
