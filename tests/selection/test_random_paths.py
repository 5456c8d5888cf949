"""Random circuits that reach ``logits``: all of their edges are on a path, whatever the size."""

from __future__ import annotations

from random import Random

import pytest
from small_models import prompts, tiny_model

import gradpath as gp
from gradpath.graph import Graph, pruned
from gradpath.selection import select_many
from gradpath.selection.ranking import random_circuit

GRAPHS = [Graph(3, 4), Graph(3, 4, parallel=True), Graph(1, 1)]


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("share", [0.02, 0.1, 0.5, 0.97])
def test_every_edge_is_on_a_path_and_there_are_as_many_as_asked_for(graph, share):
    n = max(1, round(share * graph.n_edges))
    for seed in range(5):
        mask = random_circuit(graph, n, Random(seed))
        assert not (mask & ~graph.mask).any()
        assert pruned(graph, mask).equal(mask)
        assert n - 1 <= int(mask.sum()) <= n


@pytest.mark.parametrize("graph", [Graph(2, 1), Graph(2, 1, parallel=True)])
def test_every_number_of_edges_can_be_asked_for(graph):
    for n in range(1, graph.n_edges + 1):
        assert n - 1 <= int(random_circuit(graph, n, Random(n)).sum()) <= n
    assert random_circuit(graph, graph.n_edges, Random(0)).equal(graph.mask)


def test_seeds_give_different_circuits_and_the_same_seed_the_same():
    graph = GRAPHS[0]
    one, again, other = (random_circuit(graph, 20, Random(seed)) for seed in (0, 0, 1))
    assert one.equal(again)
    assert not one.equal(other)


def test_they_are_selected_by_name():
    model = tiny_model("gpt2")
    scores = gp.attribute(model, prompts([6, 6], [[0], [4]]), "eap")
    circuit, larger = select_many(scores, [12, 30], how="random-paths+seed=3")
    assert circuit.mask.equal(random_circuit(model.graph, 12, Random(3)))
    assert larger.mask.equal(random_circuit(model.graph, 30, Random(3)))
