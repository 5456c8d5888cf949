"""Jobs: pieces of work that fill the store, run one after the other under one progress bar.

A job knows how to run, and which of its results are missing: none, if all of them are in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from gradpath.circuit import Circuit
from gradpath.evaluation import evaluate_many
from gradpath.evaluation.result import Result
from gradpath.grid.bench import Bench, Key, timed
from gradpath.grid.request import MethodSpec
from gradpath.runtime.progress import describe, progress_bar

# Circuits measured together, after one set-up. With so many the set-up costs little, and a killed run loses few.
TOGETHER = 64
CircuitSpec = tuple[MethodSpec, str, int]  # the method of its scores, its selection, its number of edges


@runtime_checkable
class Job(Protocol):
    """Something to compute and to store."""

    @property
    def title(self) -> str: ...
    def missing(self, bench: Bench) -> Collection[object]:
        """The results that are not stored yet."""

    def run(self, bench: Bench) -> None:
        """Compute and store the missing results."""


def run_jobs(bench: Bench, jobs: Sequence[Job]) -> None:
    """Run all jobs that are not finished, in order."""
    left = [job for job in jobs if job.missing(bench)]
    with progress_bar("jobs" if left else "", len(left), unit="job") as bar:
        for job in left:
            describe(bar, job.title)
            if job.missing(bench):  # an earlier job may have stored the same results
                job.run(bench)
            bar.update()


@dataclass(frozen=True)
class ScoreJob:
    """A method's scores on a task."""

    task: str
    method: MethodSpec

    @property
    def title(self) -> str:
        return f"{self.task}: scoring with {self.method.label}"

    def missing(self, bench: Bench) -> list[Key]:
        key = bench.scores_key(self.task, self.method)
        return [] if bench.store.has_scores(key) else [key]

    def run(self, bench: Bench) -> None:
        bench.scores(self.task, self.method)


@dataclass(frozen=True)
class CircuitJob:
    """Circuits of several sizes and selections from the scores of one method, or of several related ones.

    Circuits are measured in groups, and a group is stored as soon as it is done. The rounding of a circuit's numbers
    depends on the number and order of the circuits in its group. So a group that a killed run stored only in part is
    measured again, with empty circuits in the places of the stored ones.
    """

    task: str
    methods: tuple[MethodSpec, ...]
    hows: tuple[str, ...]
    counts: tuple[int, ...]

    @property
    def title(self) -> str:
        first, last = self.methods[0].label, self.methods[-1].label
        return f"{self.task}: {first}" + (f" to {last}" if len(self.methods) > 1 else "")

    def groups(self, bench: Bench) -> list[tuple[list[CircuitSpec], list[CircuitSpec]]]:
        """The groups of circuits that are measured together, and the missing circuits of each."""
        counts = dict.fromkeys(self.counts)
        specs = [(method, how, n) for method in self.methods for how in self.hows for n in counts]
        groups = [specs[at : at + TOGETHER] for at in range(0, len(specs), TOGETHER)]
        cell = bench.store.cell
        return [(group, [x for x in group if cell(circuit_key(bench, self.task, *x)) is None]) for group in groups]

    def missing(self, bench: Bench) -> list[CircuitSpec]:
        return [spec for _, missing in self.groups(bench) for spec in missing]

    def run(self, bench: Bench) -> None:
        for group, missing in self.groups(bench):
            if missing:
                self._measure(bench, group, missing)

    def _measure(self, bench: Bench, group: Sequence[CircuitSpec], missing: Sequence[CircuitSpec]) -> None:
        circuits: dict[CircuitSpec, Circuit] = {}
        for method in _methods_of(missing):
            scores = bench.scores(self.task, method)
            for how in self.hows:
                specs = [spec for spec in missing if spec[:2] == (method, how)]
                if specs:
                    circuits |= zip(specs, bench.circuits(scores, self.task, how, [n for *_, n in specs]), strict=True)
            del scores  # before those of the next method
        empty = Circuit.from_edges(bench.model.graph, ())
        results = evaluate_many(
            bench.model,
            [circuits.get(spec, empty) for spec in group],
            bench.task(self.task, "test"),
            bench.request.limits,
            ablation=bench.request.ablation,
            mean_over=bench.task(self.task, "train"),
        )
        for spec, result in zip(group, results, strict=True):
            if spec in circuits:
                bench.store.keep_cell(circuit_key(bench, self.task, *spec), measured(result))


def _methods_of(specs: Sequence[CircuitSpec]) -> list[MethodSpec]:
    return list(dict.fromkeys(method for method, _, _ in specs))


def circuit_key(bench: Bench, task: str, method: MethodSpec, how: str, n: int) -> Key:
    """Everything that the measurement of a circuit depends on."""
    return {
        "kind": "circuit",
        "found_on": bench.scores_key(task, method),
        "measured_on": bench.task_key(task, "test"),
        "how": how,
        "edges": n,
    }


def measured(result: Result) -> dict[str, Any]:
    """A circuit's cell: the numbers, and the metric of every example for later comparisons."""

    def decimals(values: torch.Tensor) -> list[float]:
        """float32 as the shortest decimals that give it back."""
        return [float(f"{value:.9g}") for value in values.tolist()]

    names = ("edges_requested", "edges_kept", "clean", "corrupted", "circuit", "faithfulness", "error")
    return {
        **{name: getattr(result, name) for name in names},
        "faithfulness_interval": result.interval,
        "error_interval": result.error_interval,
        "values": decimals(result.circuit_values),
        "clean_values": decimals(result.clean_values),
        "corrupted_values": decimals(result.corrupted_values),
    }


def circuit_cell(bench: Bench, task: str, method: MethodSpec, how: str, n: int) -> dict[str, Any]:
    return finished(bench, circuit_key(bench, task, method, how, n))


def finished(bench: Bench, key: Key) -> dict[str, Any]:
    """A cell that exists, because its job has run."""
    value = bench.store.cell(key)
    assert value is not None, f"no cell for {key}"
    return value


@dataclass(frozen=True)
class CellJob:
    """Any other measurement that is one cell."""

    title: str
    key: Key
    compute: Callable[[], Mapping[str, Any]]

    def missing(self, bench: Bench) -> list[Key]:
        return [self.key] if bench.store.cell(self.key) is None else []

    def run(self, bench: Bench) -> None:
        value, seconds = timed(self.compute)
        bench.store.keep_cell(self.key, {**value, "cpu_seconds": round(seconds, 3)})
