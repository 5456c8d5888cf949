"""The paper's tables and figures, one module each, and its published numbers. Modules are imported when used."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradpath.errors import unknown
from gradpath.registry import Registry

if TYPE_CHECKING:
    from gradpath.grid.runner import Experiment

# Name -> module, description; in the order in which ``all`` runs them: first those whose results others use.
_BUILT_IN = {
    "baselines": ("paper.baselines", "The metric of the full model, clean and corrupted, on every task."),
    "faithfulness": ("grid.faithfulness", "Faithfulness (NFS) against sparsity, for every task and method."),
    "runtime": ("paper.runtime", "Faithfulness at 97.5% sparsity, number of passes, and time."),
    "steps": ("paper.steps", "A heat map of faithfulness over the number of steps and sparsity."),
    "manual": ("paper.manual", "Precision and recall against circuits found by hand in GPT-2 small."),
    "saturation": ("paper.saturation", "The gradient and the metric along each method's path."),
    "circuit": ("paper.circuit", "A drawing of the Greater-Than circuit at 99.9% sparsity."),
    "exact": ("paper.exact", "Each method's scores against exact edge patching."),
}
# Those with models of their own, which ``all`` leaves out.
OWN_MODELS = {"truth": ("paper.truth", "Methods and selections against models whose circuit is known.")}
ABOUT = {name: about for name, (_, about) in {**_BUILT_IN, **OWN_MODELS}.items()}


@dataclass(frozen=True)
class Listed:
    """An experiment that ``gradpath reproduce`` can name: its description, and a function that imports it."""

    about: str
    load: Callable[[], Experiment]


EXPERIMENTS = Registry[Listed]("experiment", [__name__])


def add_experiment(experiment: Experiment, about: str, owner: str) -> None:
    """Register an experiment, for plug-ins.

    Args:
        experiment: The experiment, under its own name.
        about: One sentence for ``gradpath ls experiments``.
        owner: The module that defines it.
    """
    EXPERIMENTS.add(experiment.name, Listed(about, lambda: experiment), owner)


def find_experiment(name: str) -> Experiment:
    """The experiment of that name, or an error that suggests the nearest one."""
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, [*EXPERIMENTS, "all"])
    return EXPERIMENTS[name].load()


def _import(module: str) -> Experiment:
    experiment: Experiment = importlib.import_module(f"gradpath.{module}").EXPERIMENT
    return experiment


for _name, (_module, _about) in {**_BUILT_IN, **OWN_MODELS}.items():
    EXPERIMENTS.add(_name, Listed(_about, lambda module=_module: _import(module)), __name__)  # type: ignore[misc]
