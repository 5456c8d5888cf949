"""The paper's own numbers, read from ``data/paper.json``, for the models of the paper."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from gradpath.model.transformer import Transformer

_GPT2_VOCABULARY = 50257
_NAMES = {"eap": "eap", "eap-ig": "eap-ig", "eap-gp+stride=unit": "eap-gp"}  # a method and its options -> the paper's


@dataclass(frozen=True)
class Published:
    """The paper's numbers for one model."""

    name: str  # on the hub
    tables: Mapping[str, Any]
    source: str

    def sparsities(self, task: str) -> tuple[float, ...]:
        """Those of the paper's table of faithfulness, most sparse first."""
        return tuple(float(sparsity) for sparsity in self.tables["faithfulness"].get(task, {}))

    def faithfulness(self, task: str, sparsity: float, method: str) -> float | None:
        """At a sparsity; None if the paper has none. Its EAP-GP is the literal one, ``eap-gp+stride=unit``."""
        row = self.tables["faithfulness"].get(task, {}).get(f"{sparsity:.4f}", {})
        value: float | None = row.get(_NAMES.get(method))
        return value

    def runtime(self, task: str, method: str) -> Mapping[str, float]:
        """Faithfulness and seconds at 97.5% sparsity; empty if the paper has none."""
        numbers: Mapping[str, float] = self.tables.get("runtime", {}).get(task, {}).get(_NAMES.get(method), {})
        return numbers

    def baseline(self, task: str) -> Mapping[str, float]:
        """The mean metric, ``clean`` and ``corrupted``, and whether it is ``doubtful``; empty if there is none."""
        numbers: Mapping[str, float] = self.tables.get("baselines", {}).get(task, {})
        return numbers


@cache
def _data() -> Any:
    return json.loads((resources.files("gradpath.paper") / "data" / "paper.json").read_text(encoding="utf-8"))


def published(model: Transformer) -> Published | None:
    """The paper's numbers for a model.

    Args:
        model: Any model. GPT-2 small, medium and XL are recognised by their shape.

    Returns:
        Its numbers, or None if the paper has none.
    """
    a = model.arch
    for name, entry in _data()["models"].items():
        same = {"layers": a.n_layers, "heads": a.n_heads, "d_model": a.d_model} == entry["shape"]
        if a.family == "gpt2" and same and len(model.embedding) == _GPT2_VOCABULARY:
            return Published(name, entry, _data()["source"])
    return None
