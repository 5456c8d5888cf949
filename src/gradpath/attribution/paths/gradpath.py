"""GradPath, the paper's method: descend from the clean prompt to the corrupted prompt's output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from gradpath.attribution.methods import Options, Pair, Points, PointView, Unscored, path
from gradpath.errors import warn
from gradpath.model.transformer import Transformer
from gradpath.tasks.task import Pairs

# Literal steps are out of scale where the whole path is longer, or shorter, than the way to x' by this factor.
OUT_OF_SCALE = 1.5


def warn_of_scale(model: Transformer, pairs: Pairs, options: Options) -> None:
    """Say so where unit steps have nothing to do with the distance between the prompts."""
    if options["stride"] != "unit":
        return
    differs = pairs.clean != pairs.corrupted
    clean, corrupted = (model.embed(ids[differs][None].to(model.device))[0] for ids in (pairs.clean, pairs.corrupted))
    squares = torch.zeros(len(pairs), dtype=torch.float64, device="cpu")
    squares.index_add_(0, differs.nonzero()[:, 0], (clean - corrupted).double().square().sum(-1).cpu())
    apart, length = float(squares.sqrt().median()), options["steps"] - options["start"] - options["pin_end"]
    if 0 < apart * OUT_OF_SCALE < length or apart > OUT_OF_SCALE * length > 0:
        warn(
            f"literal GradPath is out of scale here: its {length} steps of length 1 go {length / apart:.3g} times as "
            f"far as the corrupted prompts lie from the clean ones (median {apart:.3g}). Leave stride=unit out for "
            "steps that fit."
        )


def _moves_all(options: Options) -> bool:
    return bool(options["move"] == "all" or (options["move"] == "auto" and options["stride"] == "unit"))


@path("eap-gp", nodes="nap-gp", whole=_moves_all, check=warn_of_scale)
def eap_gp(
    pair: Pair,
    *,
    steps: int = 5,
    start: bool = False,
    pin_end: bool = False,
    norm: Literal["example", "position"] = "example",
    outputs: Literal["last", "all"] = "last",
    stride: Literal["matched", "unit"] = "matched",
    move: Literal["auto", "differing", "all"] = "auto",
) -> Points:
    r"""GradPath: gradient descent from the clean prompt towards the output of the corrupted one.

    The paper's Eq. 7-9 and Algorithm 1, G being the logits::

        gamma_0 = x,   g_j = d ||G(gamma_(j-1)) - G(x')||^2 / d gamma_(j-1)
        gamma_j = gamma_(j-1) - s g_j / ||g_j||,   points gamma_1 .. gamma_k

    The equations have s = 1, a length that means something else in the embedding space of each model, and do not
    lead to x', where the text says that the path ends. By default the path is tied to the prompts instead: the
    steps have length s = ||x - x'|| / k, only positions in which the prompts differ move, and gamma_k = x'.
    ``steps`` is always the number k of scored points. What the paper leaves open are options:

    ``stride``   ``matched`` to the distance of the prompts, as above; or of length 1, as in the equations.
    ``start``    gamma_0 is the first point, so that k = 1 is EAP and, with ``matched``, k = 2 is the mean of clean
                 and corrupted, as the paper says of both. There are k - 1 steps.
    ``pin_end``  with ``unit``, the last point is x' itself. ``matched`` steps always end there.
    ``norm``     lengths are taken over an example's positions and dimensions, or per position. Never over
                 the batch: a score would then depend on the batch size.
    ``outputs``  G is the logits at the last position, or at all real positions.
    ``move``     the positions that move: those that differ, or all; ``auto`` is all with ``unit`` alone.
    """
    axes = (-2, -1) if norm == "example" else (-1,)
    moves = steps - start
    ends = (stride == "matched" or pin_end) and moves > 0  # at x', which is the goal, too: one run serves both
    goal = [x.detach() for x in (yield pair.corrupted if ends else Unscored(pair.corrupted)).outputs(outputs)]
    everywhere = _moves_all({"move": move, "stride": stride})

    def descended(here: PointView) -> Tensor:
        g = downhill(here, goal, outputs)
        if not everywhere:
            g = g * pair.differs[..., None]
        # An example without a gradient has no direction: it stays where it is.
        tiny = torch.finfo(g.dtype).tiny
        step = g / g.norm(dim=axes, keepdim=True).clamp_min(tiny)
        if stride == "matched":
            step = step * (pair.clean - pair.corrupted).norm(dim=axes, keepdim=True) / moves
        moved: Tensor = here.point - step
        return moved

    point: Tensor | Unscored = pair.clean if start else Unscored(pair.clean)
    for _ in range(moves - ends):
        # The run at the point gets no name, so its autograd graph is freed before the next point is run.
        point = descended((yield point))
    yield point


def downhill(here: PointView, goal: Sequence[Tensor], where: Literal["last", "all"]) -> Tensor:
    """The gradient at a point of the squared distance of its output from the goal."""
    gap = sum(((a - b) ** 2).flatten(1).sum(1) for a, b in zip(here.outputs(where), goal, strict=True))
    assert isinstance(gap, Tensor)
    return here.gradient(gap)
