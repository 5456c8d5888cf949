"""GradPath, the paper's method: descend from the clean prompt to the corrupted prompt's output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from gradpath.attribution.methods import Pair, Points, PointView, Unscored, path


@path("eap-gp", nodes="nap-gp", whole=lambda options: options["move"] == "all")
def eap_gp(
    pair: Pair,
    *,
    steps: int = 5,
    start: bool = False,
    pin_end: bool = False,
    norm: Literal["example", "position"] = "example",
    outputs: Literal["last", "all"] = "last",
    stride: Literal["unit", "matched"] = "unit",
    move: Literal["all", "differing"] = "all",
) -> Points:
    r"""GradPath: steepest descent from the clean prompt towards the corrupted prompt's output.

    The paper's Eq. 7-9 and Algorithm 1, G being the logits::

        gamma_0 = x,   g_j = d ||G(gamma_(j-1)) - G(x')||^2 / d gamma_(j-1)
        gamma_j = gamma_(j-1) - g_j / ||g_j||,   points gamma_1 .. gamma_k

    The defaults follow the equations literally. What the equations leave open are options; ``steps`` is
    always the number k of scored points:

    ``start``    gamma_0 is a point, so that k = 1 is EAP, as the paper says of it.
    ``pin_end``  the last point is x' itself; with ``start``, k = 2 is the paper's clean and corrupted.
    ``norm``     ||g|| is taken over an example's positions and dimensions, or per position. Never over
                 the batch: a score would then depend on the batch size.
    ``outputs``  G is the logits at the last position, or at all real positions.
    ``stride``   steps of length 1, or of ||x - x'|| / k, which ties them to the model's own scale.
    ``move``     all positions move, or only those in which the prompts differ.
    """
    goal = [logits.detach() for logits in (yield Unscored(pair.corrupted)).outputs(outputs)]
    axes = (-2, -1) if norm == "example" else (-1,)
    length = (pair.clean - pair.corrupted).norm(dim=axes, keepdim=True) / steps if stride == "matched" else 1.0

    def descended(here: PointView) -> Tensor:
        g = downhill(here, goal, outputs)
        if move == "differing":
            g = g * pair.differs[..., None]
        # An example without a gradient has no direction: it stays where it is.
        tiny = torch.finfo(g.dtype).tiny
        moved: Tensor = here.point - length * g / g.norm(dim=axes, keepdim=True).clamp_min(tiny)
        return moved

    point: Tensor | Unscored = pair.clean if start else Unscored(pair.clean)
    for _ in range(steps - start - pin_end):
        # The run at the point gets no name, so its autograd graph is freed before the next point is run.
        point = descended((yield point))
    yield point
    if pin_end and steps > start:
        yield pair.corrupted


def downhill(here: PointView, goal: Sequence[Tensor], where: Literal["last", "all"]) -> Tensor:
    """The gradient at a point of the squared distance of its output from the goal."""
    gap = sum(((a - b) ** 2).flatten(1).sum(1) for a, b in zip(here.outputs(where), goal, strict=True))
    assert isinstance(gap, Tensor)
    return here.gradient(gap)
