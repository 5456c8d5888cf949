"""Relevance patching: against a run with its constants held, rule by rule, and on a flat activation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import reference
import torch
from covering import FEW_BLOCKS, families, some
from small_models import prompts, tiny_model
from toys import TASK, at_its_lowest

from gradpath.attribution.attribute import attribute
from gradpath.model.architecture import Rules
from gradpath.tasks.task import Task

MIXED = prompts([6, 8, 6], [[0], [4], [2, 5]])
RULES = ("norm", "attention", "gate", "activation")


def close(values: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> bool:
    return bool((values - expected).abs().max() <= tolerance * expected.abs().max())


def expected(model, task: Task, *rules: str) -> torch.Tensor:
    held = replace(model, rules=Rules(**dict.fromkeys(rules, True)))
    return reference.scores(held, task, reference.straight_line([1.0]))


@families(*FEW_BLOCKS)
def test_engine_equals_a_forward_pass_with_constants(model):
    assert close(attribute(model, MIXED, "relp", batch_size=2).values, expected(model, MIXED, *RULES))


@pytest.mark.parametrize("kind", some(["gpt2", "gemma2", "qwen3", "olmo2"], ["gpt2", "gemma2"]))
def test_each_rule_can_be_switched(kind):
    model = tiny_model(kind)
    for rule in RULES:
        options = {name: name == rule for name in RULES}
        assert close(attribute(model, MIXED, "relp", **options).values, expected(model, MIXED, rule))
    without = attribute(model, MIXED, "relp", **dict.fromkeys(RULES, False)).values
    assert torch.equal(without, attribute(model, MIXED, "eap").values)


def test_constant_patterns_leave_nothing_for_queries_and_keys(gpt2):
    values = attribute(gpt2, MIXED, "relp").values
    reads_a_pattern = torch.tensor(["<q>" in name or "<k>" in name for name in gpt2.graph.targets])
    assert float(values[:, reads_a_pattern].abs().max()) == 0
    assert float(values[:, ~reads_a_pattern].abs().max()) > 0


def test_relevance_is_conserved_where_nothing_is_added_on_the_way():
    """Without biases or positions, x . dL/dx by the rules is L: all of it is shared out over the input."""
    model = tiny_model("llama-grouped").to(dtype=torch.float64)
    task = Task(torch.tensor([[7, 4, 9]]), torch.tensor([[5, 4, 9]]), torch.tensor([[11, 12]]))
    # Against nothing, over all positions: x_u - 0.
    values = attribute(model, task, "relp", ablation="zero").values
    whole = reference.patched_metric(model, task, model.graph.mask).mean()
    assert float(values[0].sum()) == pytest.approx(float(whole), rel=1e-4)


def test_a_flat_activation_is_seen_that_the_plain_gradient_misses():
    model, edge = at_its_lowest(), "input->m0"
    exact = float(reference.exact_scores(model, TASK)[model.graph.index(edge)])
    assert exact < -0.2
    assert abs(attribute(model, TASK, "eap")[edge]) < 1e-6
    assert attribute(model, TASK, "relp")[edge] == pytest.approx(exact, rel=1e-4)
