"""gpt-oss: sinks and clamps that matter in the small model, and experts that are packed as MXFP4."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import TINY, VOCAB, random_hf, tiny_hf, tiny_model
from torch import Tensor

from gradpath.errors import InputError
from gradpath.model.families import convert
from gradpath.model.load import load_model

IDS = torch.randint(3, VOCAB, (2, 9), generator=torch.Generator().manual_seed(3))
# The sixteen numbers of four bits: a sign, two bits of exponent, one of mantissa.
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def test_a_sink_takes_a_part_of_the_attention():
    model = tiny_model("gpt-oss")
    attended = model.attention(IDS, "a1.h2")[:, -1].sum(-1)
    assert bool((attended < 0.99).all())
    without = replace(model, layers=tuple(replace(layer, sinks=None) for layer in model.layers))
    assert torch.allclose(without.attention(IDS, "a1.h2").sum(-1), torch.ones(IDS.shape), atol=1e-5)


def test_the_clamp_of_gates_and_values_changes_the_small_model():
    """Otherwise the comparisons with transformers and the reference would prove little."""
    model = tiny_model("gpt-oss")
    wider = replace(model, arch=replace(model.arch, gate_clamp=7.0))
    assert float((wider.logits(IDS) - model.logits(IDS)).abs().max()) > 0.1


@pytest.mark.parametrize(("setting", "value"), [("swiglu_alpha", 1.0), ("hidden_act", "gelu")])
def test_another_activation_is_refused(setting, value):
    model = copy.deepcopy(tiny_hf("gpt-oss"))
    setattr(model.config, setting, value)
    with pytest.raises(InputError, match=f"{setting} = "):
        convert(model)


def unpacked(blocks: Tensor, scales: Tensor) -> Tensor:
    """By the definition of MXFP4: 32 numbers of four bits, low ones first, share a power of two. (..., in, out)"""
    halves = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2).long()
    return (FP4[halves] * 2.0 ** (scales[..., None].float() - 127)).flatten(-2).mT


def packed_folder(folder: Path) -> dict[str, Tensor]:
    """Save a small model with random experts in MXFP4, and return their values."""
    random_hf(*TINY["gpt-oss"], hidden_size=64, intermediate_size=32).save_pretrained(folder)
    weights, values, generator = load_file(folder / "model.safetensors"), {}, torch.Generator().manual_seed(0)
    for name in [name for name in weights if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        n_experts, n_in, n_out = weights.pop(name).shape
        shape = n_experts, n_out, n_in // 32
        blocks = torch.randint(256, (*shape, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(120, 124, shape, generator=generator, dtype=torch.uint8)
        weights |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        values[name] = unpacked(blocks, scales)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(config))
    return values


def test_experts_in_mxfp4_are_loaded_as_the_numbers_that_they_stand_for(tmp_path):
    values = packed_folder(tmp_path)
    original = random_hf(*TINY["gpt-oss"], hidden_size=64, intermediate_size=32)
    assert not original.load_state_dict(values, strict=False).unexpected_keys
    with torch.no_grad():
        expected = original(IDS).logits
    model = load_model(tmp_path)
    assert model.dtype == model.layers[0].experts.w_in.dtype == torch.float32
    assert torch.allclose(model.logits(IDS), expected, atol=1e-4)


def test_experts_that_are_still_packed_in_memory_are_refused():
    model = copy.deepcopy(tiny_hf("gpt-oss"))
    experts = model.model.layers[0].mlp.experts
    del experts.gate_up_proj
    experts.register_buffer("gate_up_proj_blocks", torch.zeros(2, dtype=torch.uint8))
    with pytest.raises(InputError, match=r"experts packed \(MXFP4\).*Mxfp4Config\(dequantize=True\)"):
        convert(model)
