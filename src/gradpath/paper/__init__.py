"""Every experiment by the name that users type. Nothing is imported before it is asked for."""

from __future__ import annotations

import importlib

from gradpath.errors import unknown
from gradpath.grid.runner import Experiment

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


def find_experiment(name: str) -> Experiment:
    if name not in ABOUT:
        raise unknown("experiment", name, [*ABOUT, "all"])
    experiment: Experiment = importlib.import_module(
        f"gradpath.{'grid' if name == 'faithfulness' else 'paper'}.{name}"
    ).EXPERIMENT
    return experiment
