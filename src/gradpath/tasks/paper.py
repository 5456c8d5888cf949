"""The paper's own baselines of GPT-2 small, to stand beside ours (its table of baseline performance).

The rows of Capital-Country and Hypernymy are printed here as the paper has them. They look swapped: a
probability difference cannot be 23.4, and 0.25 / -0.28 is small for a logit difference but usual for a
probability difference.
"""

from __future__ import annotations

from dataclasses import dataclass


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
