"""A small random GPT-2 with a real word-level tokenizer, saved to a folder that the command line can load."""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from gradpath.model.tokenizer import Tokenizer as Text
from gradpath.tasks.builtin import PAPER_TASKS, TASKS

# Words with the space before them, and numbers two digits at a time, as GPT-2 reads years.
PATTERN = r" ?\d\d|\d| ?[^\s\d\W]+(?:'\w+)?|[^\w]"
START = "<|endoftext|>"


def save_tiny(folder: Path, *, layers: int = 2, heads: int = 2, width: int = 16) -> Path:
    """Write the model and its tokenizer; every prompt and answer of every task is made of its tokens."""
    tokenizer = _tokenizer()
    torch.manual_seed(7)
    config = GPT2Config(
        n_layer=layers,
        n_head=heads,
        n_embd=width,
        n_positions=64,
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.bos_token_id,
    )
    model = GPT2LMHeadModel(config).eval()
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        # Small random weights do nothing: with these every part of the model matters.
        size = 1.0 if "wte" in name else 1.2 * width**-0.5
        parameter.data = noise * size if parameter.ndim > 1 else parameter.data + 0.2 * noise
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@cache
def _tokenizer() -> PreTrainedTokenizerFast:
    pieces = {START, "?", "the", '"', "The"} | {f"{i:02d}" for i in range(100)} | set("0123456789")
    counting, dice = _Counting(), random.Random(0)
    for kind in map(TASKS.find, PAPER_TASKS):
        for split in ("train", "test"):
            pairs = kind.candidates(split, Text(counting)).pairs
            chosen = range(len(pairs)) if len(pairs) < 1500 else [dice.randrange(len(pairs)) for _ in range(1500)]
            for pair in (pairs[i] for i in chosen):
                counting([pair.clean, pair.corrupted, *pair.right, *pair.wrong])
    vocabulary = {piece: i for i, piece in enumerate(sorted(pieces | set(counting.ids)))}
    made = Tokenizer(WordLevel(vocabulary, unk_token="?"))
    made.pre_tokenizer = Split(Regex(PATTERN), behavior="isolated")
    made.decoder = Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token=START, eos_token=START, unk_token="?")


class _Counting:
    """Cuts text as the tokenizer will, and remembers the pieces."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}
        self._pattern = re.compile(PATTERN)

    def __len__(self) -> int:
        return 1_000_000

    def __call__(self, texts: list[str], add_special_tokens: bool = False) -> dict[str, list[list[int]]]:
        cut = [self._pattern.findall(text) for text in texts]
        return {"input_ids": [[self.ids.setdefault(x, len(self.ids)) for x in pieces] for pieces in cut]}

    def decode(self, ids: list[int], **options: object) -> str:
        names = list(self.ids)
        return "".join(names[i] for i in ids)
