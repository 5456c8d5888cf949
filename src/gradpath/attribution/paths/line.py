"""Paths on the straight line between the two prompts: EAP, clean-corrupted, EAP-IG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from gradpath.attribution.methods import Pair, Points, path
from gradpath.limits import RUN_AT_ONCE


@path("eap", nodes="nap", at_clean=lambda _: True)
def eap(pair: Pair) -> Points:
    """Edge attribution patching: the gradient at the clean prompt."""
    yield pair.clean


@path("clean-corrupted")
def clean_corrupted(pair: Pair) -> Points:
    """The mean of the gradients at the clean and at the corrupted prompt."""
    yield pair.clean
    yield pair.corrupted


@path("eap-ig", nodes="nap-ig", at_clean=lambda options: options["steps"] == 1 and options["end"] == "clean")
def eap_ig(pair: Pair, *, steps: int = 5, end: Literal["clean", "corrupted", "middle"] = "clean") -> Points:
    """Integrated gradients: the straight line x' + (j/k)(x - x'), j = 1..k.

    The paper's Eq. 3 and 5. ``end`` is the end of each of the k stretches that is a point: ``clean`` as in the
    paper, ``corrupted`` for j = 0..k-1 as in the current EAP-IG library, or the ``middle``.
    """
    if end == "middle":
        inner = [(j + 0.5) / steps for j in range(steps)]
    else:
        yield pair.clean if end == "clean" else pair.corrupted
        inner = [j / steps for j in range(1, steps)]
    yield from stacks(pair, inner)


def stacks(pair: Pair, fractions: Sequence[float | Tensor]) -> Points:
    """Points of the line in stacks: they do not depend on each other, and a long line never exists as a whole."""
    for at in range(0, len(fractions), RUN_AT_ONCE):
        some = fractions[at : at + RUN_AT_ONCE]
        yield torch.stack([pair.corrupted + f * (pair.clean - pair.corrupted) for f in some])
