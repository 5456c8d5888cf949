"""Scores for many numbers of steps from one walk.

GradPath's steps do not depend on how many follow: with unit steps the points of k = 3 are the first three
of k = 20. So one walk of 20 steps gives the scores of every k below, ::

    score_k = (x_u - x'_u) . 1/k  sum over j = 1..k of  dL/d in_v (gamma_j)

as running sums, for 22 forward and 40 backward passes instead of 243 and 414 for k = 3..20. The numbers are
those of ``attribute`` up to the rounding of a sum.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from gradpath._version import __version__
from gradpath.attribution import Progress
from gradpath.contraction import Reads, contract, write_differences
from gradpath.experiments.bench import Bench
from gradpath.experiments.methods import Method
from gradpath.memory import SUM_AT_ONCE
from gradpath.model.transformer import Transformer
from gradpath.paths import Look, find_path
from gradpath.scores import Scores
from gradpath.tasks import Pairs, Task, encode
from gradpath.visit import Ground, Passes


def is_nested(method: Method) -> bool:
    """Whether the points of fewer steps are the first points of more."""
    options = method.options
    return method.name == "eap-gp" and options["stride"] == "unit" and not options["pin_end"]


def keep_nested(
    bench: Bench, task: str, method: Method, steps: Sequence[int], wanted: Sequence[int], progress: Progress
) -> None:
    """Compute the scores of a nested method for several numbers of steps, and keep those ``wanted``.

    The sums are broken at every number in ``steps``, wanted or not: so a run that was killed between two
    of them and goes on rounds as one that was not.
    """
    steps = [k for k in steps if k <= max(wanted)]
    begin = time.process_time()
    pairs = bench.task(task, "train")
    found = attribute_nested(bench.model, pairs, method, steps, bench.request.batch_size, progress)
    seconds = time.process_time() - begin
    for k in wanted:
        # Alone, a walk of k steps would have taken this part of the time.
        own = seconds * k / max(steps)
        bench.store.keep_scores(bench.scores_key(task, method.with_steps(k)), found[k], own)


def attribute_nested(
    model: Transformer,
    task: Task,
    method: Method,
    steps: Sequence[int],
    batch_size: int,
    progress: Progress = lambda done: None,
) -> dict[int, Scores]:
    """What ``attribute`` gives for each number of steps, from one walk per batch."""
    assert is_nested(method)
    pairs = encode(task, model.tokenizer)
    shape = (model.graph.n_sources, model.graph.n_targets)
    totals = {k: torch.zeros(shape, dtype=torch.float64) for k in steps}
    passes: dict[int, Passes] = {}
    size = min(batch_size, len(pairs))
    for batch in pairs.batches(size):
        for k, (scores, cost) in _walk(model, task, batch.to(model.device), method, set(steps)).items():
            totals[k] += scores.cpu()
            passes[k] = cost
        progress(len(batch))
    return {
        k: Scores(
            model.graph,
            (totals[k] / len(pairs) * model.graph.mask).float(),
            _about(model, task, method.with_steps(k), len(pairs), size, passes[k]),
        )
        for k in steps
    }


def _walk(
    model: Transformer, task: Task, batch: Pairs, method: Method, wanted: set[int]
) -> dict[int, tuple[Tensor, Passes]]:
    """For each wanted number of steps the batch's summed scores, and the passes made until there."""
    path, longest = find_path(method.name), method.with_steps(max(wanted))
    found: dict[int, tuple[Tensor, Passes]] = {}
    with torch.enable_grad():
        ground = Ground(model, batch, task.metric, path.whole(longest.options))
        clean, corrupted = ground.clean, ground.corrupted
        writes = write_differences(clean.suffix, clean.run, corrupted.suffix, corrupted.run)
        total, reads, n = torch.zeros(()), Reads(), 0
        walk = path.build(ground.pair, **longest.options)
        asked = next(walk)
        while len(found) < len(wanted):
            visit = ground.visit(asked.point if isinstance(asked, Look) else asked)
            if not isinstance(asked, Look):
                n += 1
                reads.add(model, visit.run, ground.judge(visit))
                ground.passes.backward += 1
                if n in wanted or reads.n_points >= SUM_AT_ONCE:
                    total, reads = total.to(batch.clean.device) + contract(model, writes, reads), Reads()
                if n in wanted:
                    found[n] = (total / n, Passes(ground.passes.forward, ground.passes.backward))
            if len(found) < len(wanted):
                asked = walk.send(visit)  # type: ignore[arg-type]  # frozen, where the protocol is not
    return found


def _about(
    model: Transformer, task: Task, method: Method, examples: int, batch_size: int, passes: Passes
) -> dict[str, object]:
    """What ``attribute`` says of its scores."""
    return {
        "version": __version__,
        "model": model.name,
        "task": task.name,
        "data": dict(task.about),
        "method": method.name,
        "steps": method.steps,
        "options": {name: value for name, value in method.options.items() if name != "steps"},
        "examples": examples,
        "batch_size": batch_size,
        "bos": model.tokenizer is not None and model.tokenizer.prepend is not None,
        "dtype": str(model.dtype).removeprefix("torch."),
        "passes": {"forward": passes.forward, "backward": passes.backward},
    }
