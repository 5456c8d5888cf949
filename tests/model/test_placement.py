"""Where the layers of a model go, if it is too large for one device. ``on_a_device`` runs one that is spread."""

from __future__ import annotations

import pytest
import torch
from small_models import prompts, tiny_model

import gradpath as gp
from gradpath.errors import InputError, UsageError
from gradpath.model import load, transformer
from gradpath.model.load import load_model

TASK = prompts([6, 8, 6], [[0], [4], [2, 3]])


def test_devices_are_filled_by_their_room():
    assert load.shares([1] * 6, [1, 1, 1]) == [0, 0, 1, 1, 2, 2]
    assert load.shares([4, 1, 1, 1, 1], [1, 1]) == [0, 1, 1, 1, 1]
    assert load.shares([1, 1, 1], [1]) == [0, 0, 0]


def test_a_device_map_is_a_list_of_devices(tmp_path):
    from small_models import tiny_hf

    hf = tiny_hf("gpt2")
    assert load_model(hf, device_map="cpu,cpu").device.type == "cpu"
    with pytest.raises(UsageError, match="device and device_map both say where the model goes"):
        load_model(hf, device="cpu", device_map="auto")
    with pytest.raises(InputError, match="'nowhere' cannot be used"):
        load_model(hf, device_map="cpu,nowhere")


def test_a_model_that_the_gpus_cannot_hold_is_refused(monkeypatch):
    import accelerate.utils

    monkeypatch.setattr(accelerate.utils, "get_max_memory", lambda: {0: 1000, 1: 500, "cpu": 10**12})
    with pytest.raises(InputError, match=r"the GPUs here have 0\.0 GB free"):
        load.gpus(tiny_model("gpt2"))
    assert transformer.same_device(torch.zeros(1), torch.zeros(1))


def test_what_is_written_for_one_device_says_so(monkeypatch):
    monkeypatch.setattr(transformer, "same_device", lambda x, y: False)
    with pytest.raises(UsageError, match="eap-ig-activations needs the whole model on one device"):
        gp.attribute(tiny_model("gpt2"), TASK, "eap-ig-activations")
