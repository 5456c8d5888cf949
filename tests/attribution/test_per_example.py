"""Scores of every example: those of tasks of one example, saved and loaded like others."""

from __future__ import annotations

import json

import pytest
import torch
from covering import some
from safetensors import safe_open
from safetensors.torch import save_file
from small_models import prompts, tiny_model

from gradpath.attribution.attribute import attribute
from gradpath.errors import InputError
from gradpath.scores import load_scores
from gradpath.selection import select

TASK = prompts([4, 7, 5], [[1, 3], [3], [0]])


@pytest.mark.parametrize("method", some(["eap-ig", "atp-star", "exact", "eap-ig-activations"], ["eap-ig", "atp-star"]))
def test_each_example_has_the_scores_of_a_task_of_its_own(method):
    model = tiny_model("gpt2")
    scores = attribute(model, TASK, method, per_example=True, batch_size=2)
    assert scores.examples is not None
    assert scores.examples.shape == (3, *scores.values.shape)
    for i in range(len(TASK)):
        alone = attribute(model, TASK[i : i + 1], method).values
        assert torch.allclose(scores.examples[i], alone, rtol=1e-4, atol=1e-5 * float(alone.abs().max()))
    whole = attribute(model, TASK, method, batch_size=2)
    assert whole.examples is None
    assert torch.allclose(scores.values, whole.values, rtol=1e-4, atol=1e-5 * float(whole.values.abs().max()))


def test_they_are_saved_and_loaded_and_select_as_others(tmp_path):
    scores = attribute(tiny_model("gpt2"), TASK, "eap", per_example=True)
    scores.save(tmp_path / "scores.safetensors")
    back = load_scores(tmp_path / "scores.safetensors")
    assert scores.examples is not None
    assert back.examples is not None
    assert torch.equal(back.examples, scores.examples)
    assert torch.allclose(back.examples.mean(0), back.values, atol=1e-6)
    assert select(back, 20, selection="top") == select(scores, 20, selection="top")
    assert "3 examples" in str(back)


@pytest.mark.parametrize(
    ("examples", "words"),
    [
        (torch.zeros(4, 2, 2), "expected float32 of shape"),
        (torch.zeros(1, 13, 31, dtype=torch.float64), "expected float32 of shape"),
        (torch.full((1, 13, 31), torch.inf), "finite"),
    ],
)
def test_a_file_whose_examples_do_not_fit_is_refused(tmp_path, examples, words):
    file = tmp_path / "scores.safetensors"
    attribute(tiny_model("gpt2"), TASK, "eap").save(file)
    with safe_open(file, framework="pt") as opened:
        tensors, metadata = {"scores": opened.get_tensor("scores"), "examples": examples}, opened.metadata()
    notes = {name: value for name, value in json.loads(metadata["gradpath"]).items() if name != "digest"}
    save_file(tensors, file, {"gradpath": json.dumps(notes)})
    with pytest.raises(InputError, match=words):
        load_scores(file)
