"""The paper's tables and figures, and its published numbers. The modules of experiments are imported on first use."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from gradpath.defaults import PAPER_GP
from gradpath.errors import unknown

if TYPE_CHECKING:
    from gradpath.model.transformer import Transformer
    from gradpath.study.outcome import Experiment

# Name -> module, description; in the order in which ``all`` runs them. Results are computed before they are reused.
_BUILT_IN = {
    "baselines": ("paper.tables", "The metric of the full model, clean and corrupted, on every task."),
    "faithfulness": ("study.faithfulness", "Faithfulness (NFS) against sparsity, for every task and method."),
    "runtime": ("paper.tables", "Faithfulness at 97.5% sparsity, number of passes, and time."),
    "steps": ("paper.steps", "A heat map of faithfulness over the number of steps and sparsity."),
    "manual": ("paper.circuits", "Precision and recall against circuits found by hand in GPT-2 small."),
    "saturation": ("paper.saturation", "The gradient and the metric along each method's path."),
    "circuit": ("paper.circuits", "A drawing of the Greater-Than circuit at 99.9% sparsity."),
}
# Experiments that bring their models; ``all`` leaves them out.
OWN_MODELS = {"truth": ("paper.truth", "Methods and selections against models whose circuit is known.")}
_GPT2_VOCABULARY = 50257
_NAMES = {"eap": "eap", "eap-ig": "eap-ig", PAPER_GP: "eap-gp"}  # a method and its options -> the paper's
ABOUT = {name: about for name, (_, about) in (_BUILT_IN | OWN_MODELS).items()}


def find_experiment(name: str) -> Experiment:
    """The experiment of that name, or an error that suggests the nearest one."""
    if name not in ABOUT:
        raise unknown("experiment", name, [*ABOUT, "all"])
    module, _ = (_BUILT_IN | OWN_MODELS)[name]
    experiment: Experiment = getattr(importlib.import_module(f"gradpath.{module}"), name.upper())
    return experiment


@dataclass(frozen=True)
class Published:
    """The paper's numbers for one model."""

    name: str  # on the hub
    tables: Mapping[str, Any]
    source: str

    def sparsities(self, task: str) -> tuple[float, ...]:
        """The sparsities of the paper's table of faithfulness, most sparse first."""
        return tuple(float(sparsity) for sparsity in self.tables["faithfulness"].get(task, {}))

    def faithfulness(self, task: str, sparsity: float, method: str) -> float | None:
        """The faithfulness at a sparsity, if the paper has it. Its EAP-GP is ``PAPER_GP``."""
        row = self.tables["faithfulness"].get(task, {}).get(f"{sparsity:.4f}", {})
        value: float | None = row.get(_NAMES.get(method))
        return value

    def runtime(self, task: str, method: str) -> Mapping[str, float]:
        """Faithfulness and seconds at 97.5% sparsity; empty if the paper has none."""
        numbers: Mapping[str, float] = self.tables.get("runtime", {}).get(task, {}).get(_NAMES.get(method), {})
        return numbers

    def baseline(self, task: str) -> Mapping[str, float]:
        """The mean metric, ``clean`` and ``corrupted``, and whether it is ``doubtful``; empty if the paper has none."""
        numbers: Mapping[str, float] = self.tables.get("baselines", {}).get(task, {})
        return numbers


@cache
def _data() -> Any:
    return json.loads((resources.files("gradpath.paper") / "data" / "paper.json").read_text(encoding="utf-8"))


def published(model: Transformer) -> Published | None:
    """The paper's numbers for GPT-2 small, medium and XL, recognised by their shape; None for other models."""
    a = model.arch
    for name, entry in _data()["models"].items():
        same = {"layers": a.n_layers, "heads": a.n_heads, "d_model": a.d_model} == entry["shape"]
        if a.family == "gpt2" and same and len(model.embedding) == _GPT2_VOCABULARY:
            return Published(name, entry, _data()["source"])
    return None
