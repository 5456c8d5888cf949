"""A pair of prompts with its answers, still as text, and lists of pairs too long to write out.

The tasks speak of words and the models of tokens. Everything up to here is the same for every
model; ``tokens.py`` then keeps the pairs that a tokenizer can carry.

From words to tokens: the pairs that a tokenizer can carry, and why the others cannot be used.

A pair is used if both prompts have the same number of tokens and are not the same, and if its
answers are tokens, different ones. What is not used is counted by reason, with the first case in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias, overload

from gradpath.errors import InputError
from gradpath.model.tokenizer import Tokenizer


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


@dataclass(frozen=True)
class Source:
    """Pairs on offer, the name they go by, the metric that fits them, and what files record of them."""

    name: str
    metric: str
    found: Candidates
    about: Mapping[str, Any] = field(default_factory=dict)


LENGTHS = "the prompts have different numbers of tokens"
SAME = "the prompts are the same"
REPEATED = "an earlier pair has the same prompts"
NO_TOKEN = "an answer is not a single token"
SHARED = "right and wrong answers share a token"

Ids: TypeAlias = tuple[int, ...]

_CHUNK = 2048  # pairs that are tokenised in one call


@dataclass(frozen=True)
class Dropped:
    """How often a reason struck, and the first case of it."""

    count: int
    first: str


@dataclass
class Kept:
    """The pairs that are used, the ids of their right and wrong answers, and what was dropped.

    ``left_out`` are answers that are no single token, of pairs that do without them.
    """

    pairs: list[Pair] = field(default_factory=list)
    answers: list[tuple[Ids, Ids]] = field(default_factory=list)
    dropped: dict[str, Dropped] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)


class _UnusableError(Exception):
    """Why one pair is dropped: a reason that is counted, and this pair's details."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


def keep(pairs: Iterable[Pair], tokenizer: Tokenizer, n: int | None, *, many: bool) -> Kept:
    """The first ``n`` usable pairs, or all of them; none after the n-th is looked at.

    ``many`` is for metrics that sum over answers: answers that are no single token are then left
    out, as long as each side keeps one.
    """
    words, seen = _Words(tokenizer), set[tuple[str, str]]()
    kept = Kept(left_out=words.left_out)
    for chunk in _chunks(pairs, min(n or _CHUNK, _CHUNK)):
        clean = tokenizer.encode([pair.clean for pair in chunk])
        corrupted = tokenizer.encode([pair.corrupted for pair in chunk])
        words.learn(chunk)
        for pair, a, b in zip(chunk, clean, corrupted, strict=True):
            try:
                _check_prompts(pair, a, b, seen)
                answers = _answers(pair, words, many)
            except _UnusableError as problem:
                _count(kept.dropped, pair, problem)
                continue
            seen.add((pair.clean, pair.corrupted))
            kept.pairs.append(pair)
            kept.answers.append(answers)
            if len(kept.pairs) == n:
                return kept
    return kept


def _chunks(pairs: Iterable[Pair], size: int) -> Iterator[list[Pair]]:
    rest = iter(pairs)
    while chunk := list(islice(rest, size)):
        yield chunk


def _count(dropped: dict[str, Dropped], pair: Pair, problem: _UnusableError) -> None:
    before = dropped.get(problem.reason)
    case = f"{pair.where or repr(pair.clean)}{': ' if problem.detail else ''}{problem.detail}"
    dropped[problem.reason] = Dropped(before.count + 1, before.first) if before else Dropped(1, case)


def _check_prompts(pair: Pair, clean: list[int], corrupted: list[int], seen: set[tuple[str, str]]) -> None:
    if pair.problem:
        raise _UnusableError(pair.problem)
    if len(clean) != len(corrupted):
        raise _UnusableError(LENGTHS, f"{len(clean)} and {len(corrupted)}")
    if clean == corrupted:
        raise _UnusableError(SAME)
    if (pair.clean, pair.corrupted) in seen:
        raise _UnusableError(REPEATED)


def _answers(pair: Pair, words: _Words, many: bool) -> tuple[Ids, Ids]:
    """The ids of the pair's right and wrong answers."""
    for side in (pair.right, pair.wrong):
        if len(side) > 1 and not many:
            raise InputError(
                f"a logit difference compares one right answer with one wrong answer: "
                f"{pair.where or repr(pair.clean)} has {len(side)}. Use the metric probability-difference."
            )
    right, wrong = words.tokens(pair.right, pair), words.tokens(pair.wrong, pair)
    if both := set(right) & set(wrong):
        raise _UnusableError(SHARED, f"{words.show(min(both))!r} in {pair.right} and {pair.wrong}")
    return right, wrong


class _Words:
    """Answers and their tokens, each looked up once: all pairs of a task may have the same hundreds."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._size = len(tokenizer.hf)
        self._known: dict[str | int, Ids] = {}
        self._sides: dict[tuple[tuple[str | int, ...], bool], Ids] = {}
        self.left_out: set[str] = set()

    def learn(self, pairs: Sequence[Pair]) -> None:
        """Tokenise all answers of some pairs that are new."""
        sides = dict.fromkeys(side for pair in pairs for side in (pair.right, pair.wrong))
        new = dict.fromkeys(answer for side in sides for answer in side if answer not in self._known)
        texts = [answer for answer in new if isinstance(answer, str)]
        self._known.update(zip(texts, map(tuple, self._tokenizer.continuations(texts)), strict=True))
        self._known.update({answer: (answer,) for answer in new if isinstance(answer, int)})

    def tokens(self, answers: tuple[str | int, ...], pair: Pair) -> Ids:
        """The answers' tokens: their only ones, or their first where the pair allows that."""
        key = answers, pair.by_first
        if key not in self._sides:
            known = {answer: self._known[answer] for answer in answers}
            fit = {a: ids[0] for a, ids in known.items() if len(ids) == 1 or (ids and pair.by_first)}
            self._check_ids(fit.values(), pair)
            self._sides[key] = tuple(dict.fromkeys(fit.values()))
            if fit:
                self.left_out |= {str(answer) for answer in known if answer not in fit}
        if not self._sides[key]:
            raise _UnusableError(NO_TOKEN, f"{answers[0]!r} is {self._pieces(answers[0])}")
        return self._sides[key]

    def _check_ids(self, ids: Iterable[int], pair: Pair) -> None:
        for token in ids:
            if not 0 <= token < self._size:
                raise InputError(
                    f"an answer has to be a token of the model, which has {self._size} of them: "
                    f"{pair.where or repr(pair.clean)} asks for token {token}. Give the answer as text."
                )

    def _pieces(self, answer: str | int) -> str:
        return " + ".join(repr(self.show(i)) for i in self._known[answer]) or "no token"

    def show(self, token: int) -> str:
        return self._tokenizer.decode([token])
