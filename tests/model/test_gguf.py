"""The same model as a folder, as an object and as GGUF; and files that hold more than would be read."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from small_models import TINY, VOCAB, random_hf

from gguf_writing import quantised_weights, write_gguf
from gradpath.attribution.attribute import attribute
from gradpath.errors import InputError
from gradpath.model.load import load_model
from gradpath.tasks.task import Task

IDS = torch.randint(3, VOCAB, (4, 9), generator=torch.Generator().manual_seed(5))
OTHER = torch.cat([IDS[:, :3], IDS[:, 3:4].roll(1, 0), IDS[:, 4:]], 1)
TASK = Task(IDS, OTHER, IDS[:, :2])


# Widths are multiples of 32, the block of 8-bit weights. What a file cannot say is at the default.
_WIDE: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
}
_ROPE = TINY["llama3-rope"][1]["rope_parameters"]
READABLE: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": VOCAB}),
    "llama": ("llama-grouped", {**_WIDE, "head_dim": 16}),
    "llama3": ("llama3-rope", {**_WIDE, "rope_parameters": _ROPE}),
    "qwen2": ("qwen2", _WIDE),
    "qwen3": ("qwen3", {**_WIDE, "head_dim": 128}),
    "gemma2": ("gemma2", {**_WIDE, "head_dim": 16, "sliding_window": 3, "attn_implementation": "eager"}),
    "gemma3": ("gemma3", {**_WIDE, "num_hidden_layers": 6, "head_dim": 16, "sliding_window": 3}),
}


@cache
def readable(kind: str) -> Any:
    tiny, settings = READABLE[kind]
    return random_hf(TINY[tiny][0], settings)


@pytest.mark.parametrize("kind", sorted(READABLE))
def test_folder_object_and_gguf_give_the_same_scores(kind, tmp_path):
    original = readable(kind)
    original.save_pretrained(tmp_path / "folder")
    file = write_gguf(original, tmp_path / "model.gguf")
    expected = attribute(load_model(original), TASK, "eap").values
    assert float(expected.abs().max()) > 0.01
    assert torch.equal(attribute(load_model(tmp_path / "folder"), TASK, "eap").values, expected)
    found = attribute(load_model(file), TASK, "eap").values
    assert float((found - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_a_quantised_file_gives_the_scores_of_its_weights(kind, tmp_path):
    file = write_gguf(readable(kind), tmp_path / "model.gguf", quantised=True)
    rounded = quantised_weights(copy.deepcopy(readable(kind)))
    expected = attribute(load_model(rounded), TASK, "eap").values
    found = attribute(load_model(file), TASK, "eap").values
    assert float((found - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
    assert not torch.allclose(found, attribute(load_model(readable(kind)), TASK, "eap").values)


@pytest.mark.parametrize(
    ("kind", "extra", "words"),
    [
        ("qwen2", {"rope__scaling__type": "yarn"}, "rope.scaling.type = 'yarn', which is not read"),
        ("gemma3", {"rope__scaling__factor": 8.0}, r"rope.scaling.factor = 8.0, which is not read"),
        ("llama", {"attention__sliding_window": 7}, "attention.sliding_window = 7, which is not read"),
        ("llama", {"attention__clamp_kqv": 3.0}, "attention.clamp_kqv = 3.0, which gradpath does not know"),
        ("llama", {"expert_count": 4}, "expert_count = 4"),
    ],
)
def test_values_that_transformers_does_not_read_are_refused_by_name(kind, extra, words, tmp_path):
    file = write_gguf(readable(kind), tmp_path / "model.gguf", **extra)
    with pytest.raises(InputError, match=words):
        load_model(file)


def test_a_model_whose_heads_are_not_of_the_default_width_is_refused(tmp_path):
    narrow = random_hf("Qwen3ForCausalLM", _WIDE, head_dim=16)
    with pytest.raises(InputError, match=r"no model could be loaded|attention\.key_length = 16"):
        load_model(write_gguf(narrow, tmp_path / "model.gguf"))


def test_soft_caps_other_than_gemmas_are_refused(tmp_path):
    model = random_hf("Gemma2ForCausalLM", READABLE["gemma2"][1], final_logit_softcapping=3.0)
    with pytest.raises(InputError, match=r"final_logit_softcapping = 3.0, .* the model has 30.0"):
        load_model(write_gguf(model, tmp_path / "model.gguf"))


def test_tensors_that_would_be_dropped_are_refused(tmp_path):
    biased = random_hf("LlamaForCausalLM", _WIDE, head_dim=16, attention_bias=True)
    with pytest.raises(InputError, match="numbers, and the model only holds"):
        load_model(write_gguf(biased, tmp_path / "model.gguf"))


def test_a_file_is_read_in_silence(tmp_path, capsys):
    load_model(write_gguf(readable("gpt2"), tmp_path / "model.gguf"))
    assert capsys.readouterr() == ("", "")
