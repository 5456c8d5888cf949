"""The figure that explains the paper: the gradient and the metric along each method's path.

One edge u -> v, the mean over a task's examples. EAP takes the gradient at the clean prompt alone; EAP-IG
takes it at k points of the straight line to the corrupted prompt, EAP-GP at k points of a path of its own.
The path is saturated where the gradient at v is close to zero (here: its norm is below a tenth of its largest
on the straight line). Weaker, and commoner: the gradient is there, but what it says of this edge, its product
with x_u - x'_u, is close to zero in the same sense. Such points are called flat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gradpath.experiments.bench import Bench
from gradpath.experiments.figures import task_title
from gradpath.experiments.follow import QUANTITIES, Track, follow_gradpath, follow_line
from gradpath.experiments.grid import Advance, CellJob, Job, ScoreJob, finished
from gradpath.experiments.methods import Method
from gradpath.experiments.output import Outcome
from gradpath.experiments.registry import Experiment
from gradpath.experiments.request import default_tasks
from gradpath.experiments.saturation_figure import draw_saturation
from gradpath.experiments.store import Key
from gradpath.experiments.table import markdown
from gradpath.memory import Progress
from gradpath.scores import Scores

SATURATED = 0.1  # of the largest gradient on the straight line
STEPS = 5
LINE_POINTS = 8 * STEPS + 1  # so that every point of EAP-IG is among them
CHOOSER = Method("eap-ig")  # whose strongest edge is followed if none was asked for
WORDS = {"saturated": "gradient", "flat": "score"}  # what is close to zero there
Row = dict[str, Any]


def jobs(bench: Bench) -> list[Job]:
    if bench.request.edge is not None:
        bench.model.graph.index(bench.request.edge)  # refuses what is no edge before any work
    planned: list[Job] = []
    for task in default_tasks(bench.request):
        if bench.request.edge is None:
            planned.append(ScoreJob(task, CHOOSER))
        planned.append(_job(bench, task))
    return planned


def _key(bench: Bench, task: str) -> Key:
    edge = bench.request.edge or f"strongest by {CHOOSER.name}, not into logits"
    own = {"kind": "saturation", "edge": edge, "steps": STEPS, "points": LINE_POINTS}
    own["positions"] = "from the first difference"
    return {**bench.task_key(task, "train"), **own}


def _job(bench: Bench, task: str) -> CellJob:
    pairs = bench.task(task, "train")
    costs = {"line": 2.5 * LINE_POINTS, "eap-gp": 5.0 * STEPS}

    def compute(advance: Advance) -> Mapping[str, Any]:
        edge = bench.request.edge or strongest(bench.scores(task, CHOOSER))
        limits: dict[str, Any] = {"batch_size": bench.request.batch_size, "memory": bench.request.memory}

        def telling(track: str) -> Progress:
            return lambda done: advance(done * costs[track])

        line = follow_line(bench.model, pairs, edge, LINE_POINTS, progress=telling("line"), **limits)
        path = follow_gradpath(bench.model, pairs, edge, STEPS, progress=telling("eap-gp"), **limits)
        return {"edge": edge, "examples": len(pairs), "line": _summed(line), "eap-gp": _summed(path)}

    return CellJob(f"{task}: following an edge", _key(bench, task), len(pairs) * sum(costs.values()), compute)


def strongest(scores: Scores) -> str:
    """The edge of largest |score|, those into the logits aside: their gradient hardly depends on the path."""
    size = scores.values.abs().clone()
    size[:, scores.graph.logits] = -1
    best = int(size.masked_fill(~scores.graph.mask, -1).argmax())
    return scores.graph.edge(*divmod(best, scores.graph.n_targets))


def _summed(track: Track) -> dict[str, Any]:
    """Means over examples, and the middle half of the examples."""
    found: dict[str, Any] = {"at": track.at}
    for name in QUANTITIES:
        values = track.values[name].double()
        low, high = values.quantile(torch.tensor([0.25, 0.75], dtype=torch.float64), dim=1).tolist()
        found[name] = {"mean": values.mean(1).tolist(), "low": low, "high": high}
    return found


def outcome(bench: Bench) -> Outcome:
    tasks = default_tasks(bench.request)
    cells = {task: finished(bench, _key(bench, task)) for task in tasks}
    rows = [row for task, cell in cells.items() for row in _rows(task, cell)]
    figures = {
        f"saturation-{task}": (
            lambda task=task, cell=cell: draw_saturation(bench.title, task, cell, _rows(task, cell))
        )
        for task, cell in cells.items()
    }
    note = (
        f"Saturated: the gradient's mean norm is below {SATURATED:.0%} of its largest on the straight line. "
        "Flat: the same of its product with the difference of what the edge's source writes, which is what a "
        "point adds to the edge's score. Position 0 is the clean prompt; 1 is the corrupted prompt for the "
        "straight line and gamma_k for EAP-GP, whose unit steps end where they end."
    )
    return Outcome(
        name="saturation",
        title=f"Gradient and metric along the paths in {bench.title}",
        rows=rows,
        text=_text(cells, rows),
        figures=figures,
        notes=(note,),
    )


def _rows(task: str, cell: Mapping[str, Any]) -> list[Row]:
    """One row per point of the line and of GradPath, with the methods that use it."""
    largest = {name: max(map(abs, cell["line"][name]["mean"])) for name in QUANTITIES}
    rows = []
    for track in ("line", "eap-gp"):
        seen = cell[track]
        for i, at in enumerate(seen["at"]):
            row: Row = {
                "task": task,
                "edge": cell["edge"],
                "path": track,
                "at": at,
                "point_of": _users(track, i),
            }
            for name in QUANTITIES:
                row |= {name: seen[name]["mean"][i]}
                row |= {f"{name}_{end}": seen[name][end][i] for end in ("low", "high")}
            for word, name in WORDS.items():
                row[word] = abs(row[name]) < SATURATED * largest[name]
            rows.append(row)
    return rows


def _users(track: str, i: int) -> str:
    """Which methods take the gradient at the i-th point of a track."""
    if track == "eap-gp":
        return "eap-gp" if i else ""
    users = ["eap"] if i == 0 else []
    # EAP-IG's points j = 1..k count from the corrupted end: the clean prompt is one, the corrupted is not.
    users += ["eap-ig"] if i % 8 == 0 and i < LINE_POINTS - 1 else []
    return " ".join(users)


def _text(cells: Mapping[str, Mapping[str, Any]], rows: Sequence[Row]) -> str:
    lines = []
    for task, cell in cells.items():
        own = [row for row in rows if row["task"] == task]
        line = [row for row in own if row["path"] == "line"]
        used = {
            name: [x for x in own if name in x["point_of"].split()] for name in ("eap", "eap-ig", "eap-gp")
        }
        lines.append([task_title(task), f"`{cell['edge']}`", str(cell["examples"])])
        lines[-1] += [f"{100 * sum(row[word] for row in line) / len(line):.0f}%" for word in WORDS]
        for points in used.values():
            score = sum(row["score"] for row in points) / len(points)
            lines[-1] += [f"{sum(row[word] for row in points)} of {len(points)}" for word in WORDS]
            lines[-1].append(f"{score:+.3f}")
    headings = ["task", "edge", "examples", "line saturated", "line flat"]
    headings += [
        f"{name} {what}" for name in ("EAP", "EAP-IG", "EAP-GP") for what in ("saturated", "flat", "score")
    ]
    return markdown(headings, lines)


EXPERIMENT = Experiment("saturation", jobs, outcome)
