"""What ``find`` does: attribute, select, measure on held-out examples, keep everything."""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gradpath import positions
from gradpath.attribution import attribute
from gradpath.circuit import Circuit
from gradpath.cli.progress import counting, note, waiting
from gradpath.evaluation import Result, evaluate
from gradpath.measured import MEASURED, select_many
from gradpath.model.transformer import Transformer
from gradpath.positions import SpanScores
from gradpath.report import Chosen, CurvePoint, MethodRun, Report, evidence, write
from gradpath.report.data import IN_PAGE, SAVED
from gradpath.report.spans import write_spans
from gradpath.scores import Scores
from gradpath.selection import edge_count, select_nodes
from gradpath.tasks import Task, load_task

# The shares of all edges at which the report's curve is measured, beside the circuit asked for.
CURVE = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1)


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    task: str | None
    data: Path | None
    method: str
    options: dict[str, Any]
    size: tuple[int | None, float | None, int | None]  # edges, or sparsity, or nodes
    how: str
    positions: str | None
    examples: int
    split: str
    ablation: str
    batch_size: int
    memory: int | None
    seed: int


@dataclass(frozen=True)
class Found:
    """All that one find computed."""

    model: Transformer
    trained_on: Task
    tested_on: Task
    scores: Scores | SpanScores
    circuit: Circuit
    result: Result
    curve: list[Result]

    @property
    def by_span(self) -> dict[str, int]:
        """How many edges the circuit has at each span of a prompt, if it tells them apart."""
        if self.circuit.span is None:
            return {}
        counts = self.circuit.span.bincount(minlength=len(self.circuit.spans)).tolist()
        return dict(zip(self.circuit.spans, counts, strict=True))


def find(model: Transformer, asked: Request, *, with_curve: bool) -> Found:
    """Score on one part of the task, select, and measure on the other part."""
    if asked.positions is not None:
        return _find_positions(model, asked, asked.positions)
    edges, sparsity, n_nodes = asked.size
    n = edge_count(model.graph, edges, sparsity) if n_nodes is None else 0
    limits: Any = {"batch_size": asked.batch_size, "memory": asked.memory}
    train, test = _examples(model, asked)
    with counting(f"scoring {model.graph.n_edges:,} edges with {asked.method}", len(train)) as progress:
        options = {**limits, **asked.options, "ablation": asked.ablation}
        scores = attribute(model, train, asked.method, progress=progress, **options)
    if asked.memory is not None:
        note(f"batches of {scores.about['batch_size']} examples fit into the memory allowed")
    if n_nodes is not None:
        counts = _node_curve(model.graph.n_sources, n_nodes) if with_curve else []
        circuit, *more = (select_nodes(scores, count) for count in (n_nodes, *counts))
    else:
        counts = _curve(model.graph.n_edges, n, asked.how) if with_curve else []
        with waiting(f"selecting edges ({asked.how})"):
            how: Any = {"how": asked.how, "model": model, "task": train}
            circuit, *more = select_many(scores, [n, *counts], **how, **limits)
    what = f"measuring the circuit and {len(more)} others" if more else "measuring the circuit"
    with counting(what, len(test)) as progress:
        # The circuits say how they were found, so they are measured with the same ablation.
        results = evaluate(model, [circuit, *more], test, progress=progress, mean_over=train, **limits)
    return Found(model, train, test, scores, circuit, results[0], results[1:])


def _find_positions(model: Transformer, asked: Request, by: str) -> Found:
    """The same for edges at positions."""
    limits: Any = {"batch_size": asked.batch_size, "memory": asked.memory}
    train, test = _examples(model, asked)
    with counting(
        f"scoring {model.graph.n_edges:,} edges by {by} with {asked.method}", len(train)
    ) as progress:
        options = {**limits, **asked.options, "ablation": asked.ablation}
        scores = positions.attribute(model, train, asked.method, by=by, progress=progress, **options)
    edges, sparsity, _ = asked.size
    circuit = positions.select(scores, edges, sparsity=sparsity, how=asked.how)
    with counting("measuring the circuit", len(test)) as progress:
        result = evaluate(model, circuit, test, progress=progress, mean_over=train, **limits)
    return Found(model, train, test, scores, circuit, result, [])


def _examples(model: Transformer, asked: Request) -> tuple[Task, Task]:
    """The pairs to attribute and those to measure on; what became of others is said."""

    def examples(split: str) -> Task:
        return load_task(asked.task, model, n=asked.examples, seed=asked.seed, split=split, data=asked.data)

    train = examples("train")
    for line in notices(train):
        note(line)
    return train, train if asked.split == "same" else examples("test")


def _curve(n_edges: int, n: int, how: str) -> list[int]:
    """Sizes to measure beside n; ways that measure take longer the further down they go."""
    least = n // 2 if how in MEASURED else 1
    return sorted({max(1, round(share * n_edges)) for share in CURVE if share * n_edges >= least})


def _node_curve(n_sources: int, n: int) -> list[int]:
    """Numbers of nodes to measure beside n: each half as many again as the one before."""
    return [k for k in (round(1.5**i) for i in range(2, 40)) if k < n_sources and k != n][-12:]


def notices(task: Task) -> list[str]:
    """What happened to the task's pairs that the user should know of."""
    dropped = task.about.get("dropped", {})
    told = [
        f"{drop['count']:,} {'pair was' if drop['count'] == 1 else 'pairs were'} dropped because {reason} "
        f"(first: {drop['first']})"
        for reason, drop in dropped.items()
    ]
    return [*map(str, task.about.get("notes", [])), *told]


def keep(found: Found, out: Path, command: str, seconds: float) -> None:
    """Write scores, circuit and report, each whole or not at all."""
    found.scores.save(out / "scores.safetensors")
    found.circuit.save(out / "circuit.json")
    if isinstance(found.scores, SpanScores):
        write_spans(found.circuit, out)
        return
    how = found.circuit.about["selection"]["how"]
    points = [CurvePoint.of(how, result) for result in [*found.curve, found.result]]
    in_page = how in IN_PAGE  # otherwise the page has the circuit as it was found
    about = found.scores.about
    report = Report(
        title=f"{about['task']} in {about['model']}",
        model=about["model"],
        task=about["task"],
        runs=[MethodRun(found.scores, points, found=None if in_page else found.circuit)],
        chosen=Chosen(edges=found.circuit.asked, how=how)
        if in_page
        else Chosen(edges=len(found.circuit), how=SAVED),
        examples=evidence(found.tested_on, found.result, found.model.tokenizer),
        command=command,
        about={
            "seconds": seconds,
            "examples measured": len(found.tested_on),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": importlib.metadata.version("transformers"),
        },
    )
    write(report, out / "report.html")
