"""The seeded order in which pairs are drawn, and the two halves of a task.

Both are the same on every machine and Python version. For a given seed, Python only guarantees the values of
``random.Random.random`` (``shuffle`` and ``sample`` have changed before), so the order uses nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from gradpath.errors import UsageError, unknown

Item = TypeVar("Item")

SPLITS = ("train", "test", "all")


def shuffled(size: int, seed: int, split: str) -> Iterator[int]:
    """The numbers below ``size`` in an order given by seed and split, one at a time.

    A Fisher-Yates shuffle that stores only the numbers that moved: the first hundred of millions cost a hundred steps.
    The split enters so that the same seed draws different templates for train and test.

    >>> list(shuffled(5, seed=0, split="train"))
    [4, 3, 1, 0, 2]
    """
    rng = random.Random(len(SPLITS) * seed + SPLITS.index(split))
    moved: dict[int, int] = {}
    for last in range(size - 1, -1, -1):
        pick = int(rng.random() * (last + 1))
        yield moved.get(pick, pick)
        moved[pick] = moved.pop(last, last)


def half(items: Sequence[Item], split: str) -> Sequence[Item]:
    """Every other entry of a data file: the 1st, 3rd, ... for train, the 2nd, 4th, ... for test.

    This depends on neither seed nor tokenizer, so held-out entries are the same in all runs, and a file that grows at
    its end keeps its halves.
    """
    return items[0::2] if split == "train" else items[1::2]


def check_draw(n: Any, seed: Any, split: Any) -> None:
    """Refuse an invalid number of pairs, seed or split."""
    if split not in SPLITS:
        raise unknown("split", str(split), SPLITS)
    if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):
        raise UsageError(f"the number of pairs must be a whole number above 0: got {n!r}.")
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise UsageError(f"a seed must be a whole number, 0 or above: got {seed!r}.")
