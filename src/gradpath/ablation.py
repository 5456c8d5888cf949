r"""Ablations: what stands in for a node's write over an edge that is outside of the circuit.

``corrupted`` is what the node writes on the corrupted prompt, x'_u, and differs from example to example. The
others are the same for all of them, and take the place of x'_u wherever it stands::

    zero             a_u = 0
    mean             a_u = mean of x_u over the clean prompts of a data set, all real positions alike
    mean-positional  a_u = that mean at each position of its own; behind the longest prompt, the mean over all

    score(u -> v)    sum of (x_u - a_u) . mean over path points of dL/d in_v
    in_v             sum over edges of  x_u  if the edge is in the circuit,  else  a_u

The path of a method stays what it is, a walk in the space of embeddings between the two prompts. "None in" is
the run in which every node writes a_u: faithfulness is 0 there, so its metric takes the place of the
corrupted run's. Before the first token in which the prompts differ, x_u - a_u is not zero: all positions
count, and none can be skipped. Biases and positional embeddings belong to no edge and stay, whatever is
ablated (the EAP-IG library counts an MLP's output bias as part of its write, so its ``zero`` differs there
for models that have one).

A head's write is linear in ``LayerRun.written``, so the mean of that, d_head numbers, is all that is kept of
it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from gradpath import ranks
from gradpath.errors import unknown
from gradpath.memory import batch_that_fits, in_shared_batches
from gradpath.model.transformer import LayerRun, Run, Transformer, beside
from gradpath.nonfinite import Places, of_prompts, watched
from gradpath.tasks.task import Pairs, Task, encode

CORRUPTED = "corrupted"
ABLATIONS = {
    CORRUPTED: "What the node writes on the corrupted prompt.",
    "zero": "Nothing.",
    "mean": "The mean of what it writes on a data set's clean prompts, over all positions.",
    "mean-positional": "The same mean, position by position.",
}


@dataclass(frozen=True)
class Ablation:
    """What every node writes instead: a row per position, of which the last serves all that follow."""

    input: Tensor  # (row, d_model)
    heads: list[Tensor]  # per layer (row, head, d_head): ``written``
    mlps: list[Tensor]  # per layer (row, d_model), with the bias

    def run(self, model: Transformer, batch: int, length: int) -> tuple[Tensor, Run]:
        """What ``input`` writes, and the run of it, with every node writing what the ablation says.

        Targets read what follows from that; nothing of attention or of an MLP is computed.
        """
        at = torch.arange(length, device=model.device).clamp(max=len(self.input) - 1)
        x, *rest = (part[at].expand(batch, *part[at].shape) for part in (self.input, *self.heads, *self.mlps))
        place, resid, layers = model.place(0, length), model.with_positions(x, 0), list[LayerRun]()
        for index, layer in enumerate(model.layers):
            here = layer.w_qkv
            written, mlp_out = (beside(rest[i], here) for i in (index, len(model.layers) + index))
            resid, place = beside(resid, here), place.beside(here)
            y, rstd = model.read_norm(resid)
            q, k, v = model.project(layer, y)
            after = resid + F.linear(written.flatten(-2), layer.w_write, layer.b_o)
            mlp_in = resid if model.arch.parallel else after
            own = model.keys_and_values(layer, k, v, place)
            layers.append(LayerRun(resid, y, rstd, q, k, v, written, written, mlp_in, mlp_out, own))
            resid = after + mlp_out
        return x, Run(layers, beside(resid, x))


def ablation_of(
    name: str, model: Transformer, data: Task, *, batch_size: int, memory: int | None = None
) -> Ablation | None:
    """The ablation of that name, means being over the clean prompts of ``data``; None for the corrupted."""
    if name not in ABLATIONS:
        raise unknown("ablation", name, ABLATIONS)
    if name == CORRUPTED:
        return None
    if name == "zero":
        return _zero(model)
    return _mean(model, data, batch_size, memory, by_position=name == "mean-positional")


def for_ablation(pairs: Pairs, ablation: Ablation | None) -> Pairs:
    """The pairs, all of whose positions count unless it is the corrupted prompt that stands in."""
    return pairs if ablation is None else replace(pairs, first=torch.zeros_like(pairs.first))


def _zero(model: Transformer) -> Ablation:
    a, none = model.arch, model.embedding.new_zeros(1, model.arch.d_model)
    return Ablation(
        input=none,
        heads=[none.new_zeros(1, a.n_heads, a.d_head) for _ in model.layers],
        # A bias belongs to no edge; where a norm follows, it is a part of what is written.
        mlps=[
            none if x.b_out is None or x.mlp_gain is not None else beside(x.b_out[None], none)
            for x in model.layers
        ],
    )


@torch.no_grad()
def _mean(
    model: Transformer, data: Task, batch_size: int, memory: int | None, *, by_position: bool
) -> Ablation:
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
        layers = run.layers
        real = torch.arange(x.shape[1], device=model.device) <= batch.last[:, None]  # (batch, pos)
        for total, part in zip(
            sums, [x, *(run.written for run in layers), *(run.mlp_out for run in layers)], strict=True
        ):
            mask = real.view(*real.shape, *[1] * (part.ndim - 2))
            total[: x.shape[1]] += (beside(part, x).double() * mask).sum(0)
        count[: x.shape[1]] += real.sum(0)
        return run.final_in

    def places(single: Pairs) -> Places:
        return of_prompts(model, data.metric, single)

    work = watched(add, lambda final: [final], model=model, task=data, doing="the mean", places=places)
    size = batch_that_fits(model, pairs, batch_size, memory)
    for _ in in_shared_batches(work, pairs, size, asked=lambda: model.identity):
        pass
    sums, count = [ranks.add_up(total) for total in sums], ranks.add_up(count)

    def mean(total: Tensor) -> Tensor:
        everywhere = total.sum(0, keepdim=True) / count.sum()
        each = total / count.view(-1, *[1] * (total.ndim - 1))
        return (torch.cat([each, everywhere]) if by_position else everywhere).to(model.dtype)

    means = [mean(total) for total in sums]
    return Ablation(means[0], means[1 : 1 + a.n_layers], means[1 + a.n_layers :])
