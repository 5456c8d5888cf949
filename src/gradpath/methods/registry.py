"""Registering a method that is no path.

It is a function of one batch, standing on its ``Ground``: the clean and the corrupted run, what the nodes
write in the one and not in the other (``ground.writes``), the metric. It returns the scores of all edges,
(source, target), summed over the batch's examples, and adds the passes that it makes to ``ground.passes``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from gradpath.method import METHODS, Method

Scorer = Callable[..., Tensor]


def method(name: str, **asked: Any) -> Callable[[Scorer], Scorer]:
    """Register a function as the method ``name``: its first parameter is the ``Ground``, then its options."""

    def register(score: Scorer) -> Scorer:
        METHODS[name] = Method(name, score, **asked)
        return score

    return register
