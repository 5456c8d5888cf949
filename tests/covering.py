"""Which of many combinations are tried: families, methods, ablations and sizes are independent of each other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from small_models import TINY

FAMILIES = sorted(TINY)
# One of every kind of block. The others differ from these in what is read from a checkpoint and in positions,
# and their logits are compared with transformers, and a method and a circuit with the reference, in every run.
BLOCKS = ("gpt2", "llama-grouped", "neox", "gemma2", "olmo2", "qwen2-moe", "mpt", "stablelm-parallel")
# Of these the ones with the most parts, for what follows from something that all of them are tested for.
FEW_BLOCKS = ("llama-grouped", "gemma2", "qwen2-moe", "stablelm-parallel")


def some(values: Sequence[Any], quick: Sequence[Any]) -> list[Any]:
    """All values, of which only those named are tried in a quick run."""
    return [pytest.param(x, marks=[] if x in quick else pytest.mark.slow) for x in values]


def covering(first: Sequence[Any], *others: Sequence[Any], quick: Sequence[Any] | None = None) -> list[Any]:
    """A quick run has every value of the first and every combination of the others, in as few cases as there can be.

    A slow run has each of them once more, paired differently. ``quick`` are the values of the first that a quick run
    may take.
    """
    combined = list(itertools.product(*others))

    def cases(values: Sequence[Any], shift: int) -> list[tuple[Any, ...]]:
        n = max(len(values), len(combined))
        return [(values[i % len(values)], *combined[(i + shift) % len(combined)]) for i in range(n)]

    taken = cases(first if quick is None else quick, 0)
    further = [one for one in cases(first, 1) if one not in taken]
    return [pytest.param(*one) for one in taken] + [pytest.param(*one, marks=pytest.mark.slow) for one in further]


def families(*quick: str) -> Any:
    """The fixture ``model`` in every kind of block, of which only some are quick."""
    return pytest.mark.parametrize("model", some(sorted({*quick, *BLOCKS}), quick or BLOCKS), indirect=True)
