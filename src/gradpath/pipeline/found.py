"""Everything that one ``find`` computed: how it is printed, saved and reported, and its entry in the cache.

A run without ``--out`` is stored in the user's cache, so that ``--out`` can still write it. An entry is a folder with
the files that ``--out`` writes and ``kept.json``: the key, the summary that was printed and a digest of every file.
The key has everything that determines the result: the weights, the tokens, labels and metric of all examples, the
options, and the code. Methods, selections and metrics of the user's own have no such record, so runs with them are not
stored. The latest ``MOST`` entries stay.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

import gradpath
from gradpath import defaults
from gradpath.attribution.methods import find_method
from gradpath.circuit import Circuit
from gradpath.errors import GradpathError, InputError, UsageError, reason, warn
from gradpath.evaluation.result import Result
from gradpath.explanation import Inside, look_inside
from gradpath.limits import Limits
from gradpath.model.cache import cache_folder
from gradpath.model.transformer import Transformer
from gradpath.pipeline.request import FindRequest
from gradpath.registry import loaded_plugins, owner_of
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
from gradpath.report.plots import POSITION_FILES, write_spans
from gradpath.runtime import distributed
from gradpath.runtime.files import digest_of, write_atomically, write_together
from gradpath.scores import Scores
from gradpath.selection import NestedOrder, find_selection, variants, with_values
from gradpath.tasks.task import Task, task_digest
from gradpath.verdict import Verdict
from gradpath.verdict.checks import Check, quick_checks

MOST = 20  # entries in the cache
_RECORD = "kept.json"


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
        order: The order of edges, if the selection is nested: ``found.order.circuit(n)`` is the circuit of its
            first n edges.
        top: The results of circuits of ``top``, for comparison.
        limits: The batch size and memory, also for the report.
        few: The result of the circuit on the few examples that random circuits are measured on, if there are any.
        random: The results of random circuits on these examples: 19 of the circuit's size, and 3 of each of three
            other sizes.
        others: The circuits of other thresholds, for a selection that decides the size itself.
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
    few: Result | None = None
    random: list[Result] = field(default_factory=list)
    others: list[Circuit] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<Found: {self.circuit!r}, {self.result!r}>"

    def __str__(self) -> str:
        measured = "the same" if self.measured is self.attributed else f"{len(self.measured):,} held-out ones"
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
        """The number of edges at each span of a prompt, if the circuit has spans."""
        if self.circuit.span is None:
            return {}
        counts = self.circuit.span.bincount(minlength=len(self.circuit.spans)).tolist()
        return dict(zip(self.circuit.spans, counts, strict=True))

    @property
    def checks(self) -> dict[str, Check]:
        """The two quick tests of the report: whether the circuit is better than chance, and equivalent to the model."""
        same_size = [result for result in self.random if result.edges_asked == self.result.edges_asked]
        return {} if self.few is None else quick_checks(self.result, self.few, same_size)

    def report(
        self, file: str | Path, *, verdict: Verdict | None = None, command: str = "", seconds: float | None = None
    ) -> None:
        """Write the interactive report.

        Args:
            file: The HTML file to write.
            verdict: The verdict of ``gp.test``, to show instead of the two quick tests.
            command: The command that makes the report again, to show in it.
            seconds: How long it took, to show in it.
        """
        origin, how = self.scores.provenance, self.circuit.provenance.how
        model, task = origin.model or "", origin.task or ""
        how = with_values(how, ()) if self.others else how  # the name of the whole curve
        points = [CurvePoint.of(how, result) for result in [*self.curve, self.result]]
        points += [CurvePoint.of(defaults.RANKING, result) for result in self.top]
        points += [CurvePoint.of(CHANCE, result) for result in self.random]
        run, chosen = self._shown(how)
        facts: dict[str, Any] = {} if seconds is None else {"seconds": seconds}
        facts |= {
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
            examples=evidence(self.measured, self.result, self.model.tokenizer),
            inside=self._inside(),
            checks=self.checks if verdict is None else verdict.checks,
            effects=None if verdict is None else verdict.effects,
            command=command,
            about=facts,
        )
        write(report, Path(file))

    def _shown(self, how: str) -> tuple[MethodRun, Chosen]:
        """What the page needs: the scores to select from, the order of edges, or only the circuit itself."""
        requested = self.circuit.asked
        if self.circuit.spans or (how not in IN_PAGE and self.order is None):
            circuit = selected_by(self.circuit.anywhere(), how)  # edges at spans are drawn once
            return MethodRun(self.scores, circuit=circuit), Chosen(len(circuit), SAVED)
        sizes = [result.edges_asked for result in [*self.curve, self.result]]
        opens = requested if requested <= READABLE else max((n for n in sizes if n <= READABLE), default=requested)
        if how in IN_PAGE:
            return MethodRun(self.scores), Chosen(requested, how, opens=opens)
        assert self.order is not None
        whole = self.order.circuit(max(sizes), prune=False)
        run = MethodRun(self.scores, circuit=whole, smallest=self.order.smallest)
        return run, Chosen(requested, SAVED, opens=opens)

    def _inside(self) -> Inside | str:
        """What the circuit does on the examples that the report shows, or why that cannot be computed."""
        shown = self.measured.take(spread_examples(self.result, SHOWN))
        try:
            return look_inside(self.model, self.circuit, shown, limits=self.limits, mean_over=self.attributed)
        except (InputError, UsageError) as problem:
            return str(problem)  # a metric without a gradient, or a model on several devices: the report has all else

    def save(self, folder: str | Path, *, command: str = "", seconds: float | None = None) -> None:
        """Write the scores, the circuit and the report (with positions, a figure instead): all files, or none.

        Args:
            folder: The folder to write to.
            command: The command that makes the report again, to show in it.
            seconds: How long it took, to show in it.
        """
        with write_together(Path(folder), instead_of=earlier_files(Path(folder))) as draft:
            self.scores.save(draft / "scores.safetensors")
            self.circuit.save(draft / "circuit.json")
            for circuit in self.others:
                circuit.save(draft / other_file(circuit))
            if self.circuit.spans:
                write_spans(self.circuit, draft)
            else:
                self.report(draft / "report.html", command=command, seconds=seconds)


def other_file(circuit: Circuit) -> str:
    """The file of a circuit of another threshold: ``circuit-threshold=0.03.json``."""
    how = circuit.provenance.how
    [value] = variants(how)
    return f"circuit-{find_selection(how)[0].varies}={value:g}.json"


def earlier_files(folder: Path) -> tuple[str, ...]:
    """Files of an earlier run that would not belong to new scores."""
    return "report.html", *POSITION_FILES, *(file.name for file in folder.glob("circuit-*=*.json"))


@dataclass(frozen=True)
class Entry:
    """The place in the cache for one run of ``find``."""

    key: dict[str, Any]

    @classmethod
    def of(cls, model: Transformer, request: FindRequest, tasks: Sequence[Task]) -> Entry | None:
        """The entry of a run, or None if it uses code of the user's own."""
        method, selection = find_method(request.method), find_selection(request.selection)[0]
        functions = [method.function, selection.function, tasks[0].metric]
        if not all(owner_of(function).startswith("gradpath.") for function in functions):
            return None
        options = {field.name: repr(getattr(request, field.name)) for field in fields(request) if field.name != "data"}
        return cls(
            {
                "code": _code_digest(),
                "torch": torch.__version__,
                "plugins": loaded_plugins(),
                "processes": distributed.world(),
                "model": model.name,
                "weights": model.digest,
                "computed": f"{model.dtype} on {model.device}",
                "tokens": [task_digest(task, model.tokenizer) for task in tasks],
                "data": [digest_of(dict(task.about)) for task in tasks],
                "options": options,
            }
        )

    @property
    def folder(self) -> Path:
        return cache_folder() / "find" / digest_of(self.key)

    def keep(self, found: Found, summary: dict[str, Any], command: str) -> bool:
        """Store a run; False if that is not possible."""
        try:
            found.save(self.folder, command=command, seconds=summary["seconds"])
            content = {"key": self.key, "summary": summary, "files": _digests(self.folder)}
            write_atomically(self.folder / _RECORD, json.dumps({**content, "digest": digest_of(content)}, indent=1))
            entries = sorted(self.folder.parent.iterdir(), key=lambda entry: entry.stat().st_mtime, reverse=True)
            for entry in entries[MOST:]:
                shutil.rmtree(entry, ignore_errors=True)
        except (GradpathError, OSError) as problem:
            warn(f"the result could not be cached ({reason(problem)}): run the command again with --out.")
            return False
        return True

    def write_to(self, out: Path) -> dict[str, Any] | None:
        """Write the files of a stored run to a folder and return its summary; None if it is missing or damaged."""
        try:
            content = json.loads((self.folder / _RECORD).read_text(encoding="utf-8"))
            summary: dict[str, Any] = content["summary"]
            digest, files = content.pop("digest"), content["files"]
            if digest != digest_of(content) or content["key"] != self.key or files != _digests(self.folder):
                raise ValueError("its files are not as they were written")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
            warn(f"{self.folder} is damaged ({reason(problem)}), so the circuit is computed again.")
            return None
        try:
            with write_together(out, instead_of=earlier_files(out)) as draft:
                for name in files:
                    shutil.copyfile(self.folder / name, draft / name)
        except OSError as problem:
            raise InputError(f"{out} could not be written: {problem.strerror or problem}.") from None
        return summary


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(file for file in folder.iterdir() if file.name != _RECORD and file.is_file())
    return {file.name: sha256(file.read_bytes()).hexdigest() for file in files}


def _code_digest() -> str:
    """A digest of this package's code, so that no run of another version is reused."""
    source = Path(gradpath.__file__).parent
    files = sorted(file for file in source.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    return digest_of([str(file.relative_to(source)) for file in files], *(file.read_bytes() for file in files))
