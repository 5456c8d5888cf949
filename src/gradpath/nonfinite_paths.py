"""Where along a path a number that is none arises: every point, and the gradients there (``nonfinite``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradpath.graph import QKV
from gradpath.model.transformer import Run, Transformer
from gradpath.nonfinite import Places, by_head, of_prompts, of_run
from gradpath.paths import Path
from gradpath.tasks.metrics import Metric
from gradpath.tasks.task import Pairs
from gradpath.visit import Ground, walk


def of_path(model: Transformer, metric: Metric, path: Path, options: dict[str, Any], single: Pairs) -> Places:
    """All of one example's attribution: the two prompts, every point of the path, the gradients there."""
    yield from of_prompts(model, metric, single)
    with torch.enable_grad():
        model = replace(model, rules=path.rules(options))
        ground = Ground(model, single.to(model.device), metric, path.whole(options))
        for number, (visit, scored) in enumerate(walk(ground, path, options), start=1):
            where = f"at {'point' if scored else 'an unscored point,'} {number} of the path"
            yield from of_run(where, visit.point, visit.run, visit.logits)
            value = ground.judge(visit)
            yield f"the metric {where}", value
            if scored and value.requires_grad:
                yield from _of_gradients(where, visit.run, value)


def _of_gradients(where: str, run: Run, value: Tensor) -> Places:
    """The gradients at what the targets read or project, from the logits down."""

    def gradient(at: Tensor) -> Tensor:
        return torch.autograd.grad(value.sum(), at, retain_graph=True)[0]

    yield f"the gradient at logits {where}", gradient(run.final_in)
    for index in range(len(run.layers) - 1, -1, -1):
        layer = run.layers[index]
        yield f"the gradient at m{index} {where}", gradient(layer.mlp_in)
        for kind, projected in zip(QKV, (layer.q, layer.k, layer.v), strict=True):
            yield from by_head(f"the gradient at a{index}", f"<{kind}> {where}", gradient(projected))
