"""The two tests that ``find`` makes of every circuit, from what it measures and a few runs of random circuits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradpath.evaluation.result import Result
from gradpath.tasks.task import Task
from gradpath.verdict.result import Check
from gradpath.verdict.statistics import LEVEL, p_value
from gradpath.verdict.tests import equivalence

FEWEST = 10  # examples: with fewer, no test could reject anything
FEW, NO_BEHAVIOUR = 12, 0.01  # examples for what needs few; a share of the whole behaviour
QUICK = 19  # random circuits: with fewer, no circuit could be better than chance at 5%


def few_examples(task: Task, result: Result) -> Task:
    """The first examples, as many as it takes to have a behaviour: a metric such as accuracy has few values."""
    n, behaviour = FEW, (result.clean_values - result.corrupted_values).double()
    while n < len(task) and abs(float(behaviour[:n].mean())) < NO_BEHAVIOUR * abs(float(behaviour.mean())):
        n *= 2
    return task[:n]


def quick_checks(result: Result, few: Result, random: Sequence[Result]) -> dict[str, Check]:
    """Test whether a circuit is better than chance, and equivalent to the model.

    Args:
        result: The circuit on all examples.
        few: The circuit on the examples that the random circuits ran on.
        random: Circuits of random paths, of the same size, on these examples.

    Returns:
        The tests of sufficiency, against random paths alone, and of equivalence.
    """
    n = len(result.clean_values)
    if n < FEWEST:
        reason = f"needs at least {FEWEST} examples to measure on: there {'is' if n == 1 else 'are'} {n}"
        return dict.fromkeys(("sufficiency", "equivalence"), Check(None, None, None, reason))
    errors = [other.error for other in random]
    p = p_value(few.error, errors)
    about = (
        f"error {result.error:.3f} (faithfulness {result.faithfulness:.3f}); {len(random)} circuits of random paths "
        f"with as many edges, on {len(few.clean_values)} examples, {min(errors):.3f} to {max(errors):.3f}"
    )
    median = float(torch.tensor(errors, device="cpu").median())
    sufficiency = Check(result.error, median, p <= LEVEL, about, {"faithfulness": result.faithfulness, "p": p})
    return {"sufficiency": sufficiency, "equivalence": equivalence(result)}
