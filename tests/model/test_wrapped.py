"""Models of TransformerLens as input: their logits, their scores, and what is refused."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from random_circuits import circuit_of, random_mask
from small_models import VOCAB, Numbers, prompts, tiny_hf

import gradpath as gp
from gradpath.errors import InputError
from gradpath.model.load import load_model
from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks.task import encode

IDS = torch.randint(3, VOCAB, (3, 12), generator=torch.Generator().manual_seed(3))
TASK = prompts([9, 9], [[2], [4, 6]])


@pytest.mark.parametrize("kind", ["gpt2", "llama-grouped", "neox", "gemma3"])
def test_a_bridge_is_read_as_its_transformers_model_and_runs_a_circuit(kind, tmp_path):
    bridge = bridge_of(kind, tmp_path)
    model = replace(load_model(bridge), tokenizer=Tokenizer(Numbers()))
    circuit, pairs = circuit_of(model.graph, random_mask(model.graph, 0.3)), encode(TASK, model.tokenizer)
    with torch.no_grad():
        torch.testing.assert_close(model.logits(IDS), tiny_hf(kind)(IDS).logits, rtol=1e-4, atol=1e-4)
        with gp.ablated(bridge, circuit, corrupted=pairs.corrupted):
            logits, _ = bridge.run_with_cache(pairs.clean)
    metric = TASK.metric(logits[:, -1], pairs.labels)
    torch.testing.assert_close(metric, gp.evaluate(model, circuit, TASK).circuit_values, rtol=1e-5, atol=1e-5)


def test_a_bridge_that_has_changed_its_weights_is_refused(tmp_path):
    bridge = bridge_of("gpt2", tmp_path)
    bridge.enable_compatibility_mode()  # the fused weights do not get what the bridge folds into its parts
    with pytest.raises(InputError, match="before enable_compatibility_mode"):
        load_model(bridge)


def bridge_of(kind, folder):
    """A TransformerBridge of a tiny model, or a skipped test."""
    pytest.importorskip("transformer_lens", reason="needs TransformerLens: make test-peers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformer_lens.model_bridge import TransformerBridge

        return TransformerBridge.boot_transformers(str(saved(kind, folder)), device="cpu")


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
