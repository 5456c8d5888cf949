"""A pair of prompts with its answers, still as text, and lists of pairs too long to write out.

The tasks speak of words and the models of tokens. Everything up to here is the same for every
model; ``tokens.py`` then keeps the pairs that a tokenizer can carry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload


@dataclass(frozen=True, slots=True)
class Pair:
    """Two prompts, the answers that are right after the clean one, and those that are wrong.

    An answer is what follows the prompt, its leading space included, or a token id. ``by_first``
    lets an answer of several tokens stand for its first one. ``where`` says which row of a user's
    file the pair is; ``problem``, if any, is why it cannot be used under the tokenizer at hand. ``spans``
    are parts of the clean prompt that were given names, in characters.
    """

    clean: str
    corrupted: str
    right: tuple[str | int, ...]
    wrong: tuple[str | int, ...]
    by_first: bool = False
    where: str = ""
    problem: str = ""
    spans: Mapping[str, tuple[int, int]] | None = None


@dataclass(frozen=True)
class Candidates:
    """All pairs that a task has to offer, and what the user should know about how they came."""

    pairs: Sequence[Pair]
    notes: tuple[str, ...] = ()


class Combinations(Sequence[Pair]):
    """Every combination of some choices as a pair, each built when it is asked for.

    ``sizes`` are the numbers of choices, ``build`` makes a pair of one number per choice.

    >>> pairs = Combinations((2, 3), lambda i, j: Pair(f"{i}", f"{j}", (), ()))
    >>> len(pairs), pairs[5].clean, pairs[5].corrupted
    (6, '1', '2')
    """

    def __init__(self, sizes: Sequence[int], build: Callable[..., Pair]) -> None:
        self._sizes, self._build = tuple(max(size, 0) for size in sizes), build

    def __len__(self) -> int:
        return math.prod(self._sizes)

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> list[Pair]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        digits = []
        for size in reversed(self._sizes):
            index, digit = divmod(index, size)
            digits.append(digit)
        return self._build(*reversed(digits))


class Joined(Sequence[Pair]):
    """Two lists of pairs, one after the other, without writing either out."""

    def __init__(self, first: Sequence[Pair], second: Sequence[Pair]) -> None:
        self._first, self._second = first, second

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> list[Pair]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = index - len(self._first)
        return self._first[index] if at < 0 else self._second[at]
