r"""Node scores: what the metric loses, to first order, when everything that a node writes is corrupted.

    score(u) = mean over examples of  sum over positions of
               (x_u - x'_u) . mean over path points p of  dL/d (what u writes to the residual stream) (p)

All targets that read u read the same stream, so this is the sum of the scores of u's out-edges. It needs the
gradients at the residual stream alone: no targets, and no contraction of all sources with all targets.

Node scores are kept as ``Scores`` of edges, so that all that is done with those can be done with them. An
edge is in a circuit when both of its nodes are, so it has the score of the one that comes in later, the
smaller in size. ``logits`` is always in: an edge into it has its source's score, and that column is all node
scores. ``input`` is always in, too: an edge out of it has its target's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from gradpath.attribution.batch import Writes
from gradpath.attribution.contraction import gradients_at, summed
from gradpath.graph import Graph
from gradpath.model.transformer import Run, Transformer, at_least_float32


@dataclass
class NodeReads:
    """The sum over points of the gradients at the residual stream, where nodes write to it."""

    n_points: int = 0
    input: Tensor | None = None  # (row, d_model)
    heads: list[Tensor] = field(default_factory=list)  # per layer (row, d_model)
    mlps: list[Tensor] = field(default_factory=list)  # per layer (row, d_model)

    def add(self, model: Transformer, run: Run, metric: Tensor, *, retain: bool = True) -> None:
        """Add the gradients of ``metric``, (point, batch), at the residual stream of the run that gave it."""
        streams = [*(layer.attn_in for layer in run.layers), run.final_in]
        taps = [*streams, *(layer.mlp_in for layer in run.layers)]
        first, *rest = (summed(x, len(metric)) for x in gradients_at(metric, taps, retain=retain))
        above, mlps = rest[: len(run.layers)], rest[len(run.layers) :]
        # A head's write goes on along the stream, and into its own layer's MLP unless that runs beside it.
        heads = above if model.arch.parallel else [a + b for a, b in zip(above, mlps, strict=True)]
        self.input = first if self.input is None else self.input + first
        self.heads = [a + b for a, b in zip(self.heads, heads, strict=True)] if self.n_points else list(heads)
        self.mlps = [a + b for a, b in zip(self.mlps, above, strict=True)] if self.n_points else list(above)
        self.n_points += len(metric)


def contract_nodes(model: Transformer, writes: Writes, reads: NodeReads) -> Tensor:
    """Writes times reads, summed over rows, (source, target): every source's in the column of ``logits``."""
    assert reads.input is not None, "a path has to be walked before it is contracted"
    a, graph = model.arch, model.graph
    scores = writes.input.new_zeros(graph.n_sources, graph.n_targets)
    column = scores[:, graph.logits]
    column[0] = (writes.input * reads.input).sum()
    for index, layer in enumerate(model.layers):
        grad_out = (reads.heads[index] @ at_least_float32(layer.w_write)).view(-1, a.n_heads, a.d_head)  # (row, ...)
        first, mlp = graph.source_head(index), graph.source_mlp(index)
        column[first:mlp] = torch.einsum("hrd,rhd->h", writes.heads[index], grad_out)
        column[mlp] = (writes.mlps[index] * reads.mlps[index]).sum()
    return scores


def over_edges(graph: Graph, nodes: Float[Tensor, " source"]) -> Float[Tensor, "source target"]:
    """Node scores as edge scores: for each edge the smaller, in size, of its two nodes' scores."""
    always = torch.full_like(nodes[:1], torch.inf)
    targets = torch.cat([nodes, always])[graph.node_of_target]  # the last is ``logits``
    sources = torch.cat([always, nodes[1:]])[:, None].expand(-1, graph.n_targets)
    values = torch.where(sources.abs() <= targets.abs(), sources, targets)
    values[0, graph.logits] = nodes[0]
    return torch.where(graph.mask, values, 0)
