"""Integrated gradients over activations: against the plain reference, its limits, and a saturated toy."""

from __future__ import annotations

import pytest
import reference
import torch
from covering import FAMILIES, FEW_BLOCKS, covering, some
from small_models import prompts, tiny_model
from toys import TASK, saturated

from gradpath.attribution.attribute import attribute

MIXED = prompts([6, 7], [[0], [2, 5]])
NAME = "eap-ig-activations"


def close(values: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> bool:
    return bool((values - expected).abs().max() <= tolerance * expected.abs().max())


@pytest.mark.parametrize(("model", "points"), covering(FAMILIES, ["all", "own"], quick=FEW_BLOCKS), indirect=["model"])
def test_engine_equals_the_plain_reference(model, points):
    expected = reference.scores_over_activations(model, MIXED, 2, own=points == "own")
    values = attribute(model, MIXED, NAME, steps=2, points=points, batch_size=1).values
    assert close(values, expected)


@pytest.mark.parametrize(("points", "ablation"), covering(["all", "own"], ["zero", "mean"]))
def test_ablations_take_the_place_of_the_corrupted_prompt(points, ablation):
    model = tiny_model("llama-grouped")
    instead = {"zero": reference.zero, "mean": reference.mean}[ablation](model, MIXED)
    expected = reference.scores_over_activations(model, MIXED, 2, own=points == "own", instead=instead)
    assert close(attribute(model, MIXED, NAME, steps=2, points=points, ablation=ablation).values, expected)


@pytest.mark.parametrize("kind", some(["gpt2", "neox", "gemma2", "olmo2"], []))
def test_own_points_are_complete_at_every_place(kind):
    """The out-edges of a place sum to what is lost when that place alone is corrupted."""
    model, task = tiny_model(kind), prompts([6], [[2]])
    values = attribute(model, task, NAME, steps=150, points="own").values
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
    for points, more in (("all", 1), ("own", 0)):
        passes = attribute(gpt2, task, NAME, points=points).facts.passes
        assert passes == {"forward": k * (layers + 1) + 2, "backward": k * (layers + 1) + more}


def test_a_saturated_edge_is_found_that_the_plain_gradient_misses():
    model, edge = saturated(), "m0->m1"
    exact = reference.exact_scores(model, TASK)[model.graph.index(edge)]
    assert float(exact) == pytest.approx(1, rel=1e-6)
    assert attribute(model, TASK, "eap")[edge] == 0
    assert attribute(model, TASK, NAME, steps=100, points="own")[edge] == pytest.approx(1, abs=0.03)
    # The mean over all five places has the two below m1 in which it is not flat: input and m0.
    assert attribute(model, TASK, NAME, steps=100)[edge] == pytest.approx(2 / 5, abs=0.03)
