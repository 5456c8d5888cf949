"""Where the MLPs of a circuit have to be run.

A small circuit differs from the corrupted run in few places, and only the last position is read in the end. So an MLP
of it has to be run at a position only if

1. something that it reads can differ there: the token itself, or the write of a node that can differ there. A head can
   differ where its query can, and from the first position on where its key or its value can.
2. what it writes there can reach the logits: at the last position, and elsewhere if some way leads through a key or a
   value.

Elsewhere its write is that of the corrupted run, exactly.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gradpath.evaluation.plan import LayerPlan, Plan
from gradpath.evaluation.prepared import Positions, Prepared
from gradpath.graph import QKV

# In circuits with a larger share of the edges MLPs are run nearly everywhere, so it is not worth finding out where.
SMALL = 0.01


def mlp_positions(prepared: Prepared, plan: Plan, edges: Bool[Tensor, "source target"]) -> list[Positions | None]:
    """For each layer the positions, (batch, pos), at which its MLP has to be run.

    Args:
        prepared: The batch.
        plan: The circuit.
        edges: Its edges, and those outside of it whose effects are asked for.

    Returns:
        The positions, or None where the MLP need not be run.
    """
    n_layers, last = len(plan.layers), prepared.last
    small = int(edges.sum()) <= SMALL * prepared.model.graph.n_edges
    if not small or prepared.input.device.type != "cpu":
        every = [prepared.differing] * (n_layers - 1) + [last]
        return [at if step.mlp is not None else None for at, step in zip(every, plan.layers, strict=True)]
    own = edges[plan.sources].float()  # (live source, target)
    differs = _can_differ(prepared, plan, own)
    everywhere = _read_everywhere(prepared, plan, own)

    def positions(step: LayerPlan) -> Positions | None:
        if step.mlp is None:
            return None
        here = differs[step.mlp_row]
        if everywhere[step.mlp_row]:
            row, at = here.nonzero().unbind(1)
        else:
            row, at = (index[here[last]] for index in last)
        return (row, at) if len(row) else None

    return [positions(step) for step in plan.layers]


def _can_differ(prepared: Prepared, plan: Plan, edges: Float[Tensor, "live target"]) -> Bool[Tensor, "live batch pos"]:
    """Where each live source can write something else than in the corrupted run."""
    graph, inside = prepared.model.graph, prepared.differs
    differs = inside.new_zeros(len(plan.sources), *inside.shape)
    if prepared.ablated:  # nodes write something else than what follows from their inputs
        return differs | inside
    flat = torch.zeros(len(differs), inside.numel())
    if len(plan.sources) and plan.sources[0] == 0:
        differs[0] = inside & (prepared.input != 0).any(-1)
        flat[0] = differs[0].flatten()
    for index, step in enumerate(plan.layers):
        if step.heads:
            columns = _columns(graph.target_head(index), step, graph.n_heads)
            reads = (edges[:, columns].T @ flat > 0).view(len(QKV), len(step.heads), *inside.shape)
            q, k, v = reads
            own = (q | ((k | v).cumsum(-1) > 0)) & inside
            if prepared.model.heads_share_a_norm:
                own = own.any(0).expand_as(own)
            differs[step.head_rows] = own
            flat[step.head_rows] = own.flatten(1).float()
        if step.mlp is not None:
            own = (edges[:, graph.target_mlp(index)] @ flat > 0).view_as(inside)
            differs[step.mlp_row] = own
            flat[step.mlp_row] = own.flatten().float()
    return differs


def _read_everywhere(prepared: Prepared, plan: Plan, edges: Float[Tensor, "live target"]) -> list[bool]:
    """Whether what each live source writes before the last position can reach the logits."""
    graph = prepared.model.graph
    everywhere = torch.zeros(len(plan.sources), dtype=torch.bool)
    for index, step in reversed(list(enumerate(plan.layers))):
        if step.mlp is not None and everywhere[step.mlp_row]:
            everywhere |= edges[:, graph.target_mlp(index)] > 0
        if step.heads:
            columns = _columns(graph.target_head(index), step, graph.n_heads)
            q, k, v = (edges[:, columns] > 0).view(len(edges), len(QKV), -1).unbind(1)
            own = everywhere[step.head_rows]
            if prepared.model.heads_share_a_norm:
                own = own.any().expand_as(own)
            everywhere |= (k | v | (q & own)).any(1)
    return everywhere.tolist()


def _columns(first: int, step: LayerPlan, n_heads: int) -> list[int]:
    """The targets of a layer's live heads: all queries, all keys, all values."""
    return [first + qkv * n_heads + head for qkv in range(len(QKV)) for head in step.heads]
