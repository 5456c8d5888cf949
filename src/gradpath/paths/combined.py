"""Paths made of other paths."""

from __future__ import annotations

from typing import Literal

from gradpath.paths.descent import eap_gp
from gradpath.paths.line import eap_ig, eap_moves
from gradpath.paths.registry import Pair, Points, path


@path("eap-average")
def eap_average(pair: Pair, *, steps: int = 5) -> Points:
    """The mean of three paths of k points: the line, the line where the output moves, and GradPath.

    GradPath with matched steps in the differing positions, so that no path leaves the space between the
    prompts by much. All three have the same number of points, so this is the mean of their scores.
    """
    yield from eap_ig(pair, steps=steps)
    yield from eap_moves(pair, steps=steps)
    yield from eap_gp(pair, steps=steps, stride="matched", move="differing")


@path("eap-integral", increments=True)
def eap_integral(pair: Pair, *, steps: int = 5, along: Literal["line", "descent"] = "line") -> Points:
    """The path integral proper: gradients times what the nodes' writes change by along the path itself.

    ``along`` the straight line from x to x' in k stretches, or GradPath with matched steps in the differing
    positions, begun at x and ended at x', in k stretches as well.
    """
    if along == "descent":
        yield from eap_gp(pair, steps=steps + 1, start=True, pin_end=True, stride="matched", move="differing")
        return
    yield pair.clean
    for j in range(1, steps):
        yield pair.clean + j / steps * (pair.corrupted - pair.clean)
    yield pair.corrupted
