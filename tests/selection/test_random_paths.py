"""Random circuits that reach ``logits``: all of their edges are on a path, whatever the size."""

from __future__ import annotations

import pytest
import torch

from gradpath.graph import Graph, pruned
from gradpath.scores import Scores
from gradpath.selection import rank

GRAPHS = [Graph(3, 4), Graph(3, 4, parallel=True), Graph(1, 1)]


def order_of(graph, seed=0, **sizes):
    return rank(Scores(graph, torch.zeros(graph.mask.shape)), f"random-paths+seed={seed}", **sizes)


@pytest.mark.parametrize("graph", GRAPHS)
def test_the_order_has_every_edge_once(graph):
    edges = order_of(graph).edges.tolist()
    assert sorted(edges) == graph.mask.flatten().nonzero()[:, 0].tolist()
    assert order_of(graph, largest=3).edges.tolist() == edges[:3]


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_prefix_lacks_only_the_path_that_it_does_not_complete(graph):
    for seed in range(5):
        order = order_of(graph, seed)
        masks = [order.circuit(n, prune=False).mask for n in range(1, len(order) + 1)]
        whole = [n for n, mask in enumerate(masks, start=1) if pruned(graph, mask).equal(mask)]
        assert whole[-1] == graph.n_edges
        gaps = torch.tensor([0, *whole]).diff()
        # A path visits every node at most once: each head and MLP of the model.
        assert int(gaps.max()) <= 2 * graph.n_layers + 1
        for n, mask in enumerate(masks, start=1):
            complete = max((size for size in whole if size <= n), default=0)
            assert int(pruned(graph, mask).sum()) == complete


def test_seeds_give_different_orders_and_the_same_seed_the_same():
    one, again, other = (order_of(GRAPHS[0], seed).edges.tolist() for seed in (0, 0, 1))
    assert one == again
    assert one != other
