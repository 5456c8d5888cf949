"""What paths of EAP-IG and EAP-GP look like: medians over examples of their geometry, and of what their points see.

python docs/results/gradpath/paths.py smollm2 ioi,gender-bias,sva 12 21

Lengths are in units of ||x - x'||. "Found" is the share of the metric's drop that the scores of all edges out of
``input`` sum to: sum over positions of (x - x') . mean over points of dL/dx, divided by L(x) - L(x').
"""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

import gradpath as gp
from gradpath.attribution.batch import BatchRuns, run_path
from gradpath.attribution.methods import find_path
from gradpath.model.transformer import Transformer
from gradpath.study.spec import method_options, method_recipe
from gradpath.tasks.metrics import Metric
from gradpath.tasks.task import Pairs, encode

READINGS = ("eap-ig", "eap-gp", "eap-gp+stride=unit", "eap-gp+stride=unit+outputs=all")
READINGS = (*READINGS, "eap-gp+stride=unit+outputs=all+pin_end=true")
COLUMNS = {
    "walked": "length of the path from x",
    "off": "largest distance of a point from the line",
    "end": "distance of the last point from x' (before it is set to x')",
    "same": "share of the squared steps at positions that do not differ",
    "nearer": "smallest ||G - G(x')|| of a scored point, as a share of that at x; last position",
    "gradient": "mean norm of dL/dx at scored points, as a share of that on EAP-IG's line",
    "found": "share of the drop found",
}


class Seen(NamedTuple):
    """A point of a path, and what its run gave."""

    point: Tensor  # (pos, d_model)
    metric: Tensor
    logits: Tensor
    gradient: Tensor | None  # of the metric at the point, if it is scored


def run_points(runs: BatchRuns, reading: str) -> list[Seen]:
    """All points that a reading runs on one example, in its order."""
    recipe = method_recipe(reading)
    path, options = find_path(recipe.method), method_options(recipe)
    seen = []
    with torch.enable_grad():
        for run, scored in run_path(runs, path, options):
            metric = runs.metric_of(run.final).squeeze()
            point, gradient = run.point.squeeze(), run.gradient(metric).squeeze() if scored else None
            seen.append(Seen(point.detach(), metric.detach(), run.logits.detach().squeeze(), gradient))
    return seen


def follow(model: Transformer, metric: Metric, pair: Pairs, reading: str) -> dict[str, float]:
    """The quantities of one example's path."""
    recipe = method_recipe(reading)
    options = method_options(recipe)
    runs = BatchRuns(model, pair, metric, find_path(recipe.method).whole(options), at_once=1)
    x, goal, apart = runs.pair.clean[0], runs.pair.corrupted[0], runs.pair.differs[0]
    seen = run_points(runs, reading)
    end = runs.run_point(runs.pair.corrupted)
    at_goal, at_clean = end.logits[0].detach(), next(s for s in seen if torch.equal(s.point, x))
    drop = at_clean.metric - runs.metric_of(end.final).detach().squeeze()
    inner = [s.point for s in seen if not (torch.equal(s.point, x) or torch.equal(s.point, goal))]
    if recipe.method == "eap-ig":
        walk = [x, *reversed(inner), goal]  # its points go from x' to x
    else:
        pinned = options["stride"] == "matched" or options["pin_end"]
        walk = [x, *inner, *([goal] if pinned else [])]
    unit = (x - goal).norm()
    steps = torch.stack([b - a for a, b in pairwise(walk)])
    gaps = torch.stack(inner) - goal
    along = (gaps * (x - goal)).sum((-2, -1), keepdim=True) / unit**2
    gradients = torch.stack([s.gradient for s in seen if s.gradient is not None])
    away = [float((s.logits - at_goal).norm()) for s in seen if s.gradient is not None]
    return {
        "walked": float(steps.norm(dim=(-2, -1)).sum() / unit),
        "off": float((gaps - along * (x - goal)).norm(dim=(-2, -1)).max() / unit),
        "end": 0.0 if recipe.method == "eap-ig" else float(gaps[-1].norm() / unit),
        "same": float((steps[:, ~apart] ** 2).sum() / (steps**2).sum()),
        "nearer": min(d for d in away if d > 0) / float((at_clean.logits - at_goal).norm()),
        "gradient": float(gradients.norm(dim=(-2, -1)).mean()),
        "found": float(((x - goal) * gradients.mean(0)).sum() / drop),
    }


def main(model_name: str, tasks: str, n: str, seed: str) -> None:
    """Print a table for each task."""
    model = gp.load_model(model_name)
    for name in tasks.split(","):
        task = gp.load_task(name, model, n=int(n), seed=int(seed), split="train")
        pairs = encode(task, model.tokenizer)
        print(f"\n{name}, {len(pairs)} examples, medians (middle half)\n\n| | {' | '.join(COLUMNS)} |")  # noqa: T201
        print("|---|" + "---:|" * len(COLUMNS))  # noqa: T201
        norms: list[float] = []
        for reading in READINGS:
            every = [follow(model, task.metric, pairs.rows(torch.tensor([i])), reading) for i in range(len(pairs))]
            norms = norms or [row["gradient"] for row in every]
            for row, norm in zip(every, norms, strict=True):
                row["gradient"] /= norm
            cells = []
            for column in COLUMNS:
                values = torch.tensor([row[column] for row in every])
                low, middle, high = values.quantile(torch.tensor([0.25, 0.5, 0.75]))
                cells.append(f"{middle:.2f} ({low:.2f}, {high:.2f})")
            print(f"| {reading} | {' | '.join(cells)} |", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
