"""The self-check passes for every family, and fails when something is wrong."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from covering import families
from small_models import prompts, tiny_hf

from gradpath import selfcheck
from gradpath.scores import Scores

TASK = prompts([4, 6], [[0], [2, 3]])


def failed(model, original) -> list[str]:
    return [check.what for check in selfcheck.checks(model, TASK, original) if not check.passed]


@families("gpt2", "gemma3-with-images")
def test_every_family_passes(model):
    original = tiny_hf(model.name)
    done = list(selfcheck.checks(model, TASK, original))
    assert len(done) == 6
    assert [check.what for check in done if not check.passed] == []


def test_a_weight_that_is_not_the_original_s_is_found(gpt2):
    layer = gpt2.layers[1]
    other = replace(layer, w_out=layer.w_out * 1.01)
    changed = replace(gpt2, layers=(gpt2.layers[0], other, *gpt2.layers[2:]))
    assert failed(changed, tiny_hf("gpt2")) == ["logits, against transformers"]


def test_scores_that_are_wrong_are_found(gpt2, monkeypatch):
    right = selfcheck.attribute

    def wrong(model, task, *rest, batch_size=20, **options):
        scores = right(model, task, *rest, **options)
        return Scores(scores.graph, scores.values * (1.01 if batch_size > 1 else 1), scores.recipe, scores.facts)

    monkeypatch.setattr(selfcheck, "attribute", wrong)
    found = failed(gpt2, None)
    assert [what.partition(",")[0] for what in found] == ["scores of 12 edges", "scores of a batch"]


def test_a_run_that_is_wrong_is_found(gpt2, monkeypatch):
    right = selfcheck.evaluate

    def wrong(*given, **options):
        return [replace(one, circuit_values=one.circuit_values + 0.1) for one in right(*given, **options)]

    monkeypatch.setattr(selfcheck, "evaluate", wrong)
    assert [what.startswith("a circuit of") for what in failed(gpt2, None)] == [True, True, True]


def test_other_precisions_have_limits_of_their_own(gpt2):
    half = copy.deepcopy(tiny_hf("gpt2")).to(torch.bfloat16)
    assert failed(gpt2.to(dtype=torch.bfloat16), half) == []
