"""Jobs and how they are run: one bar for all of them, every finished cell kept at once.

A job knows what is left of it (nothing, if its cells are in the store) and how to do it. What is left is
counted in passes over one example, which is what the bar shows and foresees the time from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from gradpath.circuit import Circuit
from gradpath.evaluation.evaluate import Result, evaluate
from gradpath.grid.bench import Bench
from gradpath.grid.request import MethodSpec
from gradpath.grid.store import Key, digest
from gradpath.runtime import distributed

CIRCUIT_COST = 0.4  # of running a circuit, in passes: most nodes are outside of it
# Circuits that share a set-up: it is next to nothing beside so many, and a run that is killed loses no more.
TOGETHER = 64
Advance = Callable[[float], None]
Coming = set[str]  # digests of the keys that are not there yet and will be
Wanted = tuple[MethodSpec, str, int]  # a circuit: by whose scores, selected how, of how many edges


class Watch(Protocol):
    """Who is told how the work goes."""

    def begin(self, total: float) -> None: ...
    def start(self, title: str) -> None: ...
    def advance(self, done: float) -> None: ...


class Job(Protocol):
    """Something to compute and to keep."""

    @property
    def title(self) -> str: ...
    def left(self, bench: Bench, coming: Coming) -> float:
        """What it would still cost, in passes over one example; 0 if it is finished.

        What jobs before it are going to keep is in ``coming`` and costs nothing; the job adds its own.
        """

    def run(self, bench: Bench, advance: Advance) -> None:
        """Do what is left and keep it; ``advance`` is told as it goes, ``left`` in sum."""


class Silent:
    """A watch for those who do not look."""

    def begin(self, total: float) -> None: ...
    def start(self, title: str) -> None: ...
    def advance(self, done: float) -> None: ...


def run_jobs(bench: Bench, jobs: Sequence[Job], watch: Watch | None = None) -> None:
    """Do all that is not finished yet, in order."""
    watch = watch or Silent()
    coming: Coming = set()
    costs = [job.left(bench, coming) for job in jobs]
    if not any(costs):
        return
    watch.begin(sum(costs))
    for job, cost in zip(jobs, costs, strict=True):
        if not cost:
            continue
        watch.start(job.title)
        told = 0.0

        def advance(done: float, most: float = cost) -> None:
            nonlocal told
            done = min(done, most - told)  # no job may show more than was foreseen of it
            told += done
            watch.advance(done)

        job.run(bench, advance)
        watch.advance(cost - told)


def _new(key: Key, coming: Coming) -> bool:
    """Whether no job before is going to keep this; it is noted that one is."""
    name = digest(key)
    if name in coming:
        return False
    coming.add(name)
    return True


@dataclass(frozen=True)
class ScoreJob:
    """A method's scores on a task, for experiments that need no more."""

    task: str
    method: MethodSpec

    @property
    def title(self) -> str:
        return f"{self.task}: scoring with {self.method.label}"

    def left(self, bench: Bench, coming: Coming) -> float:
        key = bench.scores_key(self.task, self.method)
        if bench.store.has_scores(key) or not _new(key, coming):
            return 0.0
        return len(bench.task(self.task, "train")) * self.method.cost

    def run(self, bench: Bench, advance: Advance) -> None:
        bench.scores(self.task, self.method, lambda done: advance(done * self.method.cost))


@dataclass(frozen=True)
class CircuitJob:
    """Circuits of several sizes and selections from the scores of one method, or of several related ones.

    One set-up serves as many of them as are measured together, and these are kept as soon as they are done.
    Products of several circuits at once round by how many there are and where each stands. So a group that a
    kill left half kept is measured again in the same places, with nothing in those of the kept ones.
    """

    task: str
    methods: tuple[MethodSpec, ...]
    hows: tuple[str, ...]
    counts: tuple[int, ...]

    @property
    def title(self) -> str:
        first, last = self.methods[0].label, self.methods[-1].label
        return f"{self.task}: {first}" + (f" to {last}" if len(self.methods) > 1 else "")

    def groups(self) -> list[list[Wanted]]:
        """The circuits, those that are measured together next to each other."""
        counts = dict.fromkeys(self.counts)
        wanted = [(method, how, n) for method in self.methods for how in self.hows for n in counts]
        return [wanted[at : at + TOGETHER] for at in range(0, len(wanted), TOGETHER)]

    def missing(self, bench: Bench, group: Sequence[Wanted]) -> list[Wanted]:
        return [one for one in group if bench.store.cell(circuit_key(bench, self.task, *one)) is None]

    def left(self, bench: Bench, coming: Coming) -> float:
        cost = 0.0
        for group in self.groups():
            missing = self.missing(bench, group)
            new = [one for one in missing if _new(circuit_key(bench, self.task, *one), coming)]
            cost += sum(ScoreJob(self.task, method).left(bench, coming) for method in _methods_of(new))
            cost += len(bench.task(self.task, "test")) * _cost(new)
        return cost

    def run(self, bench: Bench, advance: Advance) -> None:
        for group in self.groups():
            missing = self.missing(bench, group)
            if missing:
                self._measure(bench, group, missing, advance)

    def _measure(self, bench: Bench, group: Sequence[Wanted], missing: Sequence[Wanted], advance: Advance) -> None:
        found = {
            one: circuit
            for method in _methods_of(missing)
            for one, circuit in self._selected(bench, method, missing, advance)
        }
        graph, cost = bench.model.graph, _cost(missing)
        nothing = Circuit(graph, torch.empty(0, 2, dtype=torch.long, device="cpu"), torch.empty(0, device="cpu"))
        results = evaluate(
            bench.model,
            [found.get(one, nothing) for one in group],
            bench.task(self.task, "test"),
            batch_size=bench.request.batch_size,
            memory=bench.request.memory,
            progress=lambda done: advance(done * cost),
            ablation=bench.request.ablation,
            mean_over=bench.task(self.task, "train"),
        )
        for one, result in zip(group, results, strict=True):
            if one in found:
                bench.store.keep_cell(circuit_key(bench, self.task, *one), measured(result))

    def _selected(
        self, bench: Bench, method: MethodSpec, group: Sequence[Wanted], advance: Advance
    ) -> Iterator[tuple[Wanted, Circuit]]:
        """The group's circuits of one method; its scores are needed no longer than this takes."""
        scores = bench.scores(self.task, method, lambda done: advance(done * method.cost))
        for how in self.hows:
            own = [one for one in group if one[:2] == (method, how)]
            if own:
                counts = [n for _, _, n in own]
                yield from zip(own, bench.circuits(scores, self.task, how, counts), strict=True)


def _methods_of(wanted: Sequence[Wanted]) -> list[MethodSpec]:
    return list(dict.fromkeys(method for method, _, _ in wanted))


def _cost(group: Sequence[Wanted]) -> float:
    """Passes over one example: the set-up and the circuits."""
    return 2 + CIRCUIT_COST * len(group) if group else 0.0


def circuit_key(bench: Bench, task: str, method: MethodSpec, how: str, n: int) -> Key:
    """All that the measure of a circuit depends on: how it was found, and on what it was measured."""
    return {
        "kind": "circuit",
        "found_on": bench.scores_key(task, method),
        "measured_on": bench.task_key(task, "test"),
        "how": how,
        "edges": n,
    }


def measured(result: Result) -> dict[str, Any]:
    """What a circuit's cell holds: the figures, and the metric of every example for later comparisons."""
    return {
        "edges_asked": result.edges_asked,
        "edges_kept": result.edges_kept,
        "clean": result.clean,
        "corrupted": result.corrupted,
        "circuit": result.circuit,
        "faithfulness": result.faithfulness,
        "faithfulness_interval": list(result.interval),
        "error": result.error,
        "error_interval": list(result.error_interval),
        "values": _listed(result.circuit_values),
        "clean_values": _listed(result.clean_values),
        "corrupted_values": _listed(result.corrupted_values),
    }


def _listed(values: Any) -> list[float]:
    """float32 as the shortest text that gives it back."""
    return [float(f"{value:.9g}") for value in values.tolist()]


def circuit_cell(bench: Bench, task: str, method: MethodSpec, how: str, n: int) -> dict[str, Any]:
    return finished(bench, circuit_key(bench, task, method, how, n))


def finished(bench: Bench, key: Key) -> dict[str, Any]:
    """A cell that has to be there, because its job has run."""
    value = bench.store.cell(key)
    assert value is not None, f"no cell for {key}"
    return value


@dataclass(frozen=True)
class CellJob:
    """Any other measurement that is one cell."""

    title: str
    key: Key
    cost: float
    compute: Callable[[Advance], Mapping[str, Any]]

    def left(self, bench: Bench, coming: Coming) -> float:
        there = bench.store.cell(self.key) is not None
        return 0.0 if there or not _new(self.key, coming) else self.cost

    def run(self, bench: Bench, advance: Advance) -> None:
        begin = time.process_time()
        value = dict(self.compute(advance))
        seconds = distributed.total_over_ranks(time.process_time() - begin)
        bench.store.keep_cell(self.key, {**value, "cpu_seconds": round(seconds, 3)})
