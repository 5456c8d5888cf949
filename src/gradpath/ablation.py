r"""Ablations: what an edge outside the circuit carries instead of what its node writes.

``corrupted`` is what the node writes on the corrupted prompt, x'_u, which is different for every example. The
others are the same for all examples, and replace x'_u everywhere::

    zero             a_u = 0
    mean             a_u = mean of x_u over the clean prompts of a data set and all real positions
    mean-positional  a_u = that mean for each position; behind the longest prompt, the mean over all

    score(u -> v)    sum of (x_u - a_u) . mean over path points of dL/d in_v
    in_v             sum over edges of  x_u  if the edge is in the circuit,  else  a_u

A method's path does not change: it lies in the space of embeddings between the two prompts. A circuit without
edges is the run in which every node writes a_u: its metric replaces the metric of the corrupted run, and
faithfulness is 0 there. Before the first token in which the prompts differ, x_u - a_u is not zero, so all
positions count. Biases and positional embeddings belong to no edge and are never ablated (the EAP-IG library
counts an MLP's output bias as part of what it writes, so its ``zero`` differs for models that have one).

What a head writes is linear in ``LayerRun.written``, so only the mean of that, d_head numbers, is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from gradpath import defaults
from gradpath.model.transformer import LayerRun, Run, Transformer
from gradpath.registry import Registry, first_line, owner_of
from gradpath.runtime import distributed
from gradpath.sweep import Limits, sweep
from gradpath.tasks.task import Pairs, Task, encode

CORRUPTED = defaults.ABLATION


@dataclass(frozen=True)
class Ablation:
    """What every ablated node writes: one row per position; the last row is also for all later positions."""

    input: Tensor  # (row, d_model)
    heads: list[Tensor]  # per layer (row, head, d_head): ``written``
    mlps: list[Tensor]  # per layer (row, d_model), with the bias

    def run(self, model: Transformer, batch: int, length: int) -> tuple[Tensor, Run]:
        """What ``input`` writes, and a run in which every node writes its ablated value.

        Targets read the sum of these; neither attention nor an MLP is computed.
        """
        at = torch.arange(length, device=model.device).clamp(max=len(self.input) - 1)
        x, *rest = (part[at].expand(batch, *part[at].shape) for part in (self.input, *self.heads, *self.mlps))
        info, resid, layers = model.position_info(0, length), model.with_positions(x, 0), list[LayerRun]()
        for index, layer in enumerate(model.layers):
            written, mlp_out = rest[index], rest[len(model.layers) + index]
            y, rstd = model.read_norm(resid)
            q, k, v = model.project(layer, y)
            after = resid + F.linear(written.flatten(-2), layer.w_write, layer.b_o)
            mlp_in = resid if model.arch.parallel else after
            keys_values = model.keys_and_values(layer, k, v, info)
            layers.append(LayerRun(resid, y, rstd, q, k, v, written, written, mlp_in, mlp_out, keys_values))
            resid = after + mlp_out
        return x, Run(layers, resid)


# From the model, the task over whose clean prompts means are taken, and the limits. None is the corrupted prompt.
MakeAblation = Callable[[Transformer, Task, Limits], Ablation | None]


@dataclass(frozen=True)
class NamedAblation:
    """A registered ablation: its line in ``gradpath ls ablations``, and the function that makes it."""

    about: str
    make: MakeAblation


ABLATIONS = Registry[NamedAblation]("ablation", [__name__])


def ablation(name: str) -> Callable[[MakeAblation], MakeAblation]:
    """Register a function as an ablation.

    The function takes the model, the examples and the ``Limits``, and returns an ``Ablation``. The first line of its
    docstring is what ``gradpath ls ablations`` shows.
    """

    def register(make: MakeAblation) -> MakeAblation:
        ABLATIONS.add(name, NamedAblation(first_line(make), make), owner_of(make))
        return make

    return register


def ablation_of(name: str, model: Transformer, data: Task, limits: Limits = Limits()) -> Ablation | None:
    """The ablation of that name, with means over the clean prompts of ``data``; None for ``corrupted``."""
    return ABLATIONS.find(name).make(model, data, limits)


def all_positions(pairs: Pairs, ablation: Ablation | None) -> Pairs:
    """The pairs, with all positions counted unless the ablation is ``corrupted`` (None)."""
    return pairs if ablation is None else replace(pairs, first=torch.zeros_like(pairs.first))


def _zero(model: Transformer) -> Ablation:
    a, none = model.arch, model.embedding.new_zeros(1, model.arch.d_model)
    return Ablation(
        input=none,
        heads=[none.new_zeros(1, a.n_heads, a.d_head) for _ in model.layers],
        # A bias belongs to no edge; where a norm follows, it is a part of what is written.
        mlps=[none if x.b_out is None or x.mlp_gain is not None else x.b_out[None] for x in model.layers],
    )


@torch.no_grad()
def _mean(model: Transformer, data: Task, limits: Limits, *, by_position: bool) -> Ablation:
    """Sums in float64 over the real positions, one forward pass per batch."""
    pairs = encode(data, model.tokenizer)
    a, length = model.arch, int(pairs.last.max()) + 1
    shapes = [(a.d_model,), *[(a.n_heads, a.d_head)] * a.n_layers, *[(a.d_model,)] * a.n_layers]
    sums = [torch.zeros(length, *shape, dtype=torch.float64, device=model.device) for shape in shapes]
    count = torch.zeros(length, dtype=torch.float64, device=model.device)

    def add(batch: Pairs) -> Tensor:
        batch = batch.to(model.device)
        x = model.embed(batch.clean)
        run = model.run(x)
        parts = [x, *(layer.written for layer in run.layers), *(layer.mlp_out for layer in run.layers)]
        real = torch.arange(x.shape[1], device=model.device) <= batch.last[:, None]  # (batch, pos)
        for total, part in zip(sums, parts, strict=True):
            mask = real.view(*real.shape, *[1] * (part.ndim - 2))
            total[: x.shape[1]] += (part.double() * mask).sum(0)
        count[: x.shape[1]] += real.sum(0)
        return run.final_in

    batches, bar = limits.batches(model, pairs), "taking the means of activations"
    for _ in sweep(model, data, pairs, batches, add, doing="the mean", bar=bar):
        pass
    sums, count = [distributed.all_sum(total) for total in sums], distributed.all_sum(count)

    def mean(total: Tensor) -> Tensor:
        everywhere = total.sum(0, keepdim=True) / count.sum()
        each = total / count.view(-1, *[1] * (total.ndim - 1))
        return (torch.cat([each, everywhere]) if by_position else everywhere).to(model.dtype)

    means = [mean(total) for total in sums]
    return Ablation(means[0], means[1 : 1 + a.n_layers], means[1 + a.n_layers :])


_BUILT_IN: dict[str, MakeAblation] = {
    CORRUPTED: lambda model, data, limits: None,
    "zero": lambda model, data, limits: _zero(model),
    "mean": lambda model, data, limits: _mean(model, data, limits, by_position=False),
    "mean-positional": lambda model, data, limits: _mean(model, data, limits, by_position=True),
}
for _name, _about in defaults.ABLATIONS.items():
    ABLATIONS.add(_name, NamedAblation(_about, _BUILT_IN[_name]), __name__)
