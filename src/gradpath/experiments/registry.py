"""Every experiment by the name that users type. Nothing is imported before it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradpath.errors import unknown

if TYPE_CHECKING:
    from gradpath.experiments.bench import Bench
    from gradpath.experiments.grid import Job
    from gradpath.experiments.output import Outcome

# In the order in which ``all`` runs them: what others can build on comes first.
ABOUT = {
    "baselines": "The metric of the whole model, clean and corrupted, on every task.",
    "faithfulness": "Faithfulness (NFS) against sparsity, for every task and method.",
    "runtime": "Faithfulness at 97.5% sparsity, passes counted, and time.",
    "steps": "A heat map of faithfulness over the number of steps and sparsity.",
    "manual": "Precision and recall against the circuits that people found in GPT-2 small.",
    "saturation": "The gradient and the metric along each method's path.",
    "circuit": "A drawing of the Greater-Than circuit at 99.9% sparsity.",
    "exact": "Each method's scores against exact edge patching.",
}


@dataclass(frozen=True)
class Experiment:
    """What fills the cells, what is made of them, and for which models it makes no sense."""

    name: str
    jobs: Callable[[Bench], Sequence[Job]]
    outcome: Callable[[Bench], Outcome]
    refusal: Callable[[Bench], str | None] = lambda bench: None


def find_experiment(name: str) -> Experiment:
    if name not in ABOUT:
        raise unknown("experiment", name, [*ABOUT, "all"])
    experiment: Experiment = importlib.import_module(f"gradpath.experiments.{name}").EXPERIMENT
    return experiment
