"""Gradient interaction modifications: against the plain model rule by rule, in its limits, and on self-repair."""

from __future__ import annotations

from dataclasses import replace

import pytest
import reference
import torch
from covering import FEW_BLOCKS, families, some
from small_models import prompts, tiny_model

from gradpath.attribution.attribute import attribute
from gradpath.model.architecture import Rules

MIXED = prompts([6, 8, 6], [[0], [4], [2, 5]])
OFF = {"temperature": 1.0, "norm": False, "products": False, "gate": False}
ON = {"temperature": 2.0, "norm": True, "products": True, "gate": True}


def close(values: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> bool:
    return bool((values - expected).abs().max() <= tolerance * expected.abs().max())


def expected(model, options: dict) -> torch.Tensor:
    return reference.scores(replace(model, rules=Rules(**options)), MIXED, reference.straight_line([1.0]))


@families(*FEW_BLOCKS)
def test_engine_equals_the_plain_model_with_the_same_rules(model):
    assert close(attribute(model, MIXED, "gim", batch_size=2).values, expected(model, ON))


@pytest.mark.parametrize("kind", some(["gpt2", "gemma2", "qwen3", "olmo2"], ["gpt2", "gemma2"]))
def test_each_rule_can_be_switched(kind):
    model = tiny_model(kind)
    for rule, value in {**ON, "temperature": 3.5}.items():
        options = {**OFF, rule: value}
        assert close(attribute(model, MIXED, "gim", **options).values, expected(model, options))
    assert torch.equal(attribute(model, MIXED, "gim", **OFF).values, attribute(model, MIXED, "eap").values)


def test_products_in_the_last_layer_leave_a_quarter_to_queries_and_keys_and_half_to_values(gpt2):
    """Nothing comes after the last attention but its own products, so its edges are those of EAP, divided."""
    eap = attribute(gpt2, MIXED, "eap").values
    divided = attribute(gpt2, MIXED, "gim", **{**OFF, "products": True}).values
    last = gpt2.arch.n_layers - 1
    for kind, share in (("q", 4), ("k", 4), ("v", 2)):
        columns = [
            i for i, name in enumerate(gpt2.graph.targets) if name.startswith(f"a{last}.") and f"<{kind}>" in name
        ]
        torch.testing.assert_close(divided[:, columns] * share, eap[:, columns])
    torch.testing.assert_close(divided[:, -1], eap[:, -1])


def test_the_softmax_sees_what_repairs_itself(gpt2):
    """Both keys of a saturated pair have almost no slope at temperature 1, and a clear one at temperature 2."""
    logits = torch.tensor([[12.0, 11.0, -8.0]], dtype=torch.float64, requires_grad=True)
    values = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    slopes = []
    for t in (1.0, 2.0, 1e9):
        pattern = replace(gpt2, rules=Rules(temperature=t))._softmax(logits)
        torch.testing.assert_close(pattern, logits.softmax(-1))
        slopes.append(torch.autograd.grad(pattern[0] @ values, logits)[0][0, :2].sum())
    # Of all three at equal weights, two thirds carry 1: 2 x 1/3 (1 - 2/3) is the most there can be.
    assert slopes[0] < 1e-8 < 1e-5 < slopes[1]
    assert float(slopes[2]) == pytest.approx(2 / 9)
