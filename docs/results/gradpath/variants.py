"""Variants of GradPath that were tried and are not in the library: a plug-in for ``gradpath reproduce --plugin``."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gradpath.attribution.methods import Pair, Points, Unscored, path


@path("gp", whole=lambda options: options["move"] == "all")
def gp(
    pair: Pair,
    *,
    steps: int = 5,
    finer: int = 1,
    end: Literal["pinned", "homing"] = "pinned",
    score: Literal["evenly", "moving"] = "evenly",
    move: Literal["differing", "all"] = "differing",
) -> Points:
    """GradPath from x to x' in k ``finer`` steps, of which k points are scored.

    ``end``: the last point is x' (as in eap-gp), or every step comes nearer, at most (1 - i/n) of the way being left.
    ``score``: every ``finer``-th point, or k points at equal shares of the distance that the logits travel.
    """
    here = yield Unscored(pair.corrupted)
    goal, end_logits = here.goal("last"), here.outputs("last")[0].detach()
    del here
    n, apart = steps * finer, (pair.clean - pair.corrupted).norm(dim=(-2, -1), keepdim=True)
    points, legs, before = [pair.clean], [], None
    for i in range(1, n + 1):
        scored = score == "evenly" and i > 1 and (i - 1) % finer == 0
        here = yield (points[-1] if scored else Unscored(points[-1]))
        logits = here.outputs("last")[0].detach()
        legs += [] if before is None else [(logits - before).norm(dim=-1)]
        before, point = logits, pair.corrupted
        if i < n:
            g = here.gradient(here.distance(goal))
            g = g * pair.differs[..., None] if move == "differing" else g
            tiny = torch.finfo(g.dtype).tiny
            point = here.point - apart / n * g / g.norm(dim=(-2, -1), keepdim=True).clamp_min(tiny)
            if end == "homing":
                gap = point - pair.corrupted
                left = gap.norm(dim=(-2, -1), keepdim=True).clamp_min(tiny)
                point = pair.corrupted + gap * ((1 - i / n) * apart / left).clamp(max=1)
        points.append(point)
        del here
    if score == "evenly":
        yield pair.corrupted
        return
    way = torch.stack([*legs, (end_logits - before).norm(dim=-1)]).cumsum(0)  # (step, batch)
    for j in range(steps):
        yield _at_share(torch.stack(points), way, (j + 0.5) / steps)


def _at_share(points: Tensor, way: Tensor, share: float) -> Tensor:
    """The point of each example's path, (step + 1, batch, pos, d_model), at a share of its way, (step, batch)."""
    goal = share * way[-1]
    leg = (way < goal).sum(0).clamp(max=len(way) - 1)
    rows = torch.arange(way.shape[1])
    end, begin = way[leg, rows], torch.where(leg > 0, way[(leg - 1).clamp(min=0), rows], 0)
    part = torch.where(end > begin, (goal - begin) / (end - begin), 0.5)[:, None, None].to(points.dtype)
    return points[leg, rows] + part * (points[leg + 1, rows] - points[leg, rows])
