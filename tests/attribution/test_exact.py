"""Exact patching as a method: against the reference, a sample of edges, its cost, and a saturated toy."""

from __future__ import annotations

import pytest
import reference
import torch
from covering import some
from small_models import prompts, tiny_model
from toys import TASK, saturated

from gradpath.attribution.attribute import attribute
from gradpath.attribution.exact import exact_scores, passes, sample
from gradpath.circuit import Circuit
from gradpath.errors import UsageError

MIXED = prompts([5, 6], [[1], [2, 5]])


def close(values: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> bool:
    return bool((values - expected).abs().max() <= tolerance * expected.abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("kind", some(["gpt2", "neox", "gemma2", "olmo2"], ["neox"]))
def test_every_edge_is_the_circuit_of_all_others(kind):
    model = tiny_model(kind).to(dtype=torch.float64)
    assert close(attribute(model, MIXED, "exact").values, reference.exact_scores(model, MIXED))


@pytest.mark.slow
def test_an_ablation_takes_the_place_of_the_corrupted_prompt(gpt2):
    model = gpt2.to(dtype=torch.float64)
    expected = reference.exact_scores(model, MIXED, reference.zero(model, MIXED))
    assert close(attribute(model, MIXED, "exact", ablation="zero").values, expected)


def test_a_sample_has_the_scores_of_its_edges_and_no_others(gpt2):
    every, some = (attribute(gpt2, MIXED, "exact", edges=n, seed=3).values for n in (0, 20))
    chosen = torch.zeros_like(gpt2.graph.mask)
    chosen[tuple(torch.tensor(sample(gpt2.graph, 20, 3)).T)] = True
    assert int(chosen.sum()) == 20
    assert close(some[chosen], every[chosen])
    assert float(some[~chosen].abs().max()) == 0


def test_passes_are_those_of_the_layers_above(gpt2):
    scores = attribute(gpt2, MIXED, "exact", edges=7)
    expected = passes(gpt2, sample(gpt2.graph, 7, 0))
    assert scores.facts.passes == {"forward": pytest.approx(expected, abs=0.01), "backward": 0}
    assert passes(gpt2, [(0, gpt2.graph.index("input->a1.h0<q>")[1])]) == pytest.approx(2 + 2 / 3)


def test_what_would_take_very_long_is_refused_unless_one_is_sure(gpt2, monkeypatch):
    monkeypatch.setattr("gradpath.limits.MOST_PASSES", 100)
    with pytest.raises(UsageError, match=r"patching \d+ edges on 2 examples takes about \d+ forward passes"):
        attribute(gpt2, MIXED, "exact")
    attribute(gpt2, MIXED, "exact", edges=5)
    attribute(gpt2, MIXED, "exact", sure=True)


def test_some_edges_by_hand_are_those_of_the_method(gpt2):
    edges = sample(gpt2.graph, 9, 1)
    values = attribute(gpt2, MIXED, "exact", edges=9, seed=1).values
    found = exact_scores(gpt2, MIXED, edges)
    assert close(found, torch.stack([values[edge] for edge in edges]))
    names = [gpt2.graph.edge(*edge) for edge in edges]
    assert torch.equal(exact_scores(gpt2, MIXED, names), found)
    assert torch.equal(exact_scores(gpt2, MIXED, Circuit.from_edges(gpt2, names)), found)
    with pytest.raises(UsageError, match="a list of names"):
        exact_scores(gpt2, MIXED, names[0])


def test_a_saturated_edge_is_found_that_the_plain_gradient_misses():
    model = saturated()
    assert attribute(model, TASK, "eap")["m0->m1"] == 0
    assert attribute(model, TASK, "exact")["m0->m1"] == pytest.approx(1, rel=1e-6)
