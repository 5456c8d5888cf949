"""Selection: from scores to a circuit.

A way of selecting is an order of all edges, of which the first n are taken. ``top`` goes by |score|,
``signed`` by the score itself, so that edges that help the metric come first and those that hurt it last.
``ratio`` takes a fixed share of edges that help, ``ratio=0.7`` another one.
``greedy`` starts from ``logits``; its frontier is every edge into a node that is in, it takes the one of
largest |score|, and when that edge's source is new its incoming edges join the frontier. Each is one nested
sequence, computed once whatever the number of circuits cut from it. Ties go to the lower index.

What is selected is then pruned: a node without an incoming or without an outgoing edge leaves, with its
edges, until none is left. ``input`` needs no parent, ``logits`` no child, and any of a head's q, k and v
counts as incoming. In a graph without cycles this leaves exactly the edges on a way from ``input`` to
``logits``, which two sweeps over the layers find.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from gradpath.circuit import Circuit
from gradpath.errors import InputError, UsageError, unknown
from gradpath.graph import QKV, Graph
from gradpath.scores import Scores

Order = Int[Tensor, " edge"]  # flat positions in the (source, target) matrix


def top(scores: Scores, n: int) -> Order:
    """The n edges of largest |score|."""
    edges = scores.graph.mask.flatten().nonzero()[:, 0]
    size = scores.values.flatten()[edges].abs()
    return edges[size.sort(descending=True, stable=True).indices[:n]]


def signed(scores: Scores, n: int) -> Order:
    """The n edges of largest score, the sign counted: those that help the metric most."""
    edges = scores.graph.mask.flatten().nonzero()[:, 0]
    return edges[scores.values.flatten()[edges].sort(descending=True, stable=True).indices[:n]]


def ratio(scores: Scores, n: int, share: float = 0.6) -> Order:
    """The n largest |score| of both signs, six positive to four others; ratio=0.7 for another share.

    The j-th positive edge comes at j / share and the j-th of the others at j / (1 - share), so every first n
    have that share, as far as there are edges of both kinds.
    """
    order = top(scores, scores.graph.n_edges)
    helps = scores.values.flatten()[order] > 0
    turn = torch.where(helps, helps.cumsum(0) / share, (~helps).cumsum(0) / (1 - share))
    return order[turn.sort(stable=True).indices[:n]]


def greedy(scores: Scores, n: int) -> Order:
    """The n edges that a search from ``logits`` backwards takes, always the largest |score| at hand.

    Each target's sources are sorted once; the heap holds one edge per target, so n edges cost n pops.
    """
    graph = scores.graph
    size = scores.values.abs().masked_fill(~graph.mask, -1)
    ranked = size.sort(dim=0, descending=True, stable=True)
    sizes, sources = ranked.values.T.tolist(), ranked.indices.T.tolist()  # [target][rank]
    limits = graph.sources_before_target.tolist()
    targets_of = _targets_of_nodes(graph)
    heap: list[tuple[float, int, int]] = []  # (-|score|, flat index, rank)

    def offer(target: int, rank: int) -> None:
        if rank < limits[target]:
            flat = sources[target][rank] * graph.n_targets + target
            heapq.heappush(heap, (-sizes[target][rank], flat, rank))

    offer(graph.logits, 0)
    taken, reached = list[int](), set[int]()
    while len(taken) < n:
        _, flat, rank = heapq.heappop(heap)
        source, target = divmod(flat, graph.n_targets)
        taken.append(flat)
        offer(target, rank + 1)
        if source not in reached:
            reached.add(source)
            for reader in targets_of[source]:
                offer(reader, 0)
    return torch.tensor(taken, dtype=torch.long, device="cpu")


def _targets_of_nodes(graph: Graph) -> list[list[int]]:
    """For each source the targets that the same node reads at: none for ``input``."""
    readers: list[list[int]] = [[] for _ in range(graph.n_sources)]
    for target, node in enumerate(graph.node_of_target.tolist()[:-1]):
        readers[node].append(target)
    return readers


SELECTIONS: dict[str, Callable[..., Order]] = {
    "top": top,
    "greedy": greedy,
    "signed": signed,
    "ratio": ratio,
}


def check_way(how: str, ways: Mapping[str, Any] = SELECTIONS) -> str:
    """The name of a known way of selecting; only ``ratio`` may be given a share, as in ``ratio=0.7``."""
    name, equals, share = how.partition("=")
    if name not in ways:
        raise unknown("selection", how, ways)
    if equals and (name != "ratio" or not _is_share(share)):
        raise UsageError(
            f"the selection {how!r} is not understood: only ratio takes a value, the share of positive edges "
            "from 0 to 1, as in ratio=0.7."
        )
    return name


def _is_share(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False


def select(
    scores: Scores,
    n: int | None = None,
    *,
    sparsity: float | None = None,
    how: str = "top",
    prune: bool = True,
) -> Circuit:
    """The circuit of ``n`` edges, or of the share 1 - ``sparsity`` of all edges, pruned."""
    n = edge_count(scores.graph, n, sparsity)
    return select_many(scores, [n], how=how, prune=prune)[0]


def select_many(
    scores: Scores, counts: Sequence[int], *, how: str = "top", prune: bool = True
) -> list[Circuit]:
    """Circuits of several sizes from one ordering."""
    way, share = SELECTIONS[check_way(how)], how.partition("=")[2]
    check_finite(scores)
    scores = replace(scores, values=scores.values.cpu())
    most = max(edge_count(scores.graph, n, None) for n in counts)
    order = way(scores, most, float(share)) if share else way(scores, most)
    return [circuit_of(scores, order[:n], how=how, prune=prune) for n in counts]


def select_nodes(scores: Scores, n: int, *, prune: bool = True) -> Circuit:
    """The n heads and MLPs of largest |score|, ``input`` and ``logits``, and all edges among them, pruned."""
    graph = scores.graph
    if not 1 <= n < graph.n_sources:
        raise UsageError(
            f"this model has {graph.n_sources - 1:,} heads and MLPs, of which a circuit has at least 1: "
            f"{n:,} were asked for."
        )
    check_finite(scores)
    scores = replace(scores, values=scores.values.cpu())
    best = 1 + scores.by_node[1:].abs().sort(descending=True, stable=True).indices[:n]
    inside = torch.zeros(graph.n_sources + 1, dtype=torch.bool, device="cpu")
    inside[[0, graph.n_sources]] = True  # input and logits
    inside[best] = True
    among = graph.mask & inside[:-1, None] & inside[graph.node_of_target]
    order = top(scores, graph.n_edges)
    return circuit_of(scores, order[among.flatten()[order]], how="nodes", prune=prune)


def check_finite(scores: Scores) -> None:
    if not scores.values.isfinite().all():
        raise InputError("scores that are not finite numbers cannot be ranked. Attribute again.")


@runtime_checkable
class HasEdges(Protocol):
    """A graph, or whatever else edges are chosen from."""

    @property
    def n_edges(self) -> int: ...


def edge_count(graph: HasEdges, n: int | None, sparsity: float | None) -> int:
    """How many edges a request for a number, or for a sparsity, means."""
    if (n is None) == (sparsity is None):
        raise UsageError("say how large the circuit should be: either a number of edges or a sparsity.")
    if sparsity is not None:
        if not 0 <= sparsity < 1:
            raise UsageError(
                "the sparsity is the share of edges left out, from 0 up to but not including 1: "
                f"{sparsity} was asked for."
            )
        n = max(1, round((1 - sparsity) * graph.n_edges))
    assert n is not None
    if not 1 <= n <= graph.n_edges:
        raise UsageError(
            f"a circuit of this model has from 1 to {graph.n_edges:,} edges: {n:,} were asked for."
        )
    return n


def circuit_of(
    scores: Scores, order: Order, *, how: str = "", prune: bool = True, asked: int | None = None
) -> Circuit:
    """The circuit of these edges, pruned or not; it remembers how they and how many were asked for."""
    graph, n = scores.graph, len(order) if asked is None else asked
    if prune:
        mask = torch.zeros(graph.n_sources * graph.n_targets, dtype=torch.bool, device="cpu")
        mask[order] = True
        order = order[pruned(graph, mask.view(graph.n_sources, -1)).flatten()[order]]
    index = torch.stack([order // graph.n_targets, order % graph.n_targets], 1)
    selection = {"how": how, "pruned": prune, "edges_asked": n, "edges_kept": len(order)}
    return Circuit(graph, index, scores.values.flatten()[order], {**scores.about, "selection": selection})


def pruned(graph: Graph, mask: Bool[Tensor, "source target"]) -> Bool[Tensor, "source target"]:
    """The edges of ``mask`` that lie on a way from ``input`` to ``logits``."""
    fed = torch.zeros(graph.n_sources, dtype=torch.bool, device="cpu")  # is reached from input
    fed[0] = True
    for layer in range(graph.n_layers):
        for nodes, targets in _layer_nodes(graph, layer):
            fed[nodes] = (mask[:, targets] & fed[:, None]).any(0).view(-1, len(fed[nodes])).any(0)
    heard = torch.zeros(graph.n_targets, dtype=torch.bool, device="cpu")  # reaches logits
    heard[graph.logits] = True
    for layer in reversed(range(graph.n_layers)):
        for nodes, targets in reversed(_layer_nodes(graph, layer)):
            alive = (mask[nodes] & heard).any(1)
            heard[targets] = alive.repeat(len(heard[targets]) // len(alive))
    return mask & fed[:, None] & heard


def _layer_nodes(graph: Graph, layer: int) -> list[tuple[slice, slice]]:
    """A layer's heads, then its MLP: the range of its sources and that of its targets."""
    head, mlp = graph.source_head(layer), graph.source_mlp(layer)
    read, read_mlp = graph.target_head(layer), graph.target_mlp(layer)
    assert read_mlp - read == len(QKV) * (mlp - head)
    return [(slice(head, mlp), slice(read, read_mlp)), (slice(mlp, mlp + 1), slice(read_mlp, read_mlp + 1))]
