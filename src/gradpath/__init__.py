"""gradpath: find circuits in language models, and measure how much of the behaviour they keep.

>>> import gradpath as gp
>>> sorted(gp.__all__)[:4]
['Circuit', 'GradpathError', 'Scores', 'Task']

Names are loaded when they are first used, so importing the package is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gradpath._version import __version__ as __version__
from gradpath.runtime import set_threads

if TYPE_CHECKING:
    from gradpath.attribution.attribute import attribute as attribute
    from gradpath.attribution.methods import path as path
    from gradpath.circuit import Circuit as Circuit
    from gradpath.circuit import load_circuit as load_circuit
    from gradpath.errors import GradpathError as GradpathError
    from gradpath.evaluation import evaluate as evaluate
    from gradpath.evaluation import patch as patch
    from gradpath.evaluation.ablated import ablated as ablated
    from gradpath.evaluation.result import load_result as load_result
    from gradpath.explanation import explain as explain
    from gradpath.model.load import load_model as load_model
    from gradpath.pipeline import find as find
    from gradpath.scores import Scores as Scores
    from gradpath.scores import load_scores as load_scores
    from gradpath.selection import select as select
    from gradpath.tasks import Task as Task
    from gradpath.tasks import load_task as load_task
    from gradpath.verdict import test as test

_HOMES = {
    "Circuit": "gradpath.circuit",
    "GradpathError": "gradpath.errors",
    "Scores": "gradpath.scores",
    "Task": "gradpath.tasks",
    "ablated": "gradpath.evaluation.ablated",
    "attribute": "gradpath.attribution.attribute",
    "evaluate": "gradpath.evaluation",
    "explain": "gradpath.explanation",
    "find": "gradpath.pipeline",
    "load_circuit": "gradpath.circuit",
    "load_model": "gradpath.model.load",
    "load_result": "gradpath.evaluation.result",
    "load_scores": "gradpath.scores",
    "load_task": "gradpath.tasks",
    "patch": "gradpath.evaluation",
    "path": "gradpath.attribution.methods",
    "select": "gradpath.selection",
    "test": "gradpath.verdict",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gradpath' has no attribute {name!r}")
    set_threads()
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
