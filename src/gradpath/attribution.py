r"""Attribution: gradients along a path, contracted with what the nodes write, give edge scores.

::

    score(u -> v) = 1/N  sum over examples, positions of
                    (x_u - x'_u) . 1/k  sum over points p of  dL/d in_v (p)

x_u is what node u writes on the clean prompt, x'_u on the corrupted one, in_v what v reads before its
norm, L the metric. A positive score means that corrupting the edge lowers the metric. This is the paper's
Eq. 5 (EAP-IG) and 9 (EAP-GP) with the path left open; EAP is the path of one point (its Eq. 4 has the
gradient at x', the EAP-IG library and we have it at x; ``clean-corrupted`` takes both).

One batch goes through three phases, A and B of the paper's Algorithm 1:

1. run the clean and the corrupted prompt (``visit``), keep the difference of what the nodes wrote;
2. walk the path; at each scored point one backward pass gives the gradients at the projections' outputs,
   which are summed over the points (``contraction.Reads``);
3. contract both once (``contraction.contract``), whatever the number of points.

The cost is that of the path's passes (``paths``), and one contraction per batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradpath._version import __version__
from gradpath.contraction import Reads, contract, write_differences
from gradpath.errors import GradpathError, UsageError
from gradpath.memory import RUN_AT_ONCE, SUM_AT_ONCE, batch_that_fits, halving
from gradpath.model.transformer import Transformer
from gradpath.paths import Look, Path, Points, find_path
from gradpath.scores import Scores
from gradpath.tasks.metrics import Metric
from gradpath.tasks.task import Pairs, Task, encode
from gradpath.visit import Ground, Passes, Standing

Progress = Callable[[int], None]


def attribute(
    model: Transformer,
    task: Task,
    method: str = "eap-gp",
    *,
    steps: int | None = None,
    batch_size: int = 20,
    memory: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Scores:
    """Score every edge of the model on the task.

    ``method`` is a registered path, ``steps`` its number of points (the method's default if not given,
    ignored by methods without any), ``options`` its other options. ``memory`` is a budget in bytes, weights
    included, by which batches are made smaller than ``batch_size``. ``progress`` is called with the number of
    examples of every finished batch. The result does not depend on the batch size, the order of the examples
    or their padding, beyond rounding.
    """
    if batch_size < 1:
        raise UsageError(f"the batch size must be at least 1: got {batch_size}.")
    path = find_path(method)
    if steps is not None and "steps" in path.defaults:
        options["steps"] = steps
    chosen = path.options(options)
    pairs = encode(task, model.tokenizer)
    passes = Passes()
    points, whole = chosen.get("steps", 1), path.whole(chosen)
    size = batch_that_fits(model, pairs, batch_size, memory, points=points, whole=whole)
    total = torch.zeros(model.graph.n_sources, model.graph.n_targets, dtype=torch.float64, device="cpu")
    work = partial(_score_batch, model, task.metric, path, chosen, passes)
    for batch in pairs.batches(size):
        for part in halving(work, batch):
            total += part
        if progress is not None:
            progress(len(batch))
    values = (total / len(pairs) * model.graph.mask).float()
    if not values.isfinite().all():
        raise GradpathError(
            f"{method} gave a score that is not a finite number on {model.name or 'this model'}. "
            "Use float32, fewer steps, or look for examples with extreme logits."
        )
    about = {
        "version": __version__,
        "model": model.name,
        "task": task.name,
        "data": dict(task.about),
        "method": method,
        "steps": chosen.get("steps", 1),
        "options": {name: value for name, value in chosen.items() if name != "steps"},
        "examples": len(pairs),
        "batch_size": size,
        "bos": model.tokenizer is not None and model.tokenizer.prepend is not None,
        "dtype": str(model.dtype).removeprefix("torch."),
        "passes": {"forward": passes.forward, "backward": passes.backward},
    }
    return Scores(model.graph, values, about)


def _score_batch(
    model: Transformer, metric: Metric, path: Path, options: dict[str, Any], passes: Passes, batch: Pairs
) -> Tensor:
    """The sum of the batch's scores, (source, target)."""
    with torch.enable_grad():
        ground = Ground(model, batch.to(model.device), metric, path.whole(options))
        clean, corrupted = ground.clean, ground.corrupted
        writes = write_differences(clean.suffix, clean.run, corrupted.suffix, corrupted.run)
        del clean, corrupted
        total, n_points = None, 0
        for reads in _walk(ground, path, options):
            part = contract(model, writes, reads)
            total = part if total is None else total + part
            n_points += reads.n_points
    if total is None:
        raise UsageError(f"the method {path.name!r} yielded no point to take a gradient at.")
    passes.forward = max(passes.forward, ground.passes.forward)
    passes.backward = max(passes.backward, ground.passes.backward)
    return (total / n_points).cpu()


def _walk(ground: Ground, path: Path, options: dict[str, Any]) -> Iterator[Reads]:
    """Walk the path and sum the gradients at its points, as many at a time as memory should hold."""
    reads = Reads()
    walk = path.build(ground.pair, **options)
    asked = next(walk, None)
    while asked is not None:
        scored = not isinstance(asked, Look)
        point = asked.point if isinstance(asked, Look) else asked
        stacked = isinstance(point, Tensor) and point.ndim == 4
        visit = None
        for group in torch.split(point, RUN_AT_ONCE) if stacked else [point]:
            visit = ground.visit(group)
            if scored:
                if reads.n_points >= SUM_AT_ONCE:
                    yield reads
                    reads = Reads()
                reads.add(ground.model, visit.run, ground.judge(visit))
                ground.passes.backward += len(visit.suffix) // len(ground.batch)
        asked = _next(walk, None if stacked else visit)
    if reads.n_points:
        yield reads


def _next(walk: Points, visit: Standing | None) -> Tensor | Look | None:
    try:
        return walk.send(visit)  # type: ignore[arg-type]  # nothing comes back for a stack
    except StopIteration:
        return None
