"""Paths on the straight line between the two prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from gradpath.memory import RUN_AT_ONCE
from gradpath.paths.registry import Look, Pair, Points, path


@path("eap")
def eap(pair: Pair) -> Points:
    """Edge attribution patching: the gradient at the clean prompt."""
    yield pair.clean


@path("clean-corrupted")
def clean_corrupted(pair: Pair) -> Points:
    """The mean of the gradients at the clean and at the corrupted prompt."""
    yield pair.clean
    yield pair.corrupted


@path("eap-ig")
def eap_ig(pair: Pair, *, steps: int = 5, end: Literal["clean", "corrupted", "middle"] = "clean") -> Points:
    """Integrated gradients: the straight line x' + (j/k)(x - x'), j = 1..k.

    The paper's Eq. 3 and 5. ``end`` says which end of each of the k stretches is a point: ``clean`` as in the
    paper, ``corrupted`` for j = 0..k-1, as the EAP-IG library has it now, or its ``middle``.
    """
    if end == "middle":
        inner = [(j + 0.5) / steps for j in range(steps)]
    else:
        yield pair.clean if end == "clean" else pair.corrupted
        inner = [j / steps for j in range(1, steps)]
    yield from _stacks(pair, inner)


@path("eap-moves")
def eap_moves(pair: Pair, *, steps: int = 5) -> Points:
    r"""The straight line, sampled where the output moves: at equal shares of the way that the logits travel.

    Where the logits hardly change along the line, gradients say little, and equal distances waste points on
    such stretches. So 2 k looks along the line, forward passes alone, measure how far the logits travel
    between them, and the k points stand at the shares (j - 1/2) / k of that way, for every example its own.
    """
    probes = 2 * steps
    line = pair.clean - pair.corrupted
    before = (yield Look(pair.corrupted)).outputs("last")[0].detach()
    legs = []
    for i in range(1, probes + 1):
        at = pair.clean if i == probes else pair.corrupted + i / probes * line
        here = (yield Look(at)).outputs("last")[0].detach()
        legs.append((here - before).norm(dim=-1))
        before = here
    way = torch.stack(legs).cumsum(0)  # (probe, batch)
    fractions = [_where(way, (j + 0.5) / steps) for j in range(steps)]
    yield from _stacks(pair, [f[:, None, None].to(line.dtype) for f in fractions])


def _stacks(pair: Pair, fractions: Sequence[float | Tensor]) -> Points:
    """Points of the line, several at once: they do not wait for each other."""
    for at in range(0, len(fractions), RUN_AT_ONCE):
        some = fractions[at : at + RUN_AT_ONCE]
        yield torch.stack([pair.corrupted + f * (pair.clean - pair.corrupted) for f in some])


def _where(way: Tensor, share: float) -> Tensor:
    """The fraction of the line, per example, at which this share of the way (probe, batch) is behind."""
    goal = share * way[-1]
    leg = (way < goal).sum(0).clamp(max=len(way) - 1)[None]
    end = way.gather(0, leg)[0]
    begin = torch.where(leg[0] > 0, way.gather(0, (leg - 1).clamp(min=0))[0], 0)
    # Where the output does not move at all, the middle is as good as any.
    part = torch.where(end > begin, (goal - begin) / (end - begin), 0.5)
    return torch.where(way[-1] > 0, (leg[0] + part) / len(way), share)
