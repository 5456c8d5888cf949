"""Which of many combinations the quick tests take. The slow tests take all of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from small_models import TINY

FAMILIES = sorted(TINY)
# One of every kind of block. The others differ from these in what is read from a checkpoint and in positions,
# and their logits are held against transformers, and one method and circuit against the reference, in every run.
BLOCKS = ("gpt2", "llama-grouped", "neox", "gemma2", "olmo2", "qwen2-moe", "mpt", "stablelm-parallel")
# Of these the ones with the most parts, for what follows from something that all of them are tested for.
FEW_BLOCKS = ("llama-grouped", "gemma2", "qwen2-moe", "stablelm-parallel")


def some(values: Sequence[Any], quick: Sequence[Any]) -> list[Any]:
    """All values, of which only those named are tried in a quick run."""
    return [pytest.param(x, marks=[] if x in quick else pytest.mark.slow) for x in values]


def covering(first: Sequence[Any], *others: Sequence[Any], quick: Sequence[Any] | None = None) -> list[Any]:
    """All combinations. A quick run has every value of the first and every combination of the others.

    So it has as many cases as the longer of the two. ``quick`` are the values of the first that it may take.
    """
    named = list(first if quick is None else quick)
    combined = list(itertools.product(*others))
    cases = range(max(len(named), len(combined)))
    taken = {(named[i % len(named)], *combined[i % len(combined)]) for i in cases}
    every = itertools.product(first, *others)
    return [pytest.param(*one, marks=[] if one in taken else pytest.mark.slow) for one in every]


def families(*quick: str) -> Any:
    """The fixture ``model`` in all families, of which only some, one of every kind of block, are quick."""
    return pytest.mark.parametrize("model", some(FAMILIES, quick or BLOCKS), indirect=True)
