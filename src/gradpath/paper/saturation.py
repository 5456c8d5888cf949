"""The figure that explains the paper: the gradient and the metric along each method's path.

One edge u -> v, the mean over a task's examples. EAP takes the gradient at the clean prompt alone; EAP-IG
takes it at k points of the straight line to the corrupted prompt, EAP-GP at k points of a path of its own.
The path is saturated where the gradient at v is close to zero (here: its norm is below a tenth of its largest
on the straight line). Weaker, and commoner: the gradient is there, but what it says of this edge, its product
with x_u - x'_u, is close to zero in the same sense. Such points are called flat.

Three panels over the way from the clean to the corrupted prompt: gradient, score and metric.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gradpath.grid.bench import Bench
from gradpath.grid.jobs import Advance, CellJob, Job, ScoreJob, finished
from gradpath.grid.output import Outcome, markdown
from gradpath.grid.request import MethodSpec, default_tasks
from gradpath.grid.runner import Experiment
from gradpath.grid.store import Key
from gradpath.paper.follow import QUANTITIES, Track, follow_gradpath, follow_line
from gradpath.report.style import COLOURS, INK, MARKERS, MUTED, panels, task_title
from gradpath.scores import Scores
from gradpath.sweep import Progress

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


SATURATED = 0.1  # of the largest gradient on the straight line
STEPS = 5
LINE_POINTS = 8 * STEPS + 1  # so that every point of EAP-IG is among them
CHOOSER = MethodSpec("eap-ig")  # whose strongest edge is followed if none was asked for
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
        model, limits = bench.model, bench.request.limits

        def telling(track: str) -> Progress:
            return lambda done: advance(done * costs[track])

        line = follow_line(model, pairs, edge, LINE_POINTS, progress=telling("line"), limits=limits)
        path = follow_gradpath(model, pairs, edge, STEPS, progress=telling("eap-gp"), limits=limits)
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
        f"saturation-{task}": (lambda task=task, cell=cell: draw_saturation(bench.title, task, cell, _rows(task, cell)))
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
            row: Row = {"task": task, "edge": cell["edge"], "path": track, "at": at, "point_of": _users(track, i)}
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
        used = {name: [x for x in own if name in x["point_of"].split()] for name in ("eap", "eap-ig", "eap-gp")}
        lines.append([task_title(task), f"`{cell['edge']}`", str(cell["examples"])])
        lines[-1] += [f"{100 * sum(row[word] for row in line) / len(line):.0f}%" for word in WORDS]
        for points in used.values():
            score = sum(row["score"] for row in points) / len(points)
            lines[-1] += [f"{sum(row[word] for row in points)} of {len(points)}" for word in WORDS]
            lines[-1].append(f"{score:+.3f}")
    headings = ["task", "edge", "examples", "line saturated", "line flat"]
    headings += [f"{name} {what}" for name in ("EAP", "EAP-IG", "EAP-GP") for what in ("saturated", "flat", "score")]
    return markdown(headings, lines)


EXPERIMENT = Experiment("saturation", jobs, outcome)

Rows = Sequence[Mapping[str, Any]]
PANELS = {
    "gradient": "gradient at the target\n$\\|\\partial L/\\partial\\,in_v\\|$ (metric per unit)",
    "score": "the point's score\n$(x_u - x'_u)\\cdot\\partial L/\\partial\\,in_v$ (metric)",
    "metric": "metric $L$\n(task's own unit)",
}
SHADES = {"flat": "#f0efe9", "saturated": "#e8c9b5"}  # the second lies on the first


def draw_saturation(model: str, task: str, cell: Mapping[str, Any], rows: Rows) -> Figure:
    figure, axes = panels(len(PANELS), 1, (7.8, 8.4), sharex=True)
    line = [row for row in rows if row["path"] == "line"]
    for (name, label), ax in zip(PANELS.items(), axes, strict=True):
        _stretches(ax, line)
        _tracks(ax, cell, name)
        _points(ax, rows, name)
        ax.set_ylabel(label)
    _means(axes[1], rows)
    axes[0].set_ylim(bottom=0)
    axes[-1].set_xlabel("share of the path walked (0: clean prompt, 1: corrupted prompt, or EAP-GP's end)")
    where = f"{task_title(task)}, mean over {cell['examples']} examples of {model}"
    figure.suptitle(f"What each method sees of the edge {cell['edge']}\n{where}", fontsize=11.5, color=INK)
    figure.legend(handles=_legend(), loc="outside lower center", ncols=2, fontsize=8.5, frameon=False)
    return figure


def _stretches(ax: Axes, line: Rows) -> None:
    """Shade where the straight line is flat, and where it is saturated."""
    half = 0.5 / (len(line) - 1)
    for word, shade in SHADES.items():
        for row in line:
            if row[word]:
                ends = max(0, row["at"] - half), min(1, row["at"] + half)
                ax.axvspan(*ends, color=shade, linewidth=0, zorder=0)


def _tracks(ax: Axes, cell: Mapping[str, Any], name: str) -> None:
    for track, paint in (("line", COLOURS["eap-ig"]), ("eap-gp", COLOURS["eap-gp"])):
        at, seen = cell[track]["at"], cell[track][name]
        ax.plot(at, seen["mean"], color=paint, linewidth=1.3, linestyle="-" if track == "line" else "--")
        ax.fill_between(at, seen["low"], seen["high"], color=paint, alpha=0.10, linewidth=0)


def _points(ax: Axes, rows: Rows, name: str) -> None:
    """The points at which each method takes its gradient; EAP's is drawn around EAP-IG's first."""
    sizes = {"eap": 110, "eap-ig": 36, "eap-gp": 40}
    for method, size in sizes.items():
        own = [row for row in rows if method in row["point_of"].split()]
        face = "none" if method == "eap" else COLOURS[method]
        ax.scatter(
            [row["at"] for row in own],
            [row[name] for row in own],
            s=size,
            marker=MARKERS[method],
            facecolors=face,
            edgecolors=INK if method == "eap" else COLOURS[method],
            zorder=4,
        )


def _means(ax: Axes, rows: Rows) -> None:
    """A method's score of the edge is the mean of its points: a tick at the right edge."""
    ax.axhline(0, color=MUTED, linewidth=0.8)
    means = {}
    for method in ("eap", "eap-ig", "eap-gp"):
        own = [row["score"] for row in rows if method in row["point_of"].split()]
        means[method] = sum(own) / len(own)
    low, high = ax.get_ylim()
    lowest = low
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}  # the line of zero must not cross the words
    for method, mean in sorted(means.items(), key=lambda item: item[1]):
        paint = INK if method == "eap" else COLOURS[method]
        height = max(mean, lowest)  # labels of equal means would lie on each other
        lowest = height + 0.09 * (high - low)
        ax.plot([1.01, 1.03], [mean, mean], color=paint, linewidth=2.4)
        ax.text(1.04, height, f"{method.upper()} {mean:+.2f}", color=paint, fontsize=8, va="center", bbox=box)
    ax.text(1.01, high, "mean of its points:", color=MUTED, fontsize=7.5, va="top")
    ax.set_xlim(-0.03, 1.21)
    ax.set_xticks([0, 0.2, 0.4, 0.6, 0.8, 1])


def _legend() -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def point(method: str, label: str, **style: Any) -> Line2D:
        return Line2D([], [], marker=MARKERS[method], linestyle="", label=label, **style)

    return [
        point("eap", "EAP: the clean prompt", markerfacecolor="none", markeredgecolor=INK, markersize=9),
        point("eap-ig", "EAP-IG: points of the straight line", color=COLOURS["eap-ig"]),
        point("eap-gp", "EAP-GP: points of GradPath", color=COLOURS["eap-gp"]),
        Line2D([], [], color=COLOURS["eap-ig"], label="straight line (band: middle half of examples)"),
        Line2D([], [], color=COLOURS["eap-gp"], linestyle="--", label="GradPath (band: the same)"),
        Patch(color=SHADES["saturated"], label="straight line saturated: gradient < 10% of its largest"),
        Patch(color=SHADES["flat"], label="straight line flat: the edge's score < 10% of its largest"),
    ]
