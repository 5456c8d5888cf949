"""What each method is for: its limits, its cost, and small models where the plain gradient is wrong."""

from __future__ import annotations

import pytest
import reference
import torch
from reference import close
from small_models import prompts, tiny_model
from toys import CLEAN, CORRUPTED, RIGHT, TASK, WRONG, at_its_lowest, cancelling, certain, saturated

from gradpath.attribution.attribute import attribute
from gradpath.attribution.methods import METHODS, find_method, recorded_method
from gradpath.attribution.patching import passes, sample
from gradpath.errors import UsageError
from gradpath.evaluation import evaluate
from gradpath.graph import Graph
from gradpath.scores import Scores
from gradpath.selection import select
from gradpath.tasks.load import clean_logits
from gradpath.tasks.task import Task, judged_by_kl

MIXED = prompts([5, 6], [[1], [2, 5]])
SATURATED = Task(torch.tensor([[RIGHT, CLEAN]]), torch.tensor([[RIGHT, CORRUPTED]]), torch.tensor([[RIGHT, WRONG]]))


@pytest.mark.parametrize(
    ("toy", "task", "edge", "method", "options", "off"),
    [
        (saturated, TASK, "m0->m1", "exact", {}, 1e-6),
        (saturated, TASK, "m0->m1", "eap-ig-activations", {"steps": 40, "points": "own"}, 0.06),
        (certain, SATURATED, "input->a0.h0<q>", "atp-star", {"drop": False}, 1e-6),
        (at_its_lowest, TASK, "input->m0", "relp", {}, 1e-4),
    ],
)
def test_an_effect_is_found_that_the_plain_gradient_misses(toy, task, edge, method, options, off):
    model = toy()
    exact = float(reference.exact_scores(model, task)[model.graph.index(edge)])
    assert abs(exact) > 0.2
    assert abs(attribute(model, task, "eap")[edge]) < 1e-6
    assert attribute(model, task, method, **options)[edge] == pytest.approx(exact, rel=off)


def test_effects_that_cancel_in_the_gradient_are_told_apart():
    model, edge = cancelling(), "input->m0"
    assert float(reference.exact_scores(model, TASK)[model.graph.index(edge)]) > 0.2
    assert abs(attribute(model, TASK, "eap")[edge]) < 1e-6
    assert attribute(model, TASK, "atp-star")[edge] > 0.2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "gemma2"])
def test_own_points_are_complete_at_every_place(kind):
    """The out-edges of a place sum to what is lost when that place alone is corrupted."""
    model, task = tiny_model(kind), prompts([6], [[2]])
    values = attribute(model, task, "eap-ig-activations", steps=150, points="own").values
    every = model.graph.mask
    clean = reference.patched_metric(model, task, every)
    losses, sums = [], []
    for place in reference.places(model):
        without = every.clone()
        without[place] = False
        losses.append(float((clean - reference.patched_metric(model, task, without)).mean()))
        sums.append(float(values[place].sum()))
    largest = max(map(abs, losses))
    assert largest > 0
    assert max(abs(a - b) for a, b in zip(losses, sums, strict=True)) < 0.02 * largest


def test_passes_are_counted_as_promised(gpt2):
    task, layers, k = prompts([6, 6], [[2], [3]]), gpt2.arch.n_layers, 5
    # Of a layer's 12 d^2 weights 3 d^2 make queries, keys and values; layer l has 1 + 4 l sources below.
    qk = round(2 + sum(1 + 4 * layer for layer in range(layers)) * 3 / 12 / layers, 2)
    promised = [
        ("eap", {}, 2, 1),
        ("clean-corrupted", {}, 2, 2),
        ("eap-ig", {}, 6, 5),
        ("eap-gp", {}, 6, 9),
        ("relp", {}, 2, 1),
        ("gim", {}, 2, 1),
        ("atp-star", {}, qk, 2),
        ("atp-star", {"drop": False}, qk, 1),
        ("eap-ig-activations", {}, k * (layers + 1) + 2, k * (layers + 1) + 1),
        ("eap-ig-activations", {"points": "own"}, k * (layers + 1) + 2, k * (layers + 1)),
        ("exact", {"edges": 7}, pytest.approx(passes(gpt2, sample(gpt2.graph, 7, 0)), abs=0.01), 0),
    ]
    for method, options, forward, backward in promised:
        counted = attribute(gpt2, task, method, **options).facts.passes
        assert counted == {"forward": forward, "backward": backward}, method
    assert passes(gpt2, [(0, gpt2.graph.index("input->a1.h0<q>")[1])]) == pytest.approx(2 + 2 / 3)


def test_relevance_is_conserved_where_nothing_is_added_on_the_way():
    """Without biases or positions, x . dL/dx by the rules is L: all of it is shared out over the input."""
    model = tiny_model("llama-grouped").to(dtype=torch.float64)
    task = Task(torch.tensor([[7, 4, 9]]), torch.tensor([[5, 4, 9]]), torch.tensor([[11, 12]]))
    # Against nothing, over all positions: x_u - 0.
    values = attribute(model, task, "relp", ablation="zero").values
    whole = reference.patched_metric(model, task, model.graph.mask).mean()
    assert float(values[0].sum()) == pytest.approx(float(whole), rel=1e-4)


def test_a_sample_has_the_scores_of_its_edges_and_no_others(gpt2):
    every, some = (attribute(gpt2, MIXED, "exact", edges=n, seed=3).values for n in (0, 20))
    edges = sample(gpt2.graph, 20, 3)
    chosen = torch.zeros_like(gpt2.graph.mask)
    chosen[tuple(torch.tensor(edges).T)] = True
    assert int(chosen.sum()) == 20
    assert close(some[chosen], every[chosen])
    assert float(some[~chosen].abs().max()) == 0


def test_what_would_take_very_long_is_refused_unless_one_is_sure(gpt2, monkeypatch):
    monkeypatch.setattr("gradpath.sweep.MOST_PASSES", 100)
    with pytest.raises(UsageError, match=r"patching \d+ edges on 2 examples takes about \d+ forward passes"):
        attribute(gpt2, MIXED, "exact")
    attribute(gpt2, MIXED, "exact", edges=5)
    attribute(gpt2, MIXED, "exact", sure=True)


@pytest.mark.parametrize("name", METHODS)
def test_kl_is_refused_where_it_has_no_gradient_and_only_there(gpt2, name):
    """At the clean prompt the gradient of kl is zero, so scores would be rounding errors."""
    task = judged_by_kl(MIXED, clean_logits(gpt2, MIXED))
    method = find_method(name)
    if method.at_clean(method.defaults):
        with pytest.raises(UsageError, match=f"kl has no gradient at the clean prompt, where {name} takes it"):
            attribute(gpt2, task, name)
    else:
        assert float(attribute(gpt2, task, name).values.abs().max()) > 1e-4


@pytest.mark.parametrize(("name", "changes"), [("eap-ig", {"steps": 2, "end": "middle"}), ("exact", {"edges": 3})])
def test_a_method_and_its_options_follow_from_the_provenance_of_its_scores(gpt2, name, changes):
    method, options = recorded_method(attribute(gpt2, MIXED, name, **changes).recipe)
    assert method is find_method(name)
    assert options == find_method(name).options(changes) != find_method(name).options({})


def test_a_node_has_the_sum_of_its_out_edges():
    graph = Graph(2, 1)
    scores = Scores(graph, torch.arange(graph.mask.numel()).view(graph.mask.shape) * graph.mask / 7)
    assert list(scores.nodes) == ["input", "a0.h0", "m0", "a1.h0", "m1"]
    for node, score in scores.nodes.items():
        out = [graph.edge(u, v) for u, v in graph.mask.nonzero().tolist() if graph.sources[u] == node]
        assert score == pytest.approx(sum(scores[edge] for edge in out), rel=1e-6)


def test_a_circuit_of_nodes_has_all_edges_among_the_best(gpt2):
    scores = attribute(gpt2, MIXED, "eap-ig")
    circuit = select(scores, nodes=4)
    best = sorted(list(scores.nodes)[1:], key=lambda node: abs(scores.nodes[node]))[-4:]
    inside = {"input", "logits", *best}
    every = [gpt2.graph.edge(u, v) for u, v in gpt2.graph.mask.nonzero().tolist()]
    ends = {edge: {end.partition("<")[0] for end in edge.split("->")} for edge in every}
    assert set(circuit.edges) == {edge for edge in every if ends[edge] <= inside}
    everything = select(scores, nodes=gpt2.graph.n_sources - 1)
    assert evaluate(gpt2, everything, MIXED).faithfulness == pytest.approx(1, abs=1e-4)
    for wrong in (0, 13):
        with pytest.raises(UsageError, match="12 heads and MLPs"):
            select(scores, nodes=wrong)
