"""The paper's own figures, read from ``data/paper.json``, for models that are the paper's.

The paper's own baselines of GPT-2 small, to stand beside ours (its table of baseline performance).

The rows of Capital-Country and Hypernymy are printed here as the paper has them. They look swapped: a
probability difference cannot be 23.4, and 0.25 / -0.28 is small for a logit difference but usual for a
probability difference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from gradpath.model.transformer import Transformer

_GPT2_VOCABULARY = 50257


@dataclass(frozen=True)
class Published:
    """What the paper says of one model."""

    name: str  # as the hub has it
    title: str
    tables: Mapping[str, Any]
    source: str

    def sparsities(self, task: str) -> tuple[float, ...]:
        """Those of the paper's table of faithfulness, most sparse first."""
        return tuple(float(sparsity) for sparsity in self.tables["faithfulness"].get(task, {}))

    def faithfulness(self, task: str, sparsity: float, method: str) -> float | None:
        row = self.tables["faithfulness"].get(task, {}).get(f"{sparsity:.4f}", {})
        value: float | None = row.get(method)
        return value

    def runtime(self, task: str, method: str) -> Mapping[str, float]:
        """Faithfulness and seconds at 97.5% sparsity, if the paper has them."""
        found: Mapping[str, float] = self.tables.get("runtime", {}).get(task, {}).get(method, {})
        return found


@cache
def _data() -> Any:
    return json.loads((resources.files("gradpath.paper") / "data" / "paper.json").read_text(encoding="utf-8"))


def published(model: Transformer) -> Published | None:
    """The paper's figures if the model is GPT-2 small, medium or XL: by its shape, whatever its folder."""
    a = model.arch
    for name, entry in _data()["models"].items():
        shape = entry["shape"]
        same = (a.n_layers, a.n_heads, a.d_model) == (shape["layers"], shape["heads"], shape["d_model"])
        if a.family == "gpt2" and same and len(model.embedding) == _GPT2_VOCABULARY:
            return Published(name, entry["title"], entry, _data()["source"])
    return None


@dataclass(frozen=True)
class Baseline:
    """A model's mean metric on a task's clean and corrupted prompts."""

    clean: float
    corrupted: float
    doubtful: bool = False  # cannot be what its column says


PAPER_BASELINES: dict[str, dict[str, Baseline]] = {
    "gpt2": {
        "ioi": Baseline(3.80, 0.03),
        "sva": Baseline(0.154, -0.157),
        "gender-bias": Baseline(0.88, -3.22),
        "hypernymy": Baseline(23.43, -3.482, doubtful=True),
        "capital-country": Baseline(0.25, -0.28, doubtful=True),
        "greater-than": Baseline(0.814, -0.456),
    }
}
