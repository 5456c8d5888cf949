"""Nodes instead of edges: against gradients at what nodes write, as sums of edges, and as circuits."""

from __future__ import annotations

import pytest
import reference
import torch
from covering import FAMILIES, FEW_BLOCKS, covering
from small_models import prompts, tiny_model
from toys import TASK, saturated

from gradpath.attribution.attribute import attribute
from gradpath.attribution.contraction import over_edges
from gradpath.errors import UsageError
from gradpath.evaluation import evaluate
from gradpath.graph import Graph
from gradpath.scores import load_scores
from gradpath.selection import select

MIXED = prompts([6, 8, 6], [[0], [4], [2, 5]])
PATHS = {
    "nap": ({}, reference.straight_line([1.0])),
    "nap-ig": ({"steps": 3}, reference.straight_line([1 / 3, 2 / 3, 1.0])),
    "nap-gp": ({"steps": 2}, reference.grad_path(2)),
}


def close(values: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> bool:
    return bool((values - expected).abs().max() <= tolerance * expected.abs().max())


@pytest.mark.parametrize(("model", "name"), covering(FAMILIES, list(PATHS), quick=FEW_BLOCKS), indirect=["model"])
def test_engine_equals_gradients_at_what_the_nodes_write(model, name):
    options, path = PATHS[name]
    scores = attribute(model, MIXED, name, batch_size=2, **options)
    expected = reference.node_scores(model, MIXED, path)
    assert close(scores.by_node, expected, 1e-4)  # GradPath's steps amplify rounding, and it is the processor's
    exact = attribute(model.to(dtype=torch.float64), MIXED, name, batch_size=2, **options)
    assert close(exact.by_node, expected, 2e-7)
    assert scores.about["of"] == "nodes"


@pytest.mark.parametrize("kind", ["gpt2", "neox", "gemma2"])
def test_a_node_has_the_sum_of_its_out_edges(kind):
    model = tiny_model(kind)
    for ablation in ("corrupted", "mean"):
        nodes = attribute(model, MIXED, "nap-ig", ablation=ablation).by_node
        assert close(nodes, attribute(model, MIXED, "eap-ig", ablation=ablation).by_node)


def test_they_cost_the_passes_of_their_paths(gpt2):
    task = prompts([6, 6], [[2], [3]])
    for name, edges in (("nap", "eap"), ("nap-ig", "eap-ig"), ("nap-gp", "eap-gp")):
        passes = [attribute(gpt2, task, method).about["passes"] for method in (name, edges)]
        assert passes[0] == passes[1]


def test_an_edge_has_the_score_of_the_node_that_comes_in_later():
    graph = Graph(2, 1)
    nodes = torch.tensor([9.0, 3.0, -5.0, 1.0, -2.0])  # input, a0.h0, m0, a1.h0, m1
    values = over_edges(graph, nodes)
    expected = {"a0.h0->m0": 3, "a0.h0->a1.h0<q>": 1, "m0->m1": -2, "m0->logits": -5}
    expected |= {"input->m0": -5, "input->logits": 9}
    for edge, score in expected.items():
        assert float(values[graph.index(edge)]) == score
    assert torch.equal(values[:, graph.logits], nodes)
    assert float(values[~graph.mask].abs().max()) == 0


@pytest.mark.parametrize("method", ["nap-ig", "eap-ig"])
def test_a_circuit_of_nodes_has_all_edges_among_the_best(gpt2, method):
    scores = attribute(gpt2, MIXED, method)
    circuit = select(scores, nodes=4)
    best = scores.by_node[1:].abs().topk(4).indices + 1
    inside = {"input", "logits", *(gpt2.graph.sources[i] for i in best.tolist())}
    every = [gpt2.graph.edge(u, v) for u, v in gpt2.graph.mask.nonzero().tolist()]
    ends = {edge: {end.partition("<")[0] for end in edge.split("->")} for edge in every}
    assert set(circuit.edges) == {edge for edge in every if ends[edge] <= inside}
    assert circuit.about["selection"]["how"] == "nodes"


def test_the_largest_edges_of_node_scores_are_whole_nodes(gpt2):
    scores = attribute(gpt2, MIXED, "nap-ig")
    nodes = select(scores, nodes=5, prune=False)
    edges = select(scores, n=len(nodes) + 1, prune=False)  # input->logits has input's own score, the largest
    assert set(nodes.edges) <= set(edges.edges) | {"input->logits"}


def test_they_are_saved_measured_and_read_again(gpt2, tmp_path):
    scores = attribute(gpt2, MIXED, "nap-gp")
    scores.save(tmp_path / "scores.safetensors")
    again = load_scores(tmp_path / "scores.safetensors")
    assert torch.equal(again.by_node, scores.by_node)
    everything = select(again, nodes=gpt2.graph.n_sources - 1)
    assert evaluate(gpt2, everything, MIXED).faithfulness == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("n", [0, 13])
def test_a_wrong_number_of_nodes_is_refused(gpt2, n):
    with pytest.raises(UsageError, match="12 heads and MLPs"):
        select(attribute(gpt2, MIXED, "nap"), nodes=n)


def test_a_saturated_node_is_found_that_the_plain_gradient_misses():
    model = saturated()
    without, m0 = model.graph.mask.clone(), model.graph.sources.index("m0")
    without[m0] = False
    both = [reference.patched_metric(model, TASK, mask).mean() for mask in (model.graph.mask, without)]
    assert float(both[0] - both[1]) == pytest.approx(1, rel=1e-6)
    assert float(attribute(model, TASK, "nap").by_node[m0]) == 0
    assert float(attribute(model, TASK, "nap-ig", steps=100).by_node[m0]) == pytest.approx(1, abs=0.03)


def test_node_scores_are_not_taken_apart_by_position(gpt2):
    with pytest.raises(UsageError, match="cannot be split by position"):
        attribute(gpt2, prompts([6, 6], [[2], [3]]), "nap", positions="token")
