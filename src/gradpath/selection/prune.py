"""Pruning: keep the edges that lie on a way from ``input`` to ``logits``.

A node without an incoming or without an outgoing edge leaves, with its edges, until no such node is left.
``input`` needs no parent, ``logits`` no child, and any of a head's q, k and v counts as incoming. In a graph
without cycles two sweeps over the layers find what remains.

Edges may be told apart by span. Only attention moves information from one position to another, and only to
later ones: a head at a span reads queries there, and keys and values there and before.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor

from gradpath.graph import Graph


def pruned(graph: Graph, mask: Bool[Tensor, "source target"]) -> Bool[Tensor, "source target"]:
    """The edges of ``mask`` that lie on a way from ``input`` to ``logits``."""
    return pruned_spans(graph, mask[None], torch.ones(1, 1, dtype=torch.bool, device="cpu"))[0]


def pruned_spans(
    graph: Graph, masks: Bool[Tensor, "span source target"], reach: Bool[Tensor, "span span"]
) -> Bool[Tensor, "span source target"]:
    """The same for edges at spans; ``reach`` as in ``SpanScores``."""
    from_input = _reached_from_input(graph, masks, reach)
    to_logits = _leading_to_logits(graph, masks, reach)
    return masks & from_input[:, :, None] & to_logits[:, None]


def _reached_from_input(graph: Graph, masks: Tensor, reach: Tensor) -> Tensor:
    """The sources that ``input`` reaches, (span, source)."""
    reached = torch.zeros(len(masks), graph.n_sources, dtype=torch.bool, device="cpu")
    reached[:, 0] = True
    for layer in range(graph.n_layers):
        heads, mlp = graph.target_heads(layer), graph.target_mlp(layer)
        q, k, v = torch.split((masks[:, :, heads] & reached[:, :, None]).any(1), graph.n_heads, 1)  # (span, head)
        attended = (reach[:, :, None] & (k | v)[:, None]).any(0)  # (span that attends, head)
        reached[:, graph.source_heads(layer)] = q | attended
        reached[:, graph.source_mlp(layer)] = (masks[:, :, mlp] & reached).any(1)
    return reached


def _leading_to_logits(graph: Graph, masks: Tensor, reach: Tensor) -> Tensor:
    """The targets from which ``logits`` is reached, (span, target)."""
    leading = torch.zeros(len(masks), graph.n_targets, dtype=torch.bool, device="cpu")
    leading[:, graph.logits] = True
    for layer in reversed(range(graph.n_layers)):
        mlp, heads = graph.source_mlp(layer), graph.source_heads(layer)
        leading[:, graph.target_mlp(layer)] = (masks[:, mlp] & leading).any(1)
        alive = (masks[:, heads] & leading[:, None]).any(2)  # (span, head)
        attended = (reach[:, :, None] & alive[None]).any(1)  # (span that is attended to, head)
        leading[:, graph.target_heads(layer)] = torch.cat([alive, attended, attended], 1)
    return leading
