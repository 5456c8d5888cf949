import pytest
import torch

from gradpath.errors import InputError
from gradpath.graph import Graph

GPT2_SIZES = [(12, 12, 32_491), (24, 16, 231_877), (48, 25, 2_235_025)]


@pytest.mark.parametrize(("layers", "heads", "edges"), GPT2_SIZES)
def test_edge_counts_are_the_papers(layers, heads, edges):
    graph = Graph(layers, heads)
    assert graph.n_edges == edges == int(graph.mask.sum())
    assert len(graph.sources) == graph.n_sources == 1 + layers * (heads + 1)
    assert len(graph.targets) == graph.n_targets == layers * (3 * heads + 1) + 1


def test_every_edge_follows_from_its_names():
    graph = Graph(3, 2)

    def layer_and_kind(name):
        if name in ("input", "logits"):
            return (-1, 0) if name == "input" else (99, 0)
        return int(name[1 : name.index(".")] if name[0] == "a" else name[1:]), "am".index(name[0])

    for u, source in enumerate(graph.sources):
        for v, target in enumerate(graph.targets):
            assert bool(graph.mask[u, v]) == (layer_and_kind(source) < layer_and_kind(target)), (source, target)


def test_parallel_layers_have_no_edge_from_heads_to_their_own_mlp():
    plain, parallel = Graph(3, 2), Graph(3, 2, parallel=True)
    missing = (plain.mask & ~parallel.mask).nonzero().tolist()
    names = {plain.edge(*pair) for pair in missing}
    assert names == {f"a{layer}.h{head}->m{layer}" for layer in range(3) for head in range(2)}
    assert not (parallel.mask & ~plain.mask).any()


@pytest.mark.parametrize("name", ["input", "input->", "a0.h0->a0.h0<q>", "m1->m0", "a9.h0->logits", "x->y", ""])
def test_a_name_that_is_no_edge_is_refused(name):
    with pytest.raises(InputError, match=r"has no edge|there is no edge|an edge is written"):
        Graph(2, 3).index(name)


def test_positions_in_the_flattened_matrix_are_those_of_torch():
    graph = Graph(2, 3, parallel=True)
    index, flat = graph.mask.nonzero(), graph.mask.flatten().nonzero()[:, 0]
    assert torch.equal(graph.flattened(index), flat)
    assert torch.equal(graph.unflattened(flat), index)
    assert [graph.edge_at(at) for at in flat.tolist()] == [graph.edge(*pair) for pair in index.tolist()]


def test_targets_of_heads_and_layers_of_targets_follow_from_names():
    graph = Graph(2, 3)
    names = [graph.targets[target] for target in graph.targets_of_heads(1, [0, 2])]
    assert names == ["a1.h0<q>", "a1.h2<q>", "a1.h0<k>", "a1.h2<k>", "a1.h0<v>", "a1.h2<v>"]
    nodes = [(*graph.sources, "logits")[node] for node in graph.node_of_target.tolist()]
    assert nodes == [target.partition("<")[0] for target in graph.targets]
    layers = [graph.layer_of(target.partition("<")[0]) for target in graph.targets]
    assert graph.layers_of_targets.tolist() == layers == [graph.layer_of_target(v) for v in range(graph.n_targets)]


@pytest.mark.parametrize("parallel", [False, True])
def test_edges_among_nodes_have_both_ends_in_them(parallel):
    graph, nodes = Graph(2, 2, parallel=parallel), {"input", "a0.h1", "m1", "logits"}
    among = {graph.edge(*pair) for pair in graph.among([graph.source("a0.h1"), graph.source("m1")]).nonzero().tolist()}
    every = (graph.edge(*pair) for pair in graph.mask.nonzero().tolist())
    assert among == {edge for edge in every if {end.partition("<")[0] for end in edge.split("->")} <= nodes}
    assert graph.among([]).nonzero().tolist() == [[0, graph.logits]]
