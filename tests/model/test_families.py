"""Each family's logits against transformers, and refusals of what is not implemented."""

from __future__ import annotations

import copy

import pytest
import torch
from small_models import TINY, VOCAB, tiny_hf, tiny_model

from gradpath.errors import InputError
from gradpath.model.families import convert

IDS = torch.randint(3, VOCAB, (3, 12), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("kind", sorted(TINY))
def test_logits_equal_the_original_models(kind):
    with torch.no_grad():
        expected = tiny_hf(kind)(IDS).logits
    assert float((tiny_model(kind).logits(IDS) - expected).abs().max()) <= 1e-4


@pytest.mark.parametrize("kind", sorted(TINY))
@pytest.mark.parametrize("start", [1, 6, 11])
def test_a_prompt_in_two_parts_is_the_whole_prompt(kind, start):
    model = tiny_model(kind)
    past = model.prefix(model.embed(IDS[:, :start]))
    run = model.run(model.embed(IDS[:, start:]), start=start, past=past)
    assert torch.allclose(model.unembed(run.final_in), model.logits(IDS)[:, start:], atol=1e-4)


def test_converting_does_not_change_the_original():
    model = tiny_hf("gpt2")
    before = copy.deepcopy(model.state_dict())
    convert(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_frequencies_stay_exact_in_half_precision():
    half = tiny_model("llama-grouped").to(dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16
    assert half.rotary[0].frequencies.dtype == torch.float32
    difference = half.logits(IDS).float() - tiny_model("llama-grouped").logits(IDS)
    assert float(difference.abs().max()) < 0.3


@pytest.mark.parametrize(
    ("kind", "setting", "value"),
    [
        ("gpt2", "activation_function", "mish"),
        ("gpt2", "add_cross_attention", True),
        ("llama-grouped", "hidden_act", "tanh"),
    ],
)
def test_settings_that_are_not_implemented_are_refused_by_name(kind, setting, value):
    model = copy.deepcopy(tiny_hf(kind))
    setattr(model.config, setting, value)
    with pytest.raises(InputError, match=setting):
        convert(model)


def test_a_rope_type_that_is_not_implemented_is_refused_by_name():
    model = copy.deepcopy(tiny_hf("llama-grouped"))
    model.model.rotary_emb.rope_type = "dynamic"
    with pytest.raises(InputError, match="rope_type = 'dynamic'"):
        convert(model)


def test_an_unknown_family_is_refused_with_the_known_ones():
    model = copy.deepcopy(tiny_hf("gpt2"))
    model.config.model_type = "mamba"
    with pytest.raises(InputError, match=r"'mamba' are not supported: gradpath reads gpt2, llama, mistral"):
        convert(model)


def test_grouped_heads_keep_edges_of_their_own():
    model = tiny_model("llama-grouped")
    assert model.arch.n_kv_heads == 2
    assert model.graph.n_heads == 4
    assert "a0.h3<k>" in model.graph.targets
