"""Everything that one ``find`` computed: how it is printed, saved and reported."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import torch

from gradpath import defaults
from gradpath.circuit import Circuit
from gradpath.errors import InputError, UsageError, reason, warn
from gradpath.evaluation.result import Result, interval_text
from gradpath.explanation import Inside, look_inside
from gradpath.model.transformer import Transformer
from gradpath.pipeline.examples import notices
from gradpath.prepared import PreparedBatches
from gradpath.recipe import Recipe
from gradpath.report.data import (
    CHANCE,
    IN_PAGE,
    READABLE,
    SAVED,
    SHOWN,
    Chosen,
    CurvePoint,
    MethodRun,
    Report,
    evidence,
    selected_by,
    spread_examples,
)
from gradpath.report.page import write
from gradpath.report.payload import sentences
from gradpath.runtime.files import write_together
from gradpath.scores import Scores
from gradpath.selection import Order
from gradpath.tasks.load import WARNING
from gradpath.tasks.task import Task
from gradpath.verdict import Verdict


@dataclass(frozen=True, eq=False, repr=False)
class Found:
    """Everything that one ``find`` computed.

    ``held_out`` are the examples that it was measured on, as they were prepared for the model.
    ``order[:n]`` is the circuit of the first n edges; there is no order if nodes were selected. ``curve`` has the
    results of circuits of other sizes, ``top`` those of the ranking ``top``, and ``random`` those of random circuits:
    19 of the circuit's size, and 3 of each of three other sizes. These run on a few examples; ``few`` is the result of
    the circuit on them.
    """

    attributed: Task
    held_out: PreparedBatches
    scores: Scores
    circuit: Circuit
    result: Result
    curve: list[Result]
    order: Order | None = None
    top: list[Result] = field(default_factory=list)
    few: Result | None = None
    random: list[Result] = field(default_factory=list)

    @property
    def model(self) -> Transformer:
        """The model."""
        return self.held_out.model

    @property
    def measured(self) -> Task:
        """The examples that the circuit was measured on."""
        return self.held_out.task

    def __repr__(self) -> str:
        return f"<Found: {self.circuit!r}, {self.result!r}>"

    def __str__(self) -> str:
        measured = "the same for evaluation" if self.measured is self.attributed else f"{len(self.measured):,} held out"
        return "\n".join(
            [
                f"Found: {self.circuit.recipe}",
                *(f"  {line}" for line in str(self.result).splitlines()[:-1]),
                *([f"  small         {self.small_text}"] if self.small else []),
                f"  examples      {len(self.attributed):,} for attribution, {measured}",
                '  next          .report("report.html"), .save("folder"), .scores, .circuit, .result, .curve',
            ]
        )

    def _repr_html_(self) -> str:
        return self.circuit._repr_html_() + self.result._repr_html_()

    @property
    def summary(self) -> str:
        """How much the circuit keeps, how steady its edges are and whether chance does as well, in one sentence."""
        result = self.result
        if result.does_task == "no":
            return result.behaviour
        low, high = result.interval or (None, None)
        interval = "" if low is None or high is None else f" [{100 * low:.0f}, {100 * high:.0f}]"
        parts = [f"keeps {result.faithfulness:.0%}{interval} of the behaviour", self.circuit.steadiness]
        random = [x for x in self.random if x.edges_requested == result.edges_requested]
        if self.few is not None and random:
            better = sum(x.error > self.few.error for x in random)
            which = f"all {better}" if better == len(random) else f"{better} of {len(random)}"
            parts.append(f"better than {which} random circuits of its size")
        return "; ".join(filter(None, parts))

    @property
    def small(self) -> Result | None:
        """The result of the best circuit that can be read, where the smallest one that keeps the share cannot.

        It is the one with faithfulness nearest to 1 of the measured circuits of at most ``READABLE`` edges.
        """
        if self.circuit.recipe is None or self.circuit.recipe.faithfulness is None or len(self.circuit) <= READABLE:
            return None
        readable = [result for result in self.curve if 0 < result.edges_kept <= READABLE]
        return min(readable, key=lambda result: abs(1 - result.faithfulness), default=None)

    @property
    def small_text(self) -> str:
        """What ``small`` is, in a sentence; empty if there is none."""
        if self.small is None:
            return ""
        assert self.circuit.recipe is not None
        share, n = self.circuit.recipe.faithfulness, self.small.edges_requested
        return (
            f"no circuit of up to {READABLE} edges with faithfulness {share:.0%} was found on the attributed examples; "
            f"the best one measured, of {n:,} edges, has {self.small.faithfulness:.1%} "
            f"({interval_text(self.small.interval, len(self.measured), '.1%')})"
        )

    def report(
        self, file: str | Path, *, verdict: Verdict | None = None, command: str = "", seconds: float | None = None
    ) -> None:
        """Write the interactive report.

        Args:
            file: The HTML file to write.
            verdict: The verdict of ``gp.test``, to show instead of the summary.
            command: The command that makes the report again, to show in it.
            seconds: How long it took, to show in it.
        """
        recipe, how = self.circuit.recipe or Recipe(), self.circuit.selection
        model, task = recipe.model or "", recipe.task or ""
        points = [CurvePoint.of(how, result) for result in [*self.curve, self.result]]
        points += [CurvePoint.of(defaults.RANKING, result) for result in self.top]
        points += [CurvePoint.of(CHANCE, result) for result in self.random]
        run, chosen = self._shown(how)
        facts: dict[str, Any] = {} if seconds is None else {"seconds": seconds}
        facts |= {
            "pairs": self._pairs(),
            "examples measured": len(self.measured),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": importlib.metadata.version("transformers"),
        }
        report = Report(
            title=f"{task} in {model}",
            model=model,
            task=task,
            runs=[replace(run, curve=points)],
            chosen=chosen,
            examples=evidence(self.held_out, self.result),
            inside=self._inside(),
            checks={} if verdict is None else verdict.checks,
            summary=self.summary,
            undone=self.result.does_task == "no",
            effects=None if verdict is None else verdict.effects,
            command=command,
            about=facts,
            small=None if self.small is None else self.small.edges_requested,
            small_text=self.small_text,
        )
        write(report, Path(file))

    def _pairs(self) -> str:
        """Which pairs were used and how many were dropped, as ``find`` prints it, without the list of rows."""
        lines = notices(self.attributed, self.measured)
        return sentences(line.removeprefix(WARNING).rstrip(":") for line in lines if not line.startswith("  "))

    def _shown(self, how: str) -> tuple[MethodRun, Chosen]:
        """What the page needs: the scores to select from, the order of edges, or only the circuit itself."""
        requested = self.circuit.requested
        if how not in IN_PAGE and self.order is None:
            circuit = selected_by(self.circuit, how)
            return MethodRun(self.scores, circuit=circuit), Chosen(len(circuit), SAVED)
        if how in IN_PAGE:
            return MethodRun(self.scores), Chosen(requested, how)
        assert self.order is not None
        largest = max(result.edges_requested for result in [*self.curve, self.result])
        whole = self.order.circuit(largest, prune=False)
        run = MethodRun(self.scores, circuit=whole, samples=self.order.samples, smallest=self.order.smallest)
        return run, Chosen(requested, SAVED)

    def _inside(self) -> Inside | str:
        """What the circuit does on the examples that the report shows, or why that cannot be computed."""
        try:
            return look_inside(self.held_out.take(spread_examples(self.result, SHOWN)), self.circuit)
        except (InputError, UsageError) as problem:
            return str(problem)  # a metric without a gradient: the report has all else

    def save(self, folder: str | Path, *, command: str = "", seconds: float | None = None) -> None:
        """Write the scores and the circuit to a folder, and then the report; ``command`` and ``seconds`` are for it.

        A report that cannot be made costs neither scores nor circuit: a warning says that it is missing, and why.
        """
        folder = Path(folder)
        with write_together(folder, instead_of=("report.html",)) as draft:
            self.scores.save(draft / "scores.safetensors")
            self.circuit.save(draft / "circuit.json")
        try:
            self.report(folder / "report.html", command=command, seconds=seconds)
        except Exception as problem:
            warn(
                f"the scores and the circuit are in {folder}, but their report could not be made "
                f"({reason(problem)}). Draw the circuit with gradpath show {folder / 'circuit.json'}."
            )


def default_folder(model: Transformer, task: Task) -> Path:
    """A new folder in the working directory, named after the model and the task."""
    name = "-".join(re.sub(r"[^\w.-]+", "-", Path(text).name).strip("-.") for text in (model.name, task.name))
    for i in count(1):
        folder = Path(name if i == 1 else f"{name}-{i}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        except OSError as problem:
            raise InputError(
                f"{folder.absolute()} could not be created ({reason(problem)}). Give a folder with --out."
            ) from None
        return folder
    raise AssertionError
