"""Converted models on disk: the same model as before, mapped; damage and half-written ones are noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from covering import covering
from safetensors import SafetensorError
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from gradpath.errors import GradpathWarning
from gradpath.model.cache import WEIGHTS, cached_model


def small_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, and a BOS token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = Tokenizer(models.BPE({x: i for i, x in enumerate(letters)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=fast, bos_token="<s>")


class Conversion:
    """Counts how often a model was converted."""

    def __init__(self, model):
        self.model, self.count = model, 0

    def __call__(self):
        self.count += 1
        return self.model, small_tokenizer()


@pytest.fixture
def convert(gpt2):
    return Conversion(gpt2)


def test_a_model_of_any_family_comes_back_as_it_was(model, tmp_path):
    convert = Conversion(model)
    for _ in range(2):
        found, _ = cached_model(tmp_path / "model", convert)
        assert found.digest == model.digest  # every weight, bit for bit
        ids = torch.tensor([[3, 4, 5]])
        # Some weights of a converted model are views of others. Products with these round differently on some machines.
        torch.testing.assert_close(found.logits(ids), model.logits(ids), rtol=1e-5, atol=1e-5)
    assert convert.count == 1


def test_the_weights_are_mapped_and_the_file_cannot_be_changed_through_them(convert, tmp_path):
    model, _ = cached_model(tmp_path / "model", convert)
    file = tmp_path / "model" / WEIGHTS
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(file))]
    ranges = [tuple(int(end, 16) for end in line[0].split("-")) for line in maps]
    for weight in (model.embedding, model.layers[-1].w_out):
        assert any(begin <= weight.data_ptr() < end for begin, end in ranges)
    before = file.read_bytes()
    model.embedding[0, 0] += 1
    assert file.read_bytes() == before


def test_the_tokenizer_comes_back_too(convert, tmp_path):
    for _ in range(2):
        _, tokenizer = cached_model(tmp_path / "model", convert)
    text = "\u00e9 <s> x"
    ids = small_tokenizer()(text)["input_ids"]
    assert tokenizer(text)["input_ids"] == ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.all_special_ids == [tokenizer.bos_token_id]


@pytest.mark.parametrize(
    ("file", "damage"), covering([WEIGHTS, "tokenizer.json", "tokenizer_config.json"], ["changed", "cut", "missing"])
)
def test_a_damaged_file_is_named_and_the_model_converted_again(convert, tmp_path, file, damage):
    cached_model(tmp_path / "model", convert)
    path = tmp_path / "model" / file
    content = path.read_bytes()
    middle = len(content) // 2
    changed = content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :]
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(changed if damage == "changed" else content[:middle])
    if (file, damage) == (WEIGHTS, "missing"):  # then there is no model
        found, _ = cached_model(tmp_path / "model", convert)
    else:
        with pytest.warns(GradpathWarning, match=r"is damaged.* The model is converted again"):
            found, _ = cached_model(tmp_path / "model", convert)
    assert found.digest == convert.model.digest
    cached_model(tmp_path / "model", convert)
    assert convert.count == 2
    assert [x.name for x in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    "problem", [SafetensorError("No space left on device"), OSError(28, "No space left on device")]
)
def test_a_full_disk_is_told_and_the_model_used_all_the_same(convert, tmp_path, monkeypatch, problem):
    def fail(*_, **__):
        raise problem

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    with pytest.warns(GradpathWarning, match="could not be stored in .*No space left on device.*GRADPATH_CACHE"):
        found, _ = cached_model(tmp_path / "model", convert)
    assert found is convert.model
    assert not (tmp_path / "model").exists()
