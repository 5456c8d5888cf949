"""Zero and mean ablation against the plain reference, and at both ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
import reference
import torch
from covering import BLOCKS, FAMILIES, FEW_BLOCKS, covering
from random_circuits import MIXED, circuit_of, random_mask
from small_models import prompts

from gradpath import selection
from gradpath.attribution.attribute import attribute
from gradpath.errors import UsageError
from gradpath.evaluation import evaluate
from gradpath.selection import select

ABLATIONS = {"zero": reference.zero, "mean": reference.mean, "mean-positional": reference.mean_positional}
OTHERS = prompts([5, 8, 7], [[1], [2], [0, 6]])  # shorter than MIXED: its last position is in no prompt


@pytest.mark.parametrize(("model", "name"), covering(FAMILIES, list(ABLATIONS), quick=BLOCKS), indirect=["model"])
def test_all_edges_give_the_clean_run_and_none_the_ablated_one(model, name):
    masks = model.graph.mask, model.graph.mask & False
    full, empty = evaluate(model, [circuit_of(model.graph, mask) for mask in masks], MIXED, batch_size=3, ablation=name)
    assert torch.allclose(full.circuit_values, full.clean_values, atol=1e-4)
    expected = reference.patched_metric(model, MIXED, masks[1], ABLATIONS[name](model, MIXED))
    assert torch.allclose(empty.circuit_values.double(), expected, atol=1e-4)
    assert torch.allclose(empty.corrupted_values, empty.circuit_values, atol=1e-5)
    assert empty.faithfulness == pytest.approx(0, abs=1e-4)
    plain = evaluate(model, circuit_of(model.graph, masks[0]), MIXED)
    assert torch.allclose(plain.clean_values, full.clean_values, atol=1e-5)
    assert not torch.allclose(plain.corrupted_values, full.corrupted_values, atol=1e-2)


@pytest.mark.parametrize(
    ("model", "name", "share"), covering(FAMILIES, list(ABLATIONS), [0.03, 0.3, 0.8], quick=BLOCKS), indirect=["model"]
)
def test_evaluation_equals_the_plain_reference(model, name, share):
    """The masks are not pruned: there are nodes that write and read nothing."""
    masks = [random_mask(model.graph, share, seed) for seed in range(2)]
    circuits = [circuit_of(model.graph, mask) for mask in masks]
    results = evaluate(model, circuits, MIXED, batch_size=2, ablation=name, mean_over=OTHERS)
    instead = ABLATIONS[name](model, OTHERS)
    for mask, result in zip(masks, results, strict=True):
        expected = reference.patched_metric(model, MIXED, mask, instead)
        assert torch.allclose(result.circuit_values.double(), expected, atol=1e-4)


METHODS = {
    "eap": ({}, reference.straight_line([1.0])),
    "eap-ig": ({"steps": 3}, reference.straight_line([1 / 3, 2 / 3, 1.0])),
    "eap-gp": ({"steps": 2}, reference.grad_path(2)),
}


@pytest.mark.parametrize(
    ("model", "name", "method"),
    covering(FAMILIES, list(ABLATIONS), list(METHODS), quick=FEW_BLOCKS),
    indirect=["model"],
)
def test_attribution_equals_the_plain_reference(model, name, method):
    options, path = METHODS[method]
    found = attribute(model, MIXED, method, batch_size=2, ablation=name, mean_over=OTHERS, **options)
    expected = reference.scores(model, MIXED, path, ABLATIONS[name](model, OTHERS))
    size = expected.abs().max()
    assert torch.allclose(found.values.double(), expected, atol=1e-4 * float(size), rtol=1e-4)
    assert found.recipe.ablation == name


def test_a_positive_score_is_of_an_edge_that_ablation_hurts(gpt2):
    """Leaving out one edge into the logits moves the metric by about its score."""
    scores = attribute(gpt2, MIXED, "eap", ablation="mean")
    for edge in ("a2.h0->logits", "m2->logits", "a2.h1->logits"):
        mask = gpt2.graph.mask.clone()
        mask[gpt2.graph.index(edge)] = False
        result = evaluate(gpt2, circuit_of(gpt2.graph, mask), MIXED, ablation="mean")
        drop = float((result.clean_values - result.circuit_values).mean())
        assert drop == pytest.approx(scores[edge], rel=0.5, abs=0.02)


def test_a_circuit_is_measured_with_what_it_was_found_with_unless_told(gpt2):
    scores = attribute(gpt2, MIXED, "eap", ablation="zero")
    circuit = select(scores, 40)
    assert circuit.recipe.ablation == "zero"
    own, zero, corrupted = (
        evaluate(gpt2, circuit, MIXED, ablation=name).circuit_values for name in (None, "zero", "corrupted")
    )
    assert torch.equal(own, zero)
    assert not torch.allclose(own, corrupted, atol=1e-3)
    other = select(attribute(gpt2, MIXED, "eap"), 40)
    with pytest.raises(UsageError, match=r"different ablations \(corrupted, zero\)"):
        evaluate(gpt2, [circuit, other], MIXED)


@pytest.mark.parametrize(("how", "n"), [("refined", 25), ("refined", 40)])
def test_selections_that_measure_do_so_with_the_ablation_of_the_scores(gpt2, monkeypatch, how, n):
    monkeypatch.setattr("gradpath.selection.probe.START", 0.8)
    scores = attribute(gpt2, MIXED, "eap", ablation="mean")
    as_if = replace(scores, recipe=scores.recipe.changed(ablation="corrupted"))
    own, other = (selection.select(x, n, selection=how, model=gpt2, task=MIXED) for x in (scores, as_if))
    assert set(own.edges) != set(other.edges)
