"""AtP*'s corrections: against the plain reference, in their limit, and where the plain gradient vanishes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import reference
import torch
from covering import covering, families
from small_models import prompts, tiny_model
from toys import CLEAN, CORRUPTED, RIGHT, TASK, WRONG, cancelling, certain

from gradpath.attribution.attribute import attribute
from gradpath.tasks.task import Task

MIXED = prompts([5, 6], [[1], [2, 5]])


def close(values: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> bool:
    return bool((values - expected).abs().max() <= tolerance * expected.abs().max())


@families("qwen3")
def test_engine_equals_the_plain_reference(model):
    expected = reference.atp_star(model, MIXED, qk=True, drop=True)
    assert close(attribute(model, MIXED, "atp-star").values, expected)


@pytest.mark.parametrize(("kind", "one"), covering(["gpt2", "neox", "gemma2", "olmo2"], ["qk", "drop"]))
def test_each_correction_can_be_switched(kind, one):
    model, qk, drop = tiny_model(kind), one == "qk", one == "drop"
    expected = reference.atp_star(model, MIXED, qk=qk, drop=drop)
    assert close(attribute(model, MIXED, "atp-star", qk=qk, drop=drop).values, expected)


def test_without_corrections_it_is_eap(gpt2):
    eap = attribute(gpt2, MIXED, "eap").values
    assert close(attribute(gpt2, MIXED, "atp-star", qk=False, drop=False).values, eap)


def test_an_ablation_takes_the_place_of_the_corrupted_prompt(gpt2):
    instead = reference.zero(gpt2, MIXED)
    expected = reference.atp_star(gpt2, MIXED, qk=True, drop=True, instead=instead)
    assert close(attribute(gpt2, MIXED, "atp-star", ablation="zero").values, expected)


@pytest.mark.parametrize("kind", ["llama-grouped", "gemma2", "olmo2"])
def test_small_changes_of_queries_and_keys_are_linear(kind):
    model = tiny_model(kind).to(dtype=torch.float64)
    embedding = model.embedding.clone()
    embedding[5] = embedding[4] + 1e-5 * torch.randn(model.arch.d_model)
    model = replace(model, embedding=embedding)
    task = Task(torch.tensor([[7, 4, 9, 8]]), torch.tensor([[7, 5, 9, 8]]), torch.tensor([[11, 12]]))
    eap = attribute(model, task, "eap").values
    assert close(attribute(model, task, "atp-star", drop=False).values, eap, 1e-3)


def test_passes_are_counted_as_promised(gpt2):
    task = prompts([6, 6], [[2], [3]])
    # Of a layer's 12 d^2 weights 3 d^2 make queries, keys and values; layer l has 1 + 4 l sources below.
    below = sum(1 + 4 * layer for layer in range(3))
    qk = round(2 + below * 3 / 12 / 3, 2)
    assert attribute(gpt2, task, "atp-star").facts.passes == {"forward": qk, "backward": 2}
    passes = attribute(gpt2, task, "atp-star", qk=False, drop=False).facts.passes
    assert passes == {"forward": 2, "backward": 1}


def test_a_saturated_pattern_is_turned_over_that_the_plain_gradient_cannot():
    model, edge = certain(), "input->a0.h0<q>"
    pair = torch.tensor([[RIGHT, CLEAN]]), torch.tensor([[RIGHT, CORRUPTED]])
    task = Task(*pair, torch.tensor([[RIGHT, WRONG]]))
    exact = float(reference.exact_scores(model, task)[model.graph.index(edge)])
    assert exact == pytest.approx(3, rel=1e-6)
    assert abs(attribute(model, task, "eap")[edge]) < 1e-6
    assert attribute(model, task, "atp-star", drop=False)[edge] == pytest.approx(exact, rel=1e-6)


def test_effects_that_cancel_in_the_gradient_are_told_apart():
    model, edge = cancelling(), "input->m0"
    exact = float(reference.exact_scores(model, TASK)[model.graph.index(edge)])
    assert exact > 0.2
    assert abs(attribute(model, TASK, "eap")[edge]) < 1e-6
    assert attribute(model, TASK, "atp-star")[edge] > 0.2
