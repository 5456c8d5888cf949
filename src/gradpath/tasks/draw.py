"""Which pairs are drawn: seeded order, and the halves that are kept apart.

Both must be the same on every machine and Python version. Of ``random.Random`` only ``random()`` is
promised to stay as it is for a given seed (``shuffle`` and ``sample`` have changed before), so the
order is made from that alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from gradpath.errors import UsageError, unknown

Item = TypeVar("Item")

SPLITS = ("train", "test", "all")


def shuffled(size: int, seed: int, split: str) -> Iterator[int]:
    """The numbers below ``size`` in an order that seed and split decide, one at a time.

    Fisher and Yates' shuffle that remembers only the numbers that moved: the first hundred of
    millions cost a hundred steps. The split enters so that the same seed does not draw the same
    templates in the same order for train and test.

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

    No seed and no tokenizer enters, so what is held out for one run is held out for all of them,
    and a file that grows at its end keeps its halves.
    """
    return items[0::2] if split == "train" else items[1::2]


def check_draw(n: Any, seed: Any, split: Any) -> None:
    """Refuse a number, seed or split that could never work."""
    if split not in SPLITS:
        raise unknown("split", str(split), SPLITS)
    if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):
        raise UsageError(f"the number of pairs must be a whole number above 0: got {n!r}.")
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise UsageError(f"a seed must be a whole number, 0 or above: got {seed!r}.")
