r"""The figure that explains the paper: the gradient and the metric along each method's path.

One edge u -> v, the mean over a task's examples. EAP takes the gradient at the clean prompt only, EAP-IG at k points
of the straight line to the corrupted prompt, EAP-GP at k points of its own path. The path is saturated where the
gradient at v is close to zero (here: its norm is below a tenth of its largest on the straight line). It is flat, a
weaker and more common condition, where the product of the gradient with x_u - x'_u is close to zero in the same sense:
there is a gradient, but it contributes nothing to the score of this edge.

For an edge u -> v and a point p of a path::

    gradient   || dL/d in_v (p) ||            over the positions from the first differing token on
    score      (x_u - x'_u) . dL/d in_v (p)   what the point contributes to the edge's score
    metric     L(p)

A method's score of the edge is the mean of ``score`` over its points. Saturated points (the paper's Definition 4.1)
contribute nothing and lower the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradpath import defaults
from gradpath.attribution.batch import BatchRuns, PointRun, run_path, write_of
from gradpath.attribution.methods import find_path
from gradpath.graph import QKV
from gradpath.model.transformer import Run, Transformer, at_least_float32
from gradpath.report.style import FORMULA, INK, MARKERS, METHOD_COLOURS, MUTED, panels, task_title
from gradpath.runtime import distributed
from gradpath.scores import Scores
from gradpath.study import method_options, method_recipe
from gradpath.study.bench import Bench, Cell, Row
from gradpath.study.outcome import Experiment, Outcome, grouped, markdown
from gradpath.sweep import Limits, sweep
from gradpath.tasks import Pairs, Task, encode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUANTITIES = ("gradient", "score", "metric")
SATURATED = 0.1  # of the largest gradient on the straight line
STEPS = 5
LINE_POINTS = 8 * STEPS + 1  # so that every point of EAP-IG is among them
HALF = 0.5 / (LINE_POINTS - 1)  # of the distance between two of them
RANKING = defaults.METHOD  # its strongest edge is followed
PAINT = {"eap": INK, "eap-ig": METHOD_COLOURS["eap-ig"], "eap-gp": METHOD_COLOURS["eap-gp"]}  # the paper's methods
PANELS = {
    "gradient": "gradient at the target\n$\\|\\partial L/\\partial\\,in_v\\|$ (metric per unit)",
    "score": "the point's score\n$(x_u - x'_u)\\cdot\\partial L/\\partial\\,in_v$ (metric)",
    "metric": "metric $L$\n(task's own unit)",
}
CONDITIONS = {"flat": "score", "saturated": "gradient"}  # the quantity that is close to zero
SHADES = {"flat": "#f0efe9", "saturated": "#e8c9b5"}  # where the straight line is
Points = Callable[[BatchRuns], Iterator[PointRun]]


def follow_line(
    model: Transformer, task: Task, edge: str, points: int, *, limits: Limits = Limits()
) -> dict[str, Tensor]:
    """The quantities along the straight line from the clean to the corrupted prompt, each (point, example)."""

    def line(runs: BatchRuns) -> Iterator[PointRun]:
        for f in torch.linspace(0, 1, points).tolist():
            yield runs.run_point(runs.pair.clean + f * (runs.pair.corrupted - runs.pair.clean))

    return _follow(model, task, edge, line, points, limits, whole=False)


def follow_gradpath(
    model: Transformer, task: Task, edge: str, steps: int, *, limits: Limits = Limits()
) -> dict[str, Tensor]:
    """The quantities along GradPath: at the clean prompt, which is not scored, and at its k points."""
    path = find_path("eap-gp")
    options = method_options(method_recipe(defaults.PAPER_GP)) | {"start": True, "steps": steps + 1}

    def gradpath(runs: BatchRuns) -> Iterator[PointRun]:
        return (run for run, scored in run_path(runs, path, options) if scored)

    return _follow(model, task, edge, gradpath, steps + 1, limits, whole=True)


def _follow(
    model: Transformer, task: Task, edge: str, points: Points, n: int, limits: Limits, *, whole: bool
) -> dict[str, Tensor]:
    pairs = encode(task, model.tokenizer)
    source, target = model.graph.index(edge)

    def follow(batch: Pairs) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            runs = BatchRuns(model, batch.to(model.device), task.metric, whole)
            difference = write_of(model, runs.writes, source).view(len(batch), -1)
            values = [_quantities(runs, point, difference, target) for point in points(runs)]
        return batch.index, torch.stack(values, 1).double().cpu()

    # (quantity, point, example), in the order of the task's examples
    total = torch.zeros(len(QUANTITIES), n, len(pairs), dtype=torch.float64, device="cpu")
    batches, _ = limits.attribution(model, pairs, whole=whole)
    doing, bar = "following an edge", f"following {edge}"
    for index, values in sweep(model, task, pairs, batches, follow, doing=doing, same=lambda: (edge, n), bar=bar):
        total[..., index] = values
    return dict(zip(QUANTITIES, distributed.all_sum(total), strict=True))


def _quantities(runs: BatchRuns, point: PointRun, difference: Tensor, target: int) -> Tensor:
    """The three quantities at a point, (quantity, batch)."""
    metric = runs.metric_of(point.final)[0]
    at = torch.arange(runs.start, runs.start + point.suffix.shape[1], device=metric.device)
    # Positions before an example's first difference are in the suffix only because of others in the batch.
    counts = at >= runs.batch.first[:, None]
    gradient = (read_gradient(runs.model, point.run, metric.sum(), target) * counts[..., None]).flatten(1)
    return torch.stack([gradient.norm(dim=1), (difference * gradient).sum(1), metric.detach().float()])


def read_gradient(model: Transformer, run: Run, objective: Tensor, target: int) -> Tensor:
    """The gradient of ``objective`` at what one target reads, before its norm, (batch, pos, d_model)."""

    def gradient(at: Tensor) -> Tensor:
        return at_least_float32(torch.autograd.grad(objective, at, retain_graph=True)[0])

    a = model.arch
    layer, (qkv, head) = model.graph.layer_of_target(target), model.graph.place_in_layer(target)
    if layer == a.n_layers:
        return gradient(run.final_in)
    layer_run = run.layers[layer]
    if qkv == len(QKV):
        return gradient(layer_run.mlp_in)
    d = gradient((layer_run.q, layer_run.k, layer_run.v)[qkv])[..., head, :]
    w_qkv = at_least_float32(model.layers[layer].w_qkv).view(-1, a.d_qkv, a.d_model)
    g = d @ w_qkv[a.projection_row(qkv, head)]
    if not a.norm_before:
        return g
    y, rstd = at_least_float32(layer_run.y.detach()), at_least_float32(layer_run.rstd.detach())
    return rstd * (g - y * (y * g).mean(-1, keepdim=True))


def _followed(bench: Bench, task: str) -> Cell:
    """An edge followed along the straight line and along GradPath."""
    model, recipe = bench.model, bench.study.at(task, RANKING)
    points = {"by": RANKING, "gradpath": defaults.PAPER_GP, "steps": STEPS, "points": LINE_POINTS}
    key = {"kind": "saturation", **bench.task_key(recipe, "train"), **points}

    def compute() -> Mapping[str, Any]:
        train, limits = bench.task(recipe, "train"), bench.study.limits
        edge = strongest(bench.scores(recipe))
        line = follow_line(model, train, edge, LINE_POINTS, limits=limits)
        path = follow_gradpath(model, train, edge, STEPS, limits=limits)
        paths = {
            "line": _summary(torch.linspace(0, 1, LINE_POINTS).tolist(), line),
            "eap-gp": _summary([j / STEPS for j in range(STEPS + 1)], path),
        }
        return {"edge": edge, "examples": len(train), **paths}

    return bench.store.measured(key, compute)


def strongest(scores: Scores) -> str:
    """The edge of largest |score|, without edges into the logits: their gradient hardly depends on the path."""
    size = scores.values.abs().clone()
    size[:, scores.graph.logits] = -1
    best = int(size.masked_fill(~scores.graph.mask, -1).argmax())
    return scores.graph.edge_at(best)


def _summary(at: list[float], values: Mapping[str, Tensor]) -> dict[str, Any]:
    """Means over examples, and the middle half of the examples; ``at`` runs from 0, the clean prompt, to 1."""
    summary: dict[str, Any] = {"at": at}
    for name, x in values.items():
        low, high = x.quantile(torch.tensor([0.25, 0.75], dtype=torch.float64), dim=1).tolist()
        summary[name] = {"mean": x.mean(1).tolist(), "low": low, "high": high}
    return summary


def outcome(bench: Bench) -> Outcome:
    cells = {task: _followed(bench, task) for task in bench.study.task_names}
    rows = {task: _rows(task, cell) for task, cell in cells.items()}
    note = (
        f"Saturated: the gradient's mean norm is below {SATURATED:.0%} of its largest on the straight line. "
        "Flat: the same for its product with the difference of what the edge's source writes, which is what a "
        "point adds to the edge's score. Position 0 is the clean prompt; 1 is the corrupted prompt for the "
        "straight line and gamma_k for EAP-GP, whose unit steps can end anywhere."
    )
    return Outcome(
        name="saturation",
        title=f"Gradient and metric along the paths in {bench.title}",
        rows=[row for group in rows.values() for row in group],
        text=_text(cells, rows),
        figures={
            f"saturation-{task}": partial(draw_saturation, bench.title, cell["examples"], rows[task])
            for task, cell in cells.items()
        },
        notes=(note,),
    )


def _rows(task: str, cell: Mapping[str, Any]) -> list[Row]:
    """One row per point of the line and of GradPath, with the methods that use it."""
    largest = {name: max(map(abs, cell["line"][name]["mean"])) for name in QUANTITIES}
    rows = []
    for path in ("line", "eap-gp"):
        for i, at in enumerate(cell[path]["at"]):
            row: Row = {"task": task, "edge": cell["edge"], "path": path, "at": at, "point_of": _methods_at(path, i)}
            for name in QUANTITIES:
                mean, low, high = (cell[path][name][end][i] for end in ("mean", "low", "high"))
                row |= {name: mean, f"{name}_low": low, f"{name}_high": high}
            rows.append(row | {word: abs(row[x]) < SATURATED * largest[x] for word, x in CONDITIONS.items()})
    return rows


def _methods_at(path: str, i: int) -> str:
    """The methods that take the gradient at the i-th point of a path."""
    if path == "eap-gp":
        return "eap-gp" if i else ""
    # EAP-IG's points j = 1..k count from the corrupted end: the clean prompt is one of them, the corrupted is not.
    if i % 8 or i == LINE_POINTS - 1:
        return ""
    return "eap-ig" if i else "eap eap-ig"


def _points_of(method: str, rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if method in row["point_of"].split()]


def _score(method: str, rows: Sequence[Row]) -> float:
    """A method's score of the edge: the mean over its points."""
    points = _points_of(method, rows)
    return float(sum(row["score"] for row in points) / len(points))


def _text(cells: Mapping[str, Mapping[str, Any]], rows: Mapping[str, Sequence[Row]]) -> str:
    headings = ["task", "edge", "examples", *(f"line {word}" for word in CONDITIONS)]
    headings += [f"{method.upper()} {what}" for method in PAINT for what in (*CONDITIONS, "score")]
    lines = []
    for task, cell in cells.items():
        on_line = [row for row in rows[task] if row["path"] == "line"]
        line = [task_title(task), f"`{cell['edge']}`", str(cell["examples"])]
        line += [f"{100 * sum(row[word] for row in on_line) / len(on_line):.0f}%" for word in CONDITIONS]
        for method in PAINT:
            points = _points_of(method, rows[task])
            line += [f"{sum(row[word] for row in points)} of {len(points)}" for word in CONDITIONS]
            line.append(f"{_score(method, rows[task]):+.3f}")
        lines.append(line)
    return markdown(headings, lines)


SATURATION = Experiment("saturation", outcome)


def draw_saturation(model: str, examples: int, rows: Sequence[Row]) -> Figure:
    """Three panels over the path from the clean to the corrupted prompt: gradient, score and metric."""
    figure, axes = panels(len(PANELS), 1, (7.8, 8.4), sharex=True)
    paths = grouped(rows, "path")
    for (name, label), ax in zip(PANELS.items(), axes, strict=True):
        for word, shade in SHADES.items():
            for x in (row["at"] for row in paths["line"] if row[word]):
                ax.axvspan(max(0, x - HALF), min(1, x + HALF), color=shade, linewidth=0, zorder=0)
        for path, method, line in (("line", "eap-ig", "-"), ("eap-gp", "eap-gp", "--")):
            at, mean, low, high = ([row[x] for row in paths[path]] for x in ("at", name, f"{name}_low", f"{name}_high"))
            ax.plot(at, mean, color=PAINT[method], linewidth=1.3, linestyle=line)
            ax.fill_between(at, low, high, color=PAINT[method], alpha=0.10, linewidth=0)
        # EAP's point is drawn around the first of EAP-IG.
        for method, size in (("eap", 110), ("eap-ig", 36), ("eap-gp", 40)):
            x, y = ([row[column] for row in _points_of(method, rows)] for column in ("at", name))
            face = "none" if method == "eap" else PAINT[method]
            ax.scatter(x, y, s=size, marker=MARKERS[method], facecolors=face, edgecolors=PAINT[method], zorder=4)
        ax.set_ylabel(label).set_label(FORMULA)
    axes[1].axhline(0, color=MUTED, linewidth=0.8)
    axes[0].set_ylim(bottom=0)
    axes[-1].set_xlabel("share of the path walked (0: clean prompt, 1: corrupted prompt, or EAP-GP's end)")
    where = f"{task_title(rows[0]['task'])}, mean over {examples} examples of {model}"
    figure.suptitle(f"What each method sees of the edge {rows[0]['edge']}\n{where}", fontsize=11.5, color=INK)
    figure.legend(handles=_legend(), loc="outside lower center", ncols=2, fontsize=8.5, frameon=False)
    return figure


def _legend() -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def point(method: str, label: str, **style: Any) -> Line2D:
        return Line2D([], [], marker=MARKERS[method], linestyle="", label=label, **style)

    return [
        point("eap", "EAP: the clean prompt", markerfacecolor="none", markeredgecolor=INK, markersize=9),
        point("eap-ig", "EAP-IG: points of the straight line", color=PAINT["eap-ig"]),
        point("eap-gp", "EAP-GP: points of GradPath", color=PAINT["eap-gp"]),
        Line2D([], [], color=PAINT["eap-ig"], label="straight line (band: middle half of examples)"),
        Line2D([], [], color=PAINT["eap-gp"], linestyle="--", label="GradPath (band: the same)"),
        Patch(color=SHADES["saturated"], label="straight line saturated: gradient < 10% of its largest"),
        Patch(color=SHADES["flat"], label="straight line flat: the edge's score < 10% of its largest"),
    ]
