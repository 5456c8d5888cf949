"""Selection and pruning against plain definitions of both."""

from __future__ import annotations

import pytest
import torch

from gradpath.errors import InputError, UsageError
from gradpath.graph import Graph, pruned
from gradpath.recipe import Recipe
from gradpath.scores import Scores
from gradpath.selection import rank, select
from gradpath.selection.ranking import Context, edge_count, greedy, signed, top

GRAPH = Graph(3, 2)
GRAPHS = [Graph(3, 4), Graph(3, 4, parallel=True), Graph(1, 1)]  # of random paths


def random_scores(graph=GRAPH, seed=0, ties=False) -> Scores:
    values = torch.randn(graph.mask.shape, generator=torch.Generator().manual_seed(seed))
    if ties:
        values = (values * 2).round() / 2
    return Scores(graph, values * graph.mask, Recipe(method="by hand"))


def by_hand_greedy(scores: Scores, n: int) -> list[int]:
    """The definition: a frontier as a list, searched anew for every edge."""
    graph = scores.graph
    inside, taken = {graph.n_sources}, []  # logits is in
    for _ in range(n):
        frontier = [
            u * graph.n_targets + v
            for u, v in graph.mask.nonzero().tolist()
            if int(graph.node_of_target[v]) in inside and u * graph.n_targets + v not in taken
        ]
        best = min(frontier, key=lambda flat: (-abs(float(scores.values.flatten()[flat])), flat))
        taken.append(best)
        inside.add(best // graph.n_targets)
    return taken


def by_hand_pruned(graph: Graph, mask: torch.Tensor) -> torch.Tensor:
    """The definition: nodes leave one by one until none has to."""
    mask = mask.clone()
    while True:
        before = mask.clone()
        for node in range(graph.n_sources):
            reads = graph.node_of_target == node
            fed = node == 0 or bool(mask[:, reads].any())
            heard = bool(mask[node].any())
            if not (fed and heard):
                mask[node] = False
                mask[:, reads] = False
        if torch.equal(mask, before):
            return mask


@pytest.mark.parametrize("ties", [False, True])
def test_rankings_take_the_largest_first_and_ties_by_index(ties):
    scores = random_scores(ties=ties)
    flat, edges = scores.values.flatten().tolist(), GRAPH.mask.flatten().nonzero()[:, 0].tolist()
    assert top(scores).edges.tolist() == sorted(edges, key=lambda i: (-abs(flat[i]), i))
    assert signed(scores).edges.tolist() == sorted(edges, key=lambda i: (-flat[i], i))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_greedy_is_its_definition(seed, ties):
    scores = random_scores(seed=seed, ties=ties)
    assert greedy(scores, Context(largest=40)).edges.tolist() == by_hand_greedy(scores, 40)
    assert greedy(scores).edges.tolist() == by_hand_greedy(scores, GRAPH.n_edges)


@pytest.mark.parametrize("how", ["top", "greedy", "random-paths"])
def test_circuits_of_many_sizes_are_prefixes_of_one_order(how):
    scores = random_scores()
    sizes = [1, 5, 17, 60]
    order = rank(scores, how, sizes=sizes)
    together = [order.circuit(n, prune=False) for n in sizes]
    assert [len(circuit) for circuit in together] == sizes
    for size, circuit in zip(sizes, together, strict=True):
        assert torch.equal(circuit.index, select(scores, size, selection=how, prune=False).index)
        assert torch.equal(circuit.index, together[-1].index[:size])


@pytest.mark.parametrize("graph", [Graph(3, 2), Graph(2, 3, parallel=True)])
@pytest.mark.parametrize("share", [0.02, 0.06, 0.2, 0.6])
def test_pruning_is_its_definition(graph, share):
    for seed in range(20):
        chance = torch.rand(graph.mask.shape, generator=torch.Generator().manual_seed(seed))
        mask = graph.mask & (chance < share)
        assert torch.equal(pruned(graph, mask), by_hand_pruned(graph, mask))


def test_a_slice_of_an_order_is_a_circuit():
    order = rank(random_scores(), "greedy", largest=30)
    assert order[:12] == order.circuit(12) == select(order.scores, 12, selection="greedy")
    assert order[:].requested == len(order) == 30
    for part in (slice(1, 5), slice(None, 9, 2)):
        with pytest.raises(UsageError, match=r"such as order\[:100\]"):
            order[part]
    with pytest.raises(UsageError, match="circuits of 1 to 30 edges: 31 were requested"):
        order[:31]


def test_a_circuit_says_how_it_was_selected():
    circuit = select(random_scores(), 20, selection="greedy")
    assert circuit.recipe.method == "by hand"
    assert (circuit.selection, circuit.pruned, circuit.requested) == ("greedy", True, 20)


def test_scores_stay_beside_their_edges():
    scores = random_scores()
    circuit = select(scores, 30)
    for edge, score in zip(circuit.edges, circuit.scores.tolist(), strict=True):
        assert scores[edge] == score
    assert circuit.scores.abs().tolist() == sorted(circuit.scores.abs().tolist(), reverse=True)


def test_sparsity_is_the_share_left_out():
    graph = Graph(30, 9)
    assert graph.n_edges == 123_211
    assert edge_count(graph.n_edges, None, 0.975) == 3_080
    assert edge_count(graph.n_edges, None, 0.0) == graph.n_edges
    assert edge_count(graph.n_edges, None, 0.9999999) == 1


@pytest.mark.parametrize(
    ("n", "sparsity", "words"),
    [
        (0, None, "from 1 to"),
        (-3, None, "0 or above: got -3"),
        (GRAPH.n_edges + 1, None, "from 1 to"),
        (None, 1.5, "share of edges left out"),
        (None, 1.0, "share of edges left out"),
        (None, -0.1, "share of edges left out"),
        (None, float("nan"), "share of edges left out"),
        (None, None, "either a number of edges or a sparsity"),
        (5, 0.5, "`n` and `sparsity` each set the size of the circuit: give one of them"),
    ],
)
def test_a_size_that_cannot_be_is_refused(n, sparsity, words):
    with pytest.raises(UsageError, match=words):
        select(random_scores(), n, sparsity=sparsity)


def test_an_unknown_way_to_select_is_refused():
    with pytest.raises(UsageError, match="Did you mean 'greedy'"):
        select(random_scores(), 5, selection="gredy")


def test_scores_that_are_not_finite_are_refused():
    scores = random_scores()
    scores.values[0, 0] = torch.nan
    with pytest.raises(InputError, match="finite"):
        select(scores, 5)


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
