"""Models of TransformerLens and nnsight as input: their logits, their scores, and what is refused."""

from __future__ import annotations

import sys
import types
import warnings
from dataclasses import replace

import pytest
import torch
from lens_models import HOOKED, hooked, transformer_lens
from small_models import VOCAB, Numbers, prompts, tiny_hf

from gradpath.attribution.attribute import attribute
from gradpath.errors import InputError
from gradpath.model.load import load_model
from gradpath.model.tokenizer import Tokenizer

IDS = torch.randint(3, VOCAB, (3, 12), generator=torch.Generator().manual_seed(3))
TASK = prompts([7, 9], [[2], [4, 6]])


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("kind", sorted(HOOKED))
def test_a_hooked_transformer_has_its_own_logits(kind, folded):
    theirs = hooked(kind, folded=folded)
    with torch.no_grad():
        expected = theirs(IDS)
    assert float((load_model(theirs).logits(IDS) - expected).abs().max()) <= 1e-4


@pytest.mark.parametrize("kind", ["gpt2-like", "llama-like"])
def test_folding_and_centring_change_no_score(kind):
    values = []
    for folded in (False, True):
        model = replace(load_model(hooked(kind, folded=folded)).to(dtype=torch.float64), tokenizer=Tokenizer(Numbers()))
        values.append(attribute(model, TASK, "eap-ig", steps=2).values)
    assert float((values[0] - values[1]).abs().max()) <= 1e-5 * float(values[0].abs().max())


def test_what_is_not_implemented_in_transformer_lens_is_refused_by_name():
    model = hooked("gpt2-like")
    model.cfg.positional_embedding_type = "alibi"
    with pytest.raises(InputError, match=r"positional_embedding_type = 'alibi'"):
        load_model(model)


def test_a_hooked_transformer_with_a_hook_is_refused():
    model = hooked("gpt2-like")
    model.add_hook("blocks.0.hook_mlp_out", lambda value, hook: 2 * value)
    with pytest.raises(InputError, match="does not compute what its weights"):
        load_model(model)


@pytest.mark.parametrize("kind", ["gpt2", "llama-grouped"])
def test_a_bridge_is_read_as_its_transformers_model(kind, tmp_path):
    transformer_lens()
    folder = saved(kind, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformer_lens.model_bridge import TransformerBridge

        bridge = TransformerBridge.boot_transformers(str(folder), device="cpu")
        model = load_model(bridge)
        bridge.enable_compatibility_mode()
        if kind == "gpt2":  # whose fused weights do not get what the bridge folds into its parts
            with pytest.raises(InputError, match="before enable_compatibility_mode"):
                load_model(bridge)
    with torch.no_grad():
        expected = tiny_hf(kind)(IDS).logits
    assert float((model.logits(IDS) - expected).abs().max()) <= 1e-4


def test_nnsight_models_are_read_as_their_transformers_model():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nnsight = pytest.importorskip("nnsight", reason="needs nnsight: make test-peers")
        model = load_model(nnsight.NNsight(tiny_hf("gpt2")))
    assert torch.equal(model.logits(IDS), load_model(tiny_hf("gpt2")).logits(IDS))


def test_a_stand_in_for_nnsight_is_unwrapped(monkeypatch):
    """The attribute that an nnsight model keeps its module in, without the package."""
    monkeypatch.setitem(sys.modules, "nnsight", types.ModuleType("nnsight"))
    wrapper = type("LanguageModel", (), {"__module__": "nnsight.modeling", "tokenizer": None})()
    wrapper._module = tiny_hf("gpt2")
    assert torch.equal(load_model(wrapper).logits(IDS), load_model(tiny_hf("gpt2")).logits(IDS))


def saved(kind, tmp_path):
    """A folder with a model and a tokenizer of numbers."""
    from tokenizers import Tokenizer as Words
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = Words(WordLevel({str(i): i for i in range(VOCAB)}, unk_token="0"))
    words.pre_tokenizer = WhitespaceSplit()
    special = {"bos_token": "1", "eos_token": "2", "pad_token": "0"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(tmp_path)
    tiny_hf(kind).save_pretrained(tmp_path)
    return tmp_path
