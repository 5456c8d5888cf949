"""Text to token ids, with the beginning-of-sequence token as the model's family wants it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradpath.errors import InputError

# A short word that every tokenizer knows. What follows it is tokenised as it would be inside a
# prompt: SentencePiece would otherwise put a space mark of its own in front.
_CARRIER = "the"


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

    def continuations(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens that each text adds when it continues a prompt (' Mary', ' is', '52')."""
        if not texts:
            return []
        carrier, *carried = self._plain([_CARRIER, *(_CARRIER + text for text in texts)])
        return [ids[len(carrier) :] if ids[: len(carrier)] == carrier else [] for ids in carried]

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
