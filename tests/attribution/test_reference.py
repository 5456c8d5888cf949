"""Every method against its definition on the slow model: all families, and every method with every ablation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import reference
import torch
from covering import FAMILIES, FEW_BLOCKS, covering
from reference import Instead, close, grad_path, straight_line
from small_models import prompts, tiny_model
from torch import Tensor

from gradpath.attribution.attribute import attribute
from gradpath.attribution.methods import METHODS as REGISTERED
from gradpath.attribution.patching import sample
from gradpath.model.architecture import Rules
from gradpath.model.transformer import Transformer
from gradpath.tasks.task import Task

TASK = prompts([6, 4], [[2, 4], [0]])  # in one batch: the second is padded
OTHERS = prompts([3, 5], [[1], [2]])  # means are over these, which do not have the last position
Expected = Callable[[Transformer, Task, Instead | None], Tensor]


def along(path: reference.Path) -> Expected:
    return lambda model, task, instead: reference.scores(model, task, path, instead)


def with_rules(**rules: Any) -> Expected:
    """EAP on a model with other rules for gradients."""
    eap = along(straight_line([1.0]))
    return lambda model, task, instead: eap(replace(model, rules=Rules(**rules)), task, instead)


def atp_star(drop: bool) -> Expected:
    return lambda model, task, instead: reference.atp_star(model, task, drop=drop, instead=instead)


def over_activations(own: bool) -> Expected:
    return lambda model, task, instead: reference.scores_over_activations(model, task, 2, own=own, instead=instead)


# The first families are small: those that take the reference longest come first.
METHODS: dict[str, tuple[str, dict[str, Any], Expected]] = {
    "atp-star": ("atp-star", {}, atp_star(drop=True)),
    "atp-star-signed": ("atp-star", {"drop": False}, atp_star(drop=False)),
    "activations": ("eap-ig-activations", {"steps": 2}, over_activations(own=False)),
    "activations-own": ("eap-ig-activations", {"steps": 2, "points": "own"}, over_activations(own=True)),
    "exact": (
        "exact",
        {"edges": 9},
        lambda model, task, instead: reference.exact_scores(model, task, instead, sample(model.graph, 9, 0)),
    ),
    "eap": ("eap", {}, along(straight_line([1.0]))),
    "clean-corrupted": ("clean-corrupted", {}, along(straight_line([1.0, 0.0]))),
    "eap-ig": ("eap-ig", {"steps": 3}, along(straight_line([1 / 3, 2 / 3, 1.0]))),
    "eap-ig-corrupted": ("eap-ig", {"steps": 3, "end": "corrupted"}, along(straight_line([0.0, 1 / 3, 2 / 3]))),
    "eap-ig-middle": ("eap-ig", {"steps": 2, "end": "middle"}, along(straight_line([0.25, 0.75]))),
    "eap-gp": ("eap-gp", {"steps": 3}, along(grad_path(3))),
    "eap-gp-everywhere": ("eap-gp", {"steps": 2, "outputs": "all"}, along(grad_path(2, reference.all_logits))),
    "eap-gp-all-move": ("eap-gp", {"steps": 3, "move": "all"}, along(grad_path(3, everywhere=True))),
    "eap-gp-from-the-start": ("eap-gp", {"steps": 3, "start": True}, along(grad_path(3, start=True))),
    "eap-gp-literal": ("eap-gp", {"steps": 3, "stride": "unit"}, along(reference.literal_grad_path(3))),
    "relp": ("relp", {}, with_rules(norm=True, attention=True, gate=True, activation=True)),
    "gim": ("gim", {}, with_rules(temperature=2.0, norm=True, products=True, gate=True)),
}
COSTLY = ("atp-star", "eap-ig-activations", "exact")
ABLATIONS = {
    "corrupted": lambda *_: None,
    "zero": reference.zero,
    "mean": reference.mean,
    "mean-positional": reference.mean_positional,
}


def test_every_method_is_in_the_table():
    assert {method for method, _, _ in METHODS.values()} == {x.name for x in REGISTERED.values()}


@pytest.mark.parametrize(("model", "name", "ablation"), covering(FAMILIES, METHODS, ABLATIONS), indirect=["model"])
def test_scores_equal_the_reference(model, name, ablation):
    """In double precision nothing is left of a difference but the rounding of the result."""
    (method, options, expected), model = METHODS[name], model.to(dtype=torch.float64)
    task = TASK[:1] if method in COSTLY else TASK
    scores = attribute(model, task, method, batch_size=2, ablation=ablation, mean_over=OTHERS, **options)
    assert close(scores.values, expected(model, task, ABLATIONS[ablation](model, OTHERS)), 2e-7)
    assert scores.recipe.ablation == ablation


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("model", FEW_BLOCKS, indirect=True)
def test_every_method_equals_the_reference_in_kinds_of_blocks(model, name):
    (method, options, expected), model = METHODS[name], model.to(dtype=torch.float64)
    assert close(attribute(model, TASK, method, **options).values, expected(model, TASK, None), 2e-7)


@pytest.mark.parametrize("method", ["eap-gp", "atp-star", "eap-ig-activations", "gim"])
def test_single_precision_is_close(method):
    model = tiny_model("gemma2")
    single, double = (attribute(model.to(dtype=x), TASK, method).values for x in (torch.float32, torch.float64))
    assert close(single, double, 1e-5)


@pytest.mark.parametrize("model", ["gemma2", "stablelm-parallel"], indirect=True)
def test_the_score_of_a_node_is_the_gradient_at_what_it_writes(model):
    scores = attribute(model.to(dtype=torch.float64), TASK, "eap-gp", steps=2)
    expected = reference.node_scores(model, TASK, grad_path(2))
    nodes = torch.tensor([*scores.nodes.values()], dtype=expected.dtype)
    assert float((nodes - expected).abs().max()) <= 1e-6 * float(scores.values.abs().max())


BATCHED = [("eap-gp", "llama-grouped"), ("eap-ig", "gemma2"), ("eap-ig-activations", "gemma2"), ("atp-star", "gpt2")]


@pytest.mark.parametrize(("method", "kind"), [*BATCHED, ("exact", "neox")])
def test_scores_do_not_depend_on_batch_size_order_or_padding(method, kind):
    # In double precision: GradPath's steps amplify rounding, and that is not what is asked here.
    model, task = tiny_model(kind).to(dtype=torch.float64), prompts([6, 9, 6, 7], [[0], [4], [2, 3, 5], [6]])
    backwards = replace(task, clean=task.clean[::-1], corrupted=task.corrupted[::-1], labels=task.labels.flip(0))
    options = {"edges": 10} if method == "exact" else {}
    expected = attribute(model, task, method, batch_size=1, **options).values
    assert float(expected.abs().max()) > 0
    for other, size in ((task, 4), (backwards, 2)):
        assert close(attribute(model, other, method, batch_size=size, **options).values, expected)
