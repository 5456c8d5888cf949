"""What is kept of prompts is what running them again would give, and it is used."""

from __future__ import annotations

import pytest
import torch
from covering import families
from small_models import Numbers, prompts, tiny_model

import gradpath as gp
from gradpath.model.prompt_cache import keep_final, keep_prompts, known_final, prefix_of
from gradpath.model.tokenizer import Tokenizer
from gradpath.model.transformer import Transformer
from gradpath.pipeline import run_find
from gradpath.pipeline.request import FindRequest
from gradpath.tasks.task import encode

PAIRS = encode(prompts([9, 8, 7], [[6], [5, 7], [4]]), Tokenizer(Numbers()))


@pytest.fixture
def runs(monkeypatch):
    """The lengths of the prefixes that are run."""
    lengths, real = [], Transformer.prefix
    monkeypatch.setattr(Transformer, "prefix", lambda model, x: lengths.append(x.shape[1]) or real(model, x))
    return lengths


@torch.no_grad()
@families("gpt2", "llama-grouped", "deepseek-v3")
def test_a_prefix_is_run_once_and_its_beginning_serves_as_a_shorter_one(model, runs):
    expected = {start: model.prefix(model.embed(PAIRS.clean[:, :start])) for start in (4, 2)}
    runs.clear()
    with keep_prompts(model):
        prefix_of(model, PAIRS.clean, PAIRS.last, 4)
        for order, start in (([2, 0, 1], 4), ([1, 2], 2)):
            own = PAIRS.rows(torch.tensor(order))
            for got, whole in zip(prefix_of(model, own.clean, own.last, start), expected[start], strict=True):
                assert torch.allclose(got.keys, whole.keys[order], atol=1e-6)
                assert torch.allclose(got.values, whole.values[order], atol=1e-6)
        assert runs == [4]
    prefix_of(model, PAIRS.clean, PAIRS.last, 4)
    assert runs == [4, 4]  # nothing is kept any more


@torch.no_grad()
def test_a_longer_prefix_another_model_and_a_full_cache_are_run(runs, gpt2):
    other = tiny_model("llama-grouped")
    with keep_prompts(gpt2):
        for model, start in ((gpt2, 2), (gpt2, 4), (other, 2), (other, 2)):
            prefix_of(model, PAIRS.clean, PAIRS.last, start)
    with keep_prompts(gpt2, room=100):
        for _ in range(2):
            prefix_of(gpt2, PAIRS.clean, PAIRS.last, 4)
    assert runs == [2, 4, 2, 2, 4, 4]


def test_finals_are_known_when_all_of_them_are(gpt2):
    final = torch.arange(6.0).view(3, 2)
    some = PAIRS.rows(torch.tensor([2, 0]))
    with keep_prompts(gpt2):
        assert known_final(gpt2, some.clean, some.last) is None
        keep_final(gpt2, PAIRS.clean[:2], PAIRS.last[:2], final[:2])
        assert known_final(gpt2, some.clean, some.last) is None
        keep_final(gpt2, PAIRS.clean, PAIRS.last, final)
        assert torch.equal(known_final(gpt2, some.clean, some.last), final[[2, 0]])
    assert known_final(gpt2, some.clean, some.last) is None


def test_find_runs_each_prefix_once_to_attribute_and_select_and_once_to_measure(runs, gpt2):
    task = prompts([6, 6, 6], [[4], [4], [4]])
    found = run_find(gpt2, FindRequest(edges=20, split="same"), curve=True, examples=(task, task))
    assert runs == [4, 4]
    again = gp.evaluate(gpt2, found.circuit, task)
    assert torch.allclose(found.result.circuit_values, again.circuit_values, atol=1e-5)
