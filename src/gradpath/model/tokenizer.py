"""Text to token ids, with the beginning-of-sequence token as the model's family wants it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradpath.errors import InputError

# A short word that every tokenizer knows. What follows it is tokenised as it would be inside a
# prompt: SentencePiece would otherwise put a space mark of its own in front.
_CARRIER = "the"
# Letters would grow together with a word, so theirs is a quotation mark ("theMary", but "Mary").
_LETTER_CARRIER = '"'


@dataclass(frozen=True)
class Tokenizer:
    """A ``transformers`` tokenizer and whether prompts start with its BOS token.

    ``prepend`` is that token's id, or None. Special tokens are never added by the tokenizer itself,
    so the rule is in one place and can be recorded.
    """

    hf: Any
    prepend: int | None = None

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The prompts as token ids, one batched call."""
        if not texts:
            return []
        front = [] if self.prepend is None else [self.prepend]
        return [front + ids for ids in self._plain(texts)]

    def pieces(self, text: str) -> list[tuple[int, int]]:
        """For each token of a prompt the characters that it stands for, from one up to another."""
        try:
            found = self.hf(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        except NotImplementedError:
            raise InputError(
                "this model's tokenizer does not say which characters a token stands for, so spans cannot be "
                "found. Use a fast tokenizer, or split by token."
            ) from None
        front = [] if self.prepend is None else [(0, 0)]
        return [*front, *((int(begin), int(end)) for begin, end in found)]

    def continuations(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens that each text adds when it continues a prompt (' Mary', ' is', '52')."""
        if not texts:
            return []
        carriers = [_LETTER_CARRIER if text[:1].isalpha() else _CARRIER for text in texts]
        alone = dict(zip((_CARRIER, _LETTER_CARRIER), self._plain((_CARRIER, _LETTER_CARRIER)), strict=True))
        carried = self._plain([carrier + text for carrier, text in zip(carriers, texts, strict=True)])
        return [_after(alone[carrier], ids) for carrier, ids in zip(carriers, carried, strict=True)]

    def token(self, text: str) -> int:
        """The one token that ``text`` is when it continues a prompt."""
        ids = self.continuations([text])[0]
        if len(ids) != 1 or self.decode(ids) != text:
            pieces = [self.decode([i]) for i in ids]
            raise InputError(
                f"an answer has to be a single token of the model: {text!r} is {len(ids)} ({pieces}). "
                "Use another word, mind the leading space, or give token ids."
            )
        return ids[0]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some tokens as they stand in the middle of a prompt, spaces kept."""
        carrier = self._plain([_CARRIER])[0]
        text: str = self.hf.decode([*carrier, *ids], clean_up_tokenization_spaces=False)
        return text.removeprefix(_CARRIER)

    def _plain(self, texts: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = self.hf(list(texts), add_special_tokens=False)["input_ids"]
        return ids


def _after(start: list[int], ids: list[int]) -> list[int]:
    """What follows ``start``; nothing where the tokenizer drew the border elsewhere."""
    return ids[len(start) :] if ids[: len(start)] == start else []
