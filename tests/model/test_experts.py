"""Mixtures of experts: which expert sees which token, gradients of the routing, and refusals."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from small_models import VOCAB, tiny_hf, tiny_model
from torch import Tensor

from gradpath.errors import InputError
from gradpath.model.architecture import route, run_experts
from gradpath.model.families import convert

KINDS = ("deepseek-v2", "deepseek-v3", "glm4-moe", "gpt-oss", "llama4", "mixtral", "olmoe", "qwen2-moe", "qwen3-moe")
IDS = torch.randint(3, VOCAB, (3, 12), generator=torch.Generator().manual_seed(3))


def test_each_expert_runs_on_its_own_tokens_only():
    layer = tiny_model("mixtral").layers[0]
    y, seen = torch.randn(4, 6, 24), list[int]()

    def counting(rows: Tensor, *weights: Tensor) -> Tensor:
        seen.append(len(rows))
        return rows

    run_experts(layer.experts, y, counting)
    assert sum(seen) == 4 * 6 * 2  # two experts a token
    assert len(seen) <= 5
    assert run_experts(layer.experts, y[:0], counting).shape == (0, 6, 24)


@pytest.mark.parametrize("kind", KINDS)
def test_choices_in_half_precision_are_those_of_transformers(kind):
    """Some routers compute in float32 whatever the model's precision is, and others round their logits."""
    original = copy.deepcopy(tiny_hf(kind)).to(torch.bfloat16)
    routers = [module for name, module in original.named_modules() if name.endswith((".gate", ".router"))]
    for name, weight in original.named_parameters():
        if name.endswith("post_attention_layernorm.weight"):
            weight.data.fill_(1)  # a gain that is folded into the router would be rounded with it
    layers = [layer.experts for layer in convert(original).layers if layer.experts is not None]
    rows = torch.randn(20000, 24, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    for router, experts in zip(routers, layers, strict=True):
        with torch.no_grad():
            theirs = router(rows)
        weights, chosen = route(experts, rows)
        if kind == "llama4":  # it gives all scores, zero where an expert is not chosen
            expected = theirs[0]
        else:
            expected = torch.zeros(len(rows), len(experts.router)).scatter(1, theirs[2], theirs[1].float())
        ours = torch.zeros(len(rows), len(experts.router)).scatter(1, chosen, weights.float())
        assert torch.equal(ours > 0, expected > 0)
        assert torch.allclose(ours, expected.float(), atol=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_the_routing_differs_between_tokens_and_its_weights_have_gradients(kind):
    """Otherwise the comparisons with transformers and the reference would prove little."""
    model = tiny_model(kind)
    layer = next(layer for layer in model.layers if layer.experts is not None)
    y = model.norm(model.embed(IDS).flatten(0, 1))[0].requires_grad_()
    weights, chosen = route(layer.experts, y)
    assert len(chosen.unique()) > 2
    assert bool(torch.autograd.grad(weights[:, 0].sum(), y)[0].any())


def test_the_derivative_is_that_of_a_fixed_choice():
    """A small step that changes no choice changes the output by the gradient."""
    model = tiny_model("mixtral").to(dtype=torch.float64)
    layer, x = model.layers[0], torch.randn(1, 5, 24, dtype=torch.float64, requires_grad=True)
    step = 1e-6 * torch.randn_like(x)
    (slope,) = torch.autograd.grad(model.mlp(layer, x).sum(), x)
    difference = (model.mlp(layer, x + step) - model.mlp(layer, x - step)).sum() / 2
    assert float((slope * step).sum()) == pytest.approx(difference.item(), rel=1e-6)


def test_moving_a_model_moves_its_experts_and_keeps_the_correction_exact():
    half = tiny_model("glm4-moe").to(dtype=torch.bfloat16).layers[1].experts
    assert half.w_in.dtype == half.router.dtype == torch.bfloat16
    assert half.choice_bias.dtype == torch.float32


def test_experts_are_part_of_the_digest():
    model = tiny_model("qwen3-moe")
    layer = model.layers[2]
    other = replace(layer, experts=replace(layer.experts, per_token=3))
    assert replace(model, layers=(*model.layers[:2], other)).digest != model.digest


@pytest.mark.parametrize(
    ("kind", "setting", "value"),
    [
        ("glm4-moe", "n_group", 2),
        ("glm4-moe", "topk_group", 2),
        ("deepseek-v3", "n_group", 6),
        ("deepseek-v2", "num_experts_per_tok", 5),
        ("deepseek-v2", "topk_method", "noaux_tc"),
        ("deepseek-v2", "norm_topk_prob", True),
        ("olmoe", "clip_qkv", 8.0),
    ],
)
def test_routing_that_is_not_implemented_is_refused_by_name(kind, setting, value):
    model = copy.deepcopy(tiny_hf(kind))
    setattr(model.config, setting, value)
    with pytest.raises(InputError, match="n_group" if setting == "num_experts_per_tok" else setting):
        convert(model)
