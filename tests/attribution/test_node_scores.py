"""Nodes instead of edges: sums of out-edges, against gradients at what nodes write, and as circuits."""

from __future__ import annotations

import pytest
import reference
import torch
from covering import FAMILIES, FEW_BLOCKS, covering
from small_models import prompts
from toys import TASK, saturated

from gradpath.attribution.attribute import attribute
from gradpath.errors import UsageError
from gradpath.evaluation import evaluate
from gradpath.graph import Graph
from gradpath.scores import Scores
from gradpath.selection import select

MIXED = prompts([6, 8, 6], [[0], [4], [2, 5]])
PATHS = {
    "eap": ({}, reference.straight_line([1.0])),
    "eap-ig": ({"steps": 3}, reference.straight_line([1 / 3, 2 / 3, 1.0])),
    "eap-gp": ({"steps": 2}, reference.grad_path(2)),
}


def test_a_node_has_the_sum_of_its_out_edges():
    graph = Graph(2, 1)
    scores = Scores(graph, torch.arange(graph.mask.numel()).view(graph.mask.shape) * graph.mask / 7)
    assert list(scores.nodes) == ["input", "a0.h0", "m0", "a1.h0", "m1"]
    for node, score in scores.nodes.items():
        out = [graph.edge(u, v) for u, v in graph.mask.nonzero().tolist() if graph.sources[u] == node]
        assert score == pytest.approx(sum(scores[edge] for edge in out), rel=1e-6)


@pytest.mark.parametrize(("model", "name"), covering(FAMILIES, list(PATHS), quick=FEW_BLOCKS), indirect=["model"])
def test_that_is_the_gradient_at_what_the_node_writes(model, name):
    options, path = PATHS[name]
    scores = attribute(model.to(dtype=torch.float64), MIXED, name, batch_size=2, **options)
    expected = reference.node_scores(model, MIXED, path)
    nodes = torch.tensor([*scores.nodes.values()], dtype=expected.dtype)
    assert float((nodes - expected).abs().max()) <= 1e-6 * float(scores.values.abs().max())


def test_a_circuit_of_nodes_has_all_edges_among_the_best(gpt2):
    scores = attribute(gpt2, MIXED, "eap-ig")
    circuit = select(scores, nodes=4)
    best = sorted(list(scores.nodes)[1:], key=lambda node: abs(scores.nodes[node]))[-4:]
    inside = {"input", "logits", *best}
    every = [gpt2.graph.edge(u, v) for u, v in gpt2.graph.mask.nonzero().tolist()]
    ends = {edge: {end.partition("<")[0] for end in edge.split("->")} for edge in every}
    assert set(circuit.edges) == {edge for edge in every if ends[edge] <= inside}
    assert circuit.selection == "nodes"
    everything = select(scores, nodes=gpt2.graph.n_sources - 1)
    assert evaluate(gpt2, everything, MIXED).faithfulness == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("n", [0, 13])
def test_a_wrong_number_of_nodes_is_refused(gpt2, n):
    with pytest.raises(UsageError, match="12 heads and MLPs"):
        select(attribute(gpt2, MIXED, "eap"), nodes=n)


def test_a_saturated_node_is_found_that_the_plain_gradient_misses():
    model = saturated()
    without, m0 = model.graph.mask.clone(), model.graph.sources.index("m0")
    without[m0] = False
    both = [reference.patched_metric(model, TASK, mask).mean() for mask in (model.graph.mask, without)]
    assert float(both[0] - both[1]) == pytest.approx(1, rel=1e-6)
    assert attribute(model, TASK, "eap").nodes["m0"] == 0
    assert attribute(model, TASK, "eap-ig", steps=100).nodes["m0"] == pytest.approx(1, abs=0.03)
