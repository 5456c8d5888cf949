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

from gradpath import ranks
from gradpath.attribution import scores_along
from gradpath.experiments.bench import Bench
from gradpath.experiments.methods import Method
from gradpath.memory import Progress
from gradpath.model.transformer import Transformer
from gradpath.paths import find_path
from gradpath.scores import Scores
from gradpath.tasks import Task


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
    pairs, asked = bench.task(task, "train"), bench.request
    found = attribute_nested(bench.model, pairs, method, steps, asked.batch_size, asked.memory, progress)
    seconds = ranks.total(time.process_time() - begin)
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
    memory: int | None = None,
    progress: Progress | None = None,
) -> dict[int, Scores]:
    """What ``attribute`` gives for each number of steps, from one walk per batch."""
    assert is_nested(method)
    *stops, longest = sorted(set(steps))
    found = scores_along(
        model,
        task,
        find_path(method.name),
        method.with_steps(longest).options,
        stops=stops,
        batch_size=batch_size,
        memory=memory,
        progress=progress,
    )
    return dict(zip([*stops, longest], found, strict=True))
