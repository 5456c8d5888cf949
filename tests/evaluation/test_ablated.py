"""A circuit in a model of transformers: its logits are those of the patched run, and nothing is left behind."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from random_circuits import circuit_of, random_mask
from small_models import VOCAB, Numbers, prompts, tiny_hf, tiny_model
from torch import Tensor

import gradpath as gp
from gradpath.errors import InputError, UsageError
from gradpath.recipe import Recipe
from gradpath.tasks.task import encode

PAIRS = prompts([9, 9, 9], [[2], [4, 6], [0]])
READOUT = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1))


def read_out(logits: Tensor, labels: Tensor) -> Tensor:
    """A metric in which every logit counts."""
    return logits @ READOUT.to(logits)


TASK = gp.Task(PAIRS.clean, PAIRS.corrupted, PAIRS.labels, metric=read_out)
TINY = ["gpt2", "llama-grouped", "neox", "gemma3", "olmo2", "mixtral", "opt", "deepseek-v2"]


def case(kind: str, share: float = 0.3):
    model = tiny_model(kind)
    return tiny_hf(kind), model, circuit_of(model.graph, random_mask(model.graph, share)), encode(TASK, model.tokenizer)


def last(logits: Tensor) -> Tensor:
    return read_out(logits[:, -1], None)


@pytest.mark.parametrize("kind", TINY)
def test_logits_are_those_of_the_patched_run_and_nothing_is_left_behind(kind):
    theirs, model, circuit, pairs = case(kind)
    with torch.no_grad():
        before = theirs(pairs.clean).logits
        with gp.ablated(theirs, circuit, corrupted=pairs.corrupted) as run:
            logits = theirs(pairs.clean).logits
        after = theirs(pairs.clean).logits
    expected = gp.evaluate(model, circuit, TASK).circuit_values
    torch.testing.assert_close(last(logits), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(run.logits(pairs.clean), logits, rtol=1e-5, atol=1e-5)
    assert torch.equal(before, after)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in theirs.modules())


@pytest.mark.parametrize("ablation", ["mean", "mean-positional"])
def test_means_are_those_of_evaluate_and_text_is_generated_without_a_cache(ablation):
    theirs, model, circuit, pairs = case("llama-grouped")
    circuit = replace(circuit, recipe=Recipe(ablation=ablation))
    with torch.no_grad(), gp.ablated(theirs, circuit, mean_over=TASK, tokenizer=Numbers()) as run:
        text = theirs.generate(pairs.clean, max_new_tokens=4, do_sample=False)
        for length in range(pairs.clean.shape[1], text.shape[1]):
            assert torch.equal(run.logits(text[:, :length])[:, -1].argmax(-1), text[:, length])
        with pytest.raises(UsageError, match="use_cache=False"):
            theirs.generate(pairs.clean, max_new_tokens=4, do_sample=False, use_cache=True)
        expected = gp.evaluate(model, circuit, TASK, mean_over=TASK).circuit_values
        torch.testing.assert_close(last(run.logits(pairs.clean)), expected, rtol=1e-5, atol=1e-5)
    assert theirs.generation_config.use_cache
    assert theirs.config.use_cache


def test_an_error_removes_the_hooks_and_wrong_calls_are_refused():
    theirs, _, circuit, pairs = case("gpt2")
    for given in ({}, {"corrupted": pairs.corrupted, "mean_over": TASK}):
        with pytest.raises(UsageError, match="either corrupted="), gp.ablated(theirs, circuit, **given):
            pass
    with (
        pytest.raises(InputError, match=r"called with \(3, 4\)"),
        gp.ablated(theirs, circuit, corrupted=pairs.corrupted),
    ):
        theirs(pairs.clean[:, :4])
    means = gp.ablated(theirs, circuit, mean_over=TASK, tokenizer=Numbers())
    with pytest.raises(UsageError, match="padded on the right"), means:
        theirs(pairs.clean, attention_mask=(torch.arange(9) > 0).expand(3, 9).long())
    shorter = torch.tensor([[1] * 9, [1] * 9, [1] * 5 + [0] * 4])
    means = gp.ablated(theirs, circuit, mean_over=TASK, tokenizer=Numbers())
    with pytest.raises(UsageError, match=r"with a 0 before a 1\. Generate from prompts of the same length"), means:
        theirs.generate(pairs.clean, attention_mask=shorter, max_new_tokens=2, do_sample=False)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in theirs.modules())
