"""What the experiments compute for themselves, against the library's own slow or general way."""

from __future__ import annotations

import pytest
import torch
from covering import BLOCKS, FAMILIES, covering, families
from small_models import prompts

from gradpath.attribution.attribute import attribute
from gradpath.attribution.patching import passes
from gradpath.circuit import Circuit
from gradpath.evaluation import evaluate
from gradpath.paper.saturation import follow_gradpath, follow_line
from gradpath.paper.steps import attribute_nested, is_nested
from gradpath.study import method_options, method_recipe
from gradpath.sweep import Limits

TASK = prompts([6, 9, 9, 7], [[2], [4, 6], [3], [5]])


@families("gpt2", "phi", "olmo2")
def test_exact_patching_is_the_circuit_of_all_edges_but_one(model):
    index = model.graph.mask.nonzero()
    found = attribute(model, TASK, "exact", batch_size=3).values[model.graph.mask]
    some = list(range(0, len(index), 11))
    without = [torch.cat([index[:i], index[i + 1 :]]) for i in some]
    circuits = [Circuit(model.graph, kept, torch.zeros(len(kept))) for kept in without]
    expected = torch.tensor([result.clean - result.circuit for result in evaluate(model, circuits, TASK)])
    torch.testing.assert_close(found[some], expected, atol=1e-5, rtol=1e-4)


def test_an_exact_pass_starts_at_the_edges_layer(gpt2):
    graph = gpt2.graph
    edges = [graph.index(name) for name in ("input->a0.h0<q>", "a1.h0->a2.h1<v>", "m2->logits")]
    assert passes(gpt2, edges) == pytest.approx(2 + 1 + 1 / 3 + 0)


EDGES = ["input->a0.h1<q>", "m0->a2.h1<k>", "a0.h2->a1.h0<v>", "a1.h1->m1", "m1->logits"]


@pytest.mark.parametrize(("model", "edge"), covering(FAMILIES, EDGES, quick=BLOCKS[:4]), indirect=["model"])
def test_the_mean_of_an_edges_points_is_its_score(model, edge):
    if model.graph.parallel:
        edge = edge.replace("->m1", "->m2")  # no MLP reads the heads beside it
    line = follow_line(model, TASK, edge, 5, limits=Limits(3))
    ours = float(line["score"][:4].mean())  # EAP-IG's points: all but the corrupted prompt
    assert ours == pytest.approx(attribute(model, TASK, "eap-ig", steps=4)[edge], rel=1e-3, abs=1e-6)
    path = follow_gradpath(model, TASK, edge, 3, limits=Limits(3))
    scores = attribute(model, TASK, "eap-gp", steps=3, stride="unit", outputs="all")
    assert float(path["score"][1:].mean()) == pytest.approx(scores[edge], rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("follow", [follow_line, follow_gradpath])
def test_what_is_met_does_not_depend_on_the_batch(gpt2, follow):
    one, many = (follow(gpt2, TASK, "a0.h2->a1.h0<v>", 3, limits=Limits(size)) for size in (1, 4))
    for name in one:
        torch.testing.assert_close(one[name], many[name], atol=1e-5, rtol=1e-3)


def test_the_metric_along_the_line_goes_from_clean_to_corrupted(gpt2):
    empty = Circuit(gpt2.graph, torch.zeros(0, 2, dtype=torch.long), torch.zeros(0))
    result = evaluate(gpt2, empty, TASK)
    metric = follow_line(gpt2, TASK, "input->m0", 3, limits=Limits(4))["metric"]
    near = {"atol": 1e-5, "rtol": 1e-4, "check_dtype": False}
    torch.testing.assert_close(metric[0], result.clean_values, **near)
    torch.testing.assert_close(metric[-1], result.corrupted_values, **near)


@pytest.mark.parametrize("text", ["", "+start=true", "+move=differing"])
def test_one_walk_gives_the_scores_of_every_number_of_steps(gpt2, text):
    method = method_recipe(f"eap-gp+stride=unit{text}")
    found = attribute_nested(gpt2, TASK, method, [2, 3, 9], limits=Limits(3))
    for k, scores in found.items():
        plain = attribute(gpt2, TASK, "eap-gp", batch_size=3, **method_options(method.changed(steps=k)))
        torch.testing.assert_close(scores.values, plain.values, atol=1e-6, rtol=1e-4)
        assert (scores.recipe, scores.facts) == (plain.recipe, plain.facts)


def test_only_paths_whose_points_do_not_depend_on_k_are_nested():
    assert is_nested(method_recipe("eap-gp+stride=unit"))
    for word in ("eap-gp", "eap-gp+stride=unit+pin_end=true", "eap-ig"):
        assert not is_nested(method_recipe(word))
