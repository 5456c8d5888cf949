"""MIB's areas of scores on a task, in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradpath.evaluation import evaluate, mib
from gradpath.model.transformer import Transformer
from gradpath.scores import Scores
from gradpath.selection import select_many
from gradpath.tasks.task import Task


def measure_mib(
    model: Transformer,
    scores: Scores,
    task: Task,
    *,
    rankings: Sequence[str] = mib.RANKINGS,
    batch_size: int | None = None,
    memory: int | None = None,
    progress: Callable[[int], None] | None = None,
    ablation: str | None = None,
    mean_over: Task | None = None,
) -> dict[str, mib.Areas]:
    """MIB's CPR and CMD of the scores on a task: ``measure_mib(...)["signed"].cmd``.

    Args:
        model: The model.
        scores: The scores of all edges.
        task: The examples to measure on.
        rankings: How edges are ranked: ``top``, ``signed``, or both.
        batch_size: The largest number of examples in a batch; by default it depends on prompt length and free memory.
        memory: A budget in bytes, weights included; by default the weights and half of the free memory.
        progress: Called with the number of examples of each finished batch.
        ablation: What edges outside the circuit carry, as in ``evaluate``.
        mean_over: The task whose clean prompts the means are taken over, as in ``evaluate``.

    Returns:
        The areas of each ranking.
    """
    counts = [mib.edges_at(scores.graph, fraction) for fraction in mib.FRACTIONS[:-1]]
    circuits = [circuit for how in rankings for circuit in select_many(scores, counts, how=how)]
    results = evaluate(
        model,
        circuits,
        task,
        batch_size=batch_size,
        memory=memory,
        progress=progress,
        ablation=ablation,
        mean_over=mean_over,
    )
    parts = [results[at : at + len(counts)] for at in range(0, len(results), len(counts))]
    return {how: mib.areas_of(part) for how, part in zip(rankings, parts, strict=True)}
