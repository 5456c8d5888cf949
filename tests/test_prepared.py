"""What is kept of prompts is what running them again would give, and it is used; a part is a task of its own."""

from __future__ import annotations

import pytest
import torch
from covering import families
from small_models import Numbers, prompts, tiny_model

import gradpath as gp
from gradpath.evaluation import measure_circuits
from gradpath.model.tokenizer import Tokenizer
from gradpath.model.transformer import Transformer
from gradpath.pipeline import run_find
from gradpath.prepared import PreparedBatches, PromptCache
from gradpath.recipe import Recipe
from gradpath.tasks.task import encode

TASK = prompts([9, 8, 7], [[6], [5, 7], [4]])
PAIRS = encode(TASK, Tokenizer(Numbers()))


@pytest.fixture
def runs(monkeypatch):
    """The lengths of the prefixes that are run."""
    lengths, real = [], Transformer.prefix
    monkeypatch.setattr(Transformer, "prefix", lambda model, x: lengths.append(x.shape[1]) or real(model, x))
    return lengths


@torch.no_grad()
@families("gpt2", "llama-grouped", "deepseek-v3")
def test_a_prefix_is_run_once_and_its_beginning_serves_as_a_shorter_one(model, runs):
    cache = PromptCache(2**20)
    first = PAIRS.rows(torch.tensor([0, 1]))  # they differ from the sixth token on
    whole = model.prefix(model.embed(first.clean[:, :5]))
    runs.clear()
    cache.prefix(model, first)
    for got, expected in zip(cache.prefix(model, PAIRS.rows(torch.tensor([1, 0]))), whole, strict=True):
        assert torch.allclose(got.keys, expected.keys[[1, 0]], atol=1e-6)
        assert torch.allclose(got.values, expected.values[[1, 0]], atol=1e-6)
    assert runs == [5]
    cache.prefix(model, PAIRS)  # the third is not known
    cache.prefix(model, PAIRS)
    assert runs == [5, 4]


@torch.no_grad()
@pytest.mark.parametrize("room", [0, 100])
def test_a_full_cache_runs_prefixes_again(runs, gpt2, room):
    cache = PromptCache(room)
    for _ in range(2):
        cache.prefix(gpt2, PAIRS)
    assert runs == [4, 4]


def test_finals_are_known_when_all_of_them_are():
    cache, final = PromptCache(1), torch.arange(6.0).view(3, 2)
    some = PAIRS.rows(torch.tensor([2, 0]))
    assert cache.final(some) is None
    cache.keep_final(PAIRS.rows(torch.tensor([0, 1])), final[:2])
    assert cache.final(some) is None
    cache.keep_final(PAIRS, final)
    assert torch.equal(cache.final(some), final[[2, 0]])


def test_find_encodes_each_task_and_runs_each_prefix_once(runs, gpt2, monkeypatch):
    encoded = []
    monkeypatch.setattr("gradpath.prepared.encode", lambda *args: encoded.append(args[0]) or encode(*args))
    task, held_out = (prompts([6, 6, 6], [[4], [4], [4]], seed=seed) for seed in (0, 1))
    monkeypatch.setattr("gradpath.pipeline.load_examples", lambda *args, **options: (task, held_out))
    found = run_find(gpt2, Recipe(edges=20))
    assert runs == [4, 4]
    assert [len(x) for x in encoded] == [3, 3]
    again = gp.evaluate(gpt2, found.circuit, held_out)
    assert torch.allclose(found.result.circuit_values, again.circuit_values, atol=1e-5)


def test_a_part_of_prepared_examples_gives_their_values():
    model = tiny_model("llama-grouped")
    circuit = gp.select(gp.attribute(model, TASK, "eap"), n=30)
    [result] = measure_circuits(PreparedBatches(model, TASK).take([2, 0]), [circuit])
    expected = gp.evaluate(model, circuit, TASK).circuit_values[[2, 0]]
    assert torch.allclose(result.circuit_values, expected, atol=1e-5)
