r"""The path integral of an edge: gradients times what the nodes' own writes change by along the path.

The methods that average gradients multiply them by x_u - x'_u, whatever the path. That is the path's own
change of x_u only if u writes along the path as along a straight line, and it does for ``input`` on the
straight line alone. The path integral takes every stretch with its own change::

    score(u -> v) = sum over positions, stretches j of
                    (x_u(p_j) - x_u(p_(j+1))) . (g_v(p_j) + g_v(p_(j+1))) / 2,     g_v(p) = dL/d in_v (p)

which, put in order of the points, is at each of them half of what u writes at the point before less what it
writes at the point after (at the ends the end itself stands for the missing one). One contraction a point.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from gradpath.contraction import Reads, Writes
from gradpath.model.transformer import widened
from gradpath.paths import Path
from gradpath.visit import Ground, Standing, walk

Written = list[Tensor]  # (batch, pos, ...) of input, then of every layer's heads, then of every MLP


def terms(ground: Ground, path: Path, options: dict[str, Any]) -> Iterator[tuple[Writes, Reads]]:
    """For each scored point half of the change of all writes around it, and the gradients there."""
    written: list[Written] = []  # at the last two points
    waiting: Reads | None = None  # the gradients at the last point, until it is known what comes next
    for visit, scored in walk(ground, path, options):
        if scored:
            written = [*written, _written(visit)][-3:]
            if waiting is not None:
                yield _half_change(written[0], written[-1]), waiting
            waiting = Reads()
            waiting.add(ground.model, visit.run, ground.judge(visit))
            ground.passes.backward += 1
        del visit  # and with it its graph, before the next one is made
    if waiting is not None:
        yield _half_change(written[-2:][0], written[-1]), waiting


def _written(visit: Standing) -> Written:
    layers = visit.run.layers
    parts = [visit.suffix, *(layer.written for layer in layers), *(layer.mlp_out for layer in layers)]
    return [part.detach() for part in parts]


def _half_change(before: Written, after: Written) -> Writes:
    halves = [((widened(a) - widened(b)) / 2).flatten(0, 1) for a, b in zip(before, after, strict=True)]
    n_layers = len(halves) // 2
    heads = [half.transpose(0, 1).contiguous() for half in halves[1 : 1 + n_layers]]
    return Writes(halves[0], heads, halves[1 + n_layers :])
