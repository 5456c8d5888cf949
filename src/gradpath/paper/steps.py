"""Scores for many numbers of steps from one walk.

GradPath's steps do not depend on how many follow: with unit steps the points of k = 3 are the first three
of k = 20. So one walk of 20 steps gives the scores of every k below, ::

    score_k = (x_u - x'_u) . 1/k  sum over j = 1..k of  dL/d in_v (gamma_j)

as running sums, for 22 forward and 40 backward passes instead of 243 and 414 for k = 3..20. The numbers are
those of ``attribute`` up to the rounding of a sum.

The heat map of faithfulness over the number of steps and sparsity, for EAP-GP.

The paper's claim: a few steps are enough, and more can hurt.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradpath.attribution.attribute import attribute_at_steps
from gradpath.attribution.methods import find_method, find_path
from gradpath.grid.bench import Bench
from gradpath.grid.faithfulness import READING, circuit_row
from gradpath.grid.jobs import Advance, CircuitJob, Coming, Job
from gradpath.grid.output import Outcome, markdown, percent
from gradpath.grid.request import MethodSpec, default_tasks
from gradpath.grid.runner import Experiment
from gradpath.grid.store import digest
from gradpath.model.transformer import Transformer
from gradpath.report.style import INK, method_title, panels, task_title
from gradpath.runtime import distributed
from gradpath.scores import Scores
from gradpath.sweep import Limits, Progress
from gradpath.tasks import Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def is_nested(method: MethodSpec) -> bool:
    """Whether the points of fewer steps are the first points of more."""
    options = method.options
    return method.name == "eap-gp" and options["stride"] == "unit" and not options["pin_end"]


def keep_nested(
    bench: Bench, task: str, method: MethodSpec, steps: Sequence[int], wanted: Sequence[int], progress: Progress
) -> None:
    """Compute the scores of a nested method for several numbers of steps, and keep those ``wanted``.

    The sums are broken at every number in ``steps``, wanted or not: so a run that was killed between two
    of them and goes on rounds as one that was not.
    """
    steps = [k for k in steps if k <= max(wanted)]
    begin = time.process_time()
    pairs, asked = bench.task(task, "train"), bench.request
    found = attribute_nested(bench.model, pairs, method, steps, limits=asked.limits, progress=progress)
    seconds = distributed.total_over_ranks(time.process_time() - begin)
    for k in wanted:
        # Alone, a walk of k steps would have taken this part of the time.
        own = seconds * k / max(steps)
        bench.store.keep_scores(bench.scores_key(task, method.with_steps(k)), found[k], own)


def attribute_nested(
    model: Transformer,
    task: Task,
    method: MethodSpec,
    steps: Sequence[int],
    *,
    limits: Limits = Limits(),
    progress: Progress | None = None,
) -> dict[int, Scores]:
    """The scores for each number of steps, from one run of the path per batch."""
    assert is_nested(method)
    *stops, longest = sorted(set(steps))
    options = method.with_steps(longest).options
    scores = attribute_at_steps(
        model, task, find_path(method.name), options, stops=stops, limits=limits, progress=progress
    )
    return dict(zip([*stops, longest], scores, strict=True))


Row = dict[str, Any]


def methods(bench: Bench) -> list[MethodSpec]:
    """EAP-GP and its variants; if none was asked for, whatever has steps."""
    asked = bench.request.methods
    own = [method for method in asked if method.name == "eap-gp"]
    return own or [method for method in asked if "steps" in find_method(method.name).defaults]


def refusal(bench: Bench) -> str | None:
    if methods(bench):
        return None
    labels = ", ".join(method.label for method in bench.request.methods)
    return f"the heat map over steps needs a method with steps: got {labels}. Give --methods eap-gp."


def jobs(bench: Bench) -> list[Job]:
    planned: list[Job] = []
    for task in default_tasks(bench.request):
        counts = tuple(bench.edges(s) for s in bench.sparsities(task))
        for method in methods(bench):
            if is_nested(method):
                planned.append(NestedJob(task, method, bench.request.steps))
            every = tuple(method.with_steps(k) for k in bench.request.steps)
            planned.append(CircuitJob(task, every, bench.request.hows[:1], counts))
    return planned


@dataclass(frozen=True)
class NestedJob:
    """The scores for all numbers of steps that are not there yet, from one walk."""

    task: str
    method: MethodSpec
    steps: tuple[int, ...]

    @property
    def title(self) -> str:
        return f"{self.task}: scoring with {self.method.label}, {min(self.steps)} to {max(self.steps)} steps"

    def missing(self, bench: Bench) -> list[int]:
        keys = {k: bench.scores_key(self.task, self.method.with_steps(k)) for k in self.steps}
        return [k for k, key in keys.items() if not bench.store.has_scores(key)]

    def left(self, bench: Bench, coming: Coming) -> float:
        keys = {k: bench.scores_key(self.task, self.method.with_steps(k)) for k in self.missing(bench)}
        missing = [k for k, key in keys.items() if digest(key) not in coming]
        coming |= {digest(key) for key in keys.values()}
        if not missing:
            return 0.0
        return len(bench.task(self.task, "train")) * self.method.with_steps(max(missing)).cost

    def run(self, bench: Bench, advance: Advance) -> None:
        missing = self.missing(bench)
        cost = self.method.with_steps(max(missing)).cost
        keep_nested(bench, self.task, self.method, self.steps, missing, lambda done: advance(done * cost))


def outcome(bench: Bench) -> Outcome:
    how = bench.request.hows[0]
    rows = [
        circuit_row(bench, task, method.with_steps(k), how, sparsity)
        for task in default_tasks(bench.request)
        for method in methods(bench)
        for k in bench.request.steps
        for sparsity in bench.sparsities(task)
    ]
    for row in rows:
        row["method"] = "+".join(part for part in row["method"].split("+") if not part.startswith("steps="))
    return Outcome(
        name="steps",
        title=f"Faithfulness over steps and sparsity in {bench.title}",
        rows=rows,
        text="\n\n".join(_table(group) for group in _groups(rows)),
        figures={"steps": lambda: _draw(rows, bench.title)},
        notes=(f"Edges selected by {how}. {READING}",),
    )


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each task and method."""
    names = dict.fromkeys((row["task"], row["method"]) for row in rows)
    return [[row for row in rows if (row["task"], row["method"]) == name] for name in names]


def _table(rows: Sequence[Row]) -> str:
    sparsities = list(dict.fromkeys(row["sparsity"] for row in rows))
    value = {(row["steps"], row["sparsity"]): row["faithfulness"] for row in rows}
    lines = [
        [str(k), *(percent(value[k, sparsity]) for sparsity in sparsities)]
        for k in dict.fromkeys(row["steps"] for row in rows)
    ]
    first = rows[0]
    head = f"## {task_title(first['task'])}, {method_title(first['method'])}\n\nNFS in percent on "
    head += f"{first['examples']} held-out examples, for k steps and each sparsity.\n\n"
    return head + markdown(["k", *(f"{100 * s:.4g}%" for s in sparsities)], lines)


def _draw(rows: Sequence[Row], model: str) -> Figure:
    groups = _groups(rows)
    columns = min(3, len(groups))
    lines = math.ceil(len(groups) / columns)
    n_steps = len({row["steps"] for row in rows})
    figure, axes = panels(lines, columns, (5.2 * columns + 0.8, (0.19 * n_steps + 1.2) * lines + 0.6))
    image = None
    for group, ax in zip(groups, axes, strict=False):
        image = _panel(ax, group)
    for ax in axes[len(groups) :]:
        ax.set_visible(False)
    assert image is not None
    bar = figure.colorbar(image, ax=axes, shrink=0.8, extend="both")
    bar.set_label("NFS (% of clean - corrupted)")
    figure.suptitle(f"Faithfulness over the number of steps in {model}", fontsize=12, color=INK)
    return figure


def _panel(ax: Axes, rows: Sequence[Row]) -> Any:
    steps = list(dict.fromkeys(row["steps"] for row in rows))
    sparsities = list(dict.fromkeys(row["sparsity"] for row in rows))
    value = {(row["steps"], row["sparsity"]): 100 * row["faithfulness"] for row in rows}
    grid = [[value[k, s] for s in sparsities] for k in steps]
    image = ax.imshow(grid, aspect="auto", cmap="viridis", vmin=0, vmax=100, origin="lower")
    ax.grid(visible=False)
    for i, line in enumerate(grid):
        for j, number in enumerate(line):
            ink = INK if number > 60 else "white"
            ax.text(j, i, percent(number / 100, 0), ha="center", va="center", fontsize=6.5, color=ink)
    ax.set_xticks(range(len(sparsities)), [f"{100 * s:.4g}" for s in sparsities], fontsize=7.5)
    ax.set_yticks(range(len(steps)), [str(k) for k in steps], fontsize=7.5)
    first = rows[0]
    name = f"{task_title(first['task'])}, {method_title(first['method'])}"
    ax.set_title(f"{name}  ({first['examples']} held-out examples)", color=INK, fontsize=9.5)
    ax.set_xlabel("edge sparsity (% of edges left out)")
    ax.set_ylabel("steps k (points of the path)")
    return image


EXPERIMENT = Experiment("steps", jobs, outcome, refusal)
