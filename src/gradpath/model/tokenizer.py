"""Text to token ids, with or without the beginning-of-sequence (BOS) token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gradpath.errors import InputError, reason

Prompts = str | Sequence[str] | Tensor  # one or several: text, or token ids (prompt, pos)

# Text that continues a prompt is tokenised behind a carrier, because SentencePiece would otherwise put a space mark in
# front of it. The carrier is a short word, or a quotation mark before letters, which would merge with a word.
_CARRIER, _LETTER_CARRIER = "the", '"'


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Turn a panic of the Rust library, such as that of a regular expression without end, into an error.

    A panic is a ``BaseException``, which ``except Exception`` does not catch.
    """
    try:
        yield
    except BaseException as problem:
        if type(problem).__name__ != "PanicException":
            raise
        raise InputError(
            f"the model's tokenizer failed ({reason(problem)}). Its tokenizer.json is damaged or cannot read this "
            "text: download the model again, or shorten the text."
        ) from None


@dataclass(frozen=True)
class Tokenizer:
    """A ``transformers`` tokenizer, and the id of the BOS token if prompts begin with it.

    The ``transformers`` tokenizer itself never adds special tokens, so ``prepend`` is the whole rule.
    """

    hf: Any
    prepend: int | None = None

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The prompts as token ids."""
        front = [] if self.prepend is None else [self.prepend]
        return [front + ids for ids in self._ids(texts)]

    def pieces(self, text: str) -> list[tuple[int, int]]:
        """The range of characters of each token of a prompt, (0, 0) for BOS."""
        try:
            with panics_as_errors():
                ranges = self.hf(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        except NotImplementedError:
            raise InputError(
                "this model's tokenizer does not give the characters of each token, so spans cannot be located. "
                "Use a fast tokenizer, or split by token."
            ) from None
        front = [] if self.prepend is None else [(0, 0)]
        return [*front, *((int(begin), int(end)) for begin, end in ranges)]

    def continuations(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens that each text (' Mary', ' is', '52') adds to a prompt.

        A text has none if it changes those before it, or if a part of it is not in the vocabulary.
        """
        carriers = [_LETTER_CARRIER if text[:1].isalpha() else _CARRIER for text in texts]
        alone = dict(zip((_CARRIER, _LETTER_CARRIER), self._ids((_CARRIER, _LETTER_CARRIER)), strict=True))
        carried = self._ids([carrier + text for carrier, text in zip(carriers, texts, strict=True)])
        continuations = []
        for text, carrier, ids in zip(texts, carriers, carried, strict=True):
            start, added = alone[carrier], ids[len(alone[carrier]) :]
            usable = ids[: len(start)] == start and not self.has_unknown(text, added)
            continuations.append(added if usable else [])
        return continuations

    def has_unknown(self, text: str, ids: Sequence[int]) -> bool:
        """Whether a part of the text became the unknown token in its ids (without BOS): it is not in the vocabulary."""
        if self._unknown is None:
            return False
        token, unknown = self._unknown
        return ids.count(unknown) > text.count(token)

    @cached_property
    def _unknown(self) -> tuple[str, int] | None:
        """The token that stands for text outside the vocabulary, and its id; None if there is no such text.

        Byte-level tokenizers know every text. Some declare an unknown token all the same (GPT-2: its BOS), so the
        model that cuts the text is asked first.
        """
        model: Any = getattr(getattr(self.hf, "backend_tokenizer", None), "model", None)
        token = model.unk_token if hasattr(model, "unk_token") else getattr(self.hf, "unk_token", None)
        if not token or token not in self.hf.get_vocab():
            return None
        return str(token), int(self.hf.convert_tokens_to_ids(token))

    def token(self, text: str) -> int:
        """The single token that ``text`` adds to a prompt."""
        ids = self.continuations([text])[0]
        if len(ids) != 1 or self.decode(ids) != text:
            pieces = [self.decode([i]) for i in ids]
            raise InputError(
                f"an answer has to be a single token of the model: {text!r} is {len(ids)} ({pieces}). "
                "Use another word, mind the leading space, or give token ids."
            )
        return ids[0]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens in the middle of a prompt, with leading spaces."""
        carrier = self._ids([_CARRIER])[0]
        with panics_as_errors():
            text: str = self.hf.decode([*carrier, *ids], clean_up_tokenization_spaces=False)
        return text.removeprefix(_CARRIER)

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        with panics_as_errors():
            ids: list[list[int]] = self.hf(list(texts), add_special_tokens=False)["input_ids"]
        return ids


def check_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    """Refuse text for a model that has no tokenizer."""
    if tokenizer is None:
        raise InputError(
            "this model came without a tokenizer, so text cannot be used: give token ids, or load the "
            "model with load_model(..., tokenizer=...)."
        )
    return tokenizer


def prompt_ids(prompts: Sequence[str] | Tensor, tokenizer: Tokenizer | None) -> list[list[int]]:
    """The token ids of prompts that are given as text, or as a tensor of ids without padding."""
    if isinstance(prompts, Tensor):
        if prompts.ndim != 2 or prompts.is_floating_point() or prompts.is_complex() or prompts.dtype == torch.bool:
            raise InputError(
                "prompts given as a tensor must be token ids of shape (examples, positions): "
                f"got {prompts.dtype} of shape {tuple(prompts.shape)}."
            )
        rows: list[list[int]] = prompts.tolist()
        return rows
    return check_tokenizer(tokenizer).encode(prompts)


def padded(ids: list[list[int]]) -> Tensor:
    """Prompts as one tensor, (prompt, pos), with zeros on the right."""
    rows = [torch.tensor(row, device="cpu") for row in ids]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
