"""Pairs of prompts as text, and the choice of those that a tokenizer can represent.

Tasks and data files are made of words, so a pair is the same for every model. ``usable_pairs`` checks pairs under a
tokenizer. A pair is usable if its prompts differ and have the same number of tokens, and if its correct and wrong
answers are different tokens. Other pairs are dropped and counted by reason, with the first case.

Answers of several tokens can be compared by the first token in which they differ (``first_token``). What they share
before it is put at the end of both prompts: after "5 times 7 is", " 35" and " 42" become "3" and "4" after "5 times 7
is " where the space is a token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from typing import Any, NamedTuple, TypeAlias

from gradpath.errors import InputError
from gradpath.model.tokenizer import Tokenizer

LENGTHS = "the prompts have different numbers of tokens"
SAME = "the prompts are the same"
REPEATED = "an earlier pair has the same prompts"
NO_TOKEN = "an answer is not a single token"
BEGINNING = "one answer is the beginning of another"
MERGED = "what the answers share changes the tokens of the prompt before it"
NO_ID = "an answer is not a token id of the model"
SHARED = "right and wrong answers share a token"

_LISTED = 20  # dropped pairs that are listed for each reason
_CHUNK = 2048  # pairs that are tokenised in one call
Answers: TypeAlias = tuple[str | int, ...]
Ids: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two prompts, and the correct and wrong answers after the clean one.

    An answer is the text that follows the prompt, with its leading space, or a token id.
    """

    clean: str
    corrupted: str
    right: Answers
    wrong: Answers
    by_first: bool = False  # an answer of several tokens stands for its first one
    where: str = ""  # the row of the user's file
    problem: str = ""  # why the pair cannot be used under this tokenizer
    spans: Mapping[str, tuple[int, int]] | None = None  # named parts of the clean prompt, in characters

    @property
    def title(self) -> str:
        """The pair in an error message."""
        return self.where or repr(self.clean)


@dataclass(frozen=True)
class Combinations:
    """Every combination of some choices as a pair, built on access.

    ``sizes`` are the numbers of choices, and ``build`` makes a pair from one index per choice.

    >>> pairs = Combinations((2, 3), lambda i, j: Pair(f"{i}", f"{j}", (), ()))
    >>> len(pairs), pairs[5].clean, pairs[5].corrupted
    (6, '1', '2')
    """

    sizes: Sequence[int]
    build: Callable[..., Pair]

    def __len__(self) -> int:
        return math.prod(max(size, 0) for size in self.sizes)

    def __getitem__(self, index: int, /) -> Pair:
        digits = []
        for size in reversed(self.sizes):
            index, digit = divmod(index, size)
            digits.append(digit)
        return self.build(*reversed(digits))


@dataclass(frozen=True)
class Candidates:
    """All pairs of a task, and notes for the user on how they were made."""

    pairs: Sequence[Pair] | Combinations
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """The pairs of a task or a file, their name and metric, and what saved files record about them."""

    name: str
    metric: str
    candidates: Candidates
    facts: Mapping[str, Any] = field(default_factory=dict)
    data: str | None = None  # where the user's own pairs are from


@dataclass
class Dropped:
    """How many pairs were dropped for a reason, and the first of them."""

    reason: str
    count: int = 0
    cases: list[tuple[Pair, str]] = field(default_factory=list)  # the first ``_LISTED`` of them, and details of each

    def add(self, pair: Pair, detail: str) -> None:
        self.count += 1
        if len(self.cases) < _LISTED:
            self.cases.append((pair, detail))

    @property
    def first(self) -> str:
        pair, detail = self.cases[0]
        return f"{pair.title}: {detail}" if detail else pair.title

    @property
    def rows(self) -> list[str]:
        """The cases, one line each."""
        return [f"{pair.title}: {self.reason}{f' ({detail})' if detail else ''}" for pair, detail in self.cases]


class UsablePair(NamedTuple):
    """A pair, the token ids of its correct and wrong answers, and those of its clean prompt as it was given."""

    pair: Pair
    answers: tuple[Ids, Ids]
    clean: Ids


@dataclass
class UsablePairs:
    """The usable pairs, and the dropped ones by reason.

    ``left_out`` are answers that are not single tokens, of pairs that have other answers. ``unknown`` are usable pairs
    whose prompts have text outside the vocabulary.
    """

    pairs: list[UsablePair] = field(default_factory=list)
    dropped: dict[str, Dropped] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    unknown: list[Pair] = field(default_factory=list)


class _UnusableError(Exception):
    """Why a pair is dropped: the reason that is counted, and the details of this pair."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


def usable_pairs(
    pairs: Iterable[Pair], tokenizer: Tokenizer, n: int | None, *, many: bool, first_token: bool = False
) -> UsablePairs:
    """The first ``n`` usable pairs, or all of them, and what was dropped.

    Args:
        pairs: The pairs in the order in which they are tried.
        tokenizer: The tokenizer of the model.
        n: The number of pairs. No pair after the n-th usable one is tried.
        many: Whether the metric sums over answers. Answers that are not single tokens are then left out, as long as
            each side keeps one.
        first_token: Whether to compare the first token in which the answers of a pair differ.
    """
    answer_tokens, earlier, remaining = _AnswerTokens(tokenizer), set[tuple[Ids, Ids]](), iter(pairs)
    usable = UsablePairs(left_out=answer_tokens.left_out)
    n_front = 0 if tokenizer.prepend is None else 1  # BOS
    while chunk := list(islice(remaining, min(n or _CHUNK, _CHUNK))):
        clean = map(tuple, tokenizer.encode([pair.clean for pair in chunk]))
        corrupted = map(tuple, tokenizer.encode([pair.corrupted for pair in chunk]))
        answer_tokens.add(chunk)
        for pair, prompts in zip(chunk, zip(clean, corrupted, strict=True), strict=True):
            try:
                _check_prompts(pair, prompts, earlier)
                if first_token:
                    pair, answers = answer_tokens.where_they_differ(pair, prompts, many)
                else:
                    answers = answer_tokens.of_pair(pair, many)
            except _UnusableError as problem:
                usable.dropped.setdefault(problem.reason, Dropped(problem.reason)).add(pair, problem.detail)
                continue
            earlier.add(prompts)
            usable.pairs.append(UsablePair(pair, answers, prompts[0]))
            texts = (pair.clean, pair.corrupted)
            if any(tokenizer.has_unknown(text, ids[n_front:]) for text, ids in zip(texts, prompts, strict=True)):
                usable.unknown.append(pair)
            if len(usable.pairs) == n:
                return usable
    return usable


def _check_prompts(pair: Pair, prompts: tuple[Ids, Ids], earlier: set[tuple[Ids, Ids]]) -> None:
    clean, corrupted = prompts
    if pair.problem:
        raise _UnusableError(pair.problem)
    if len(clean) != len(corrupted):
        raise _UnusableError(LENGTHS, f"{len(clean)} and {len(corrupted)}")
    if clean == corrupted:
        raise _UnusableError(SAME)
    if prompts in earlier:
        raise _UnusableError(REPEATED)


class _AnswerTokens:
    """The tokens of answers. Each answer is looked up once, because all pairs of a task may share hundreds of them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._size = len(tokenizer.hf)
        self._known: dict[str | int, Ids] = {}
        self._sides: dict[tuple[Answers, bool, int], Ids] = {}
        self.left_out: set[str] = set()

    def add(self, pairs: Sequence[Pair]) -> None:
        """Tokenise the new answers of these pairs."""
        sides = dict.fromkeys(side for pair in pairs for side in (pair.right, pair.wrong))
        new = dict.fromkeys(answer for side in sides for answer in side if answer not in self._known)
        texts = [answer for answer in new if isinstance(answer, str)]
        self._known.update(zip(texts, map(tuple, self._tokenizer.continuations(texts)), strict=True))
        self._known.update({answer: (answer,) for answer in new if isinstance(answer, int)})

    def where_they_differ(self, pair: Pair, prompts: tuple[Ids, Ids], many: bool) -> tuple[Pair, tuple[Ids, Ids]]:
        """The pair with all tokens that its answers begin with in its prompts, and the tokens that follow."""
        shared = common_beginning([self._known[answer] for answer in (*pair.right, *pair.wrong)])
        if shared:
            text = self._tokenizer.decode(shared)
            clean, corrupted = f"{pair.clean}{text}", f"{pair.corrupted}{text}"
            if self._tokenizer.encode([clean, corrupted]) != [[*ids, *shared] for ids in prompts]:
                raise _UnusableError(MERGED, repr(text))
            pair = replace(pair, clean=clean, corrupted=corrupted)
        return pair, self.of_pair(replace(pair, by_first=True), many, len(shared))

    def of_pair(self, pair: Pair, many: bool, skipped: int = 0) -> tuple[Ids, Ids]:
        """The token ids of the correct and the wrong answers of a pair, without so many first ones of each."""
        for side in (pair.right, pair.wrong):
            if len(side) > 1 and not many:
                raise InputError(
                    f"a logit difference compares one correct answer with one wrong answer: "
                    f"{pair.title} has {len(side)}. Use the metric probability-difference."
                )
        right, wrong = (self._tokens(side, pair.by_first, skipped) for side in (pair.right, pair.wrong))
        if not right or not wrong:
            failing = [side[0] for side, tokens in ((pair.right, right), (pair.wrong, wrong)) if not tokens]
            raise _UnusableError(BEGINNING if skipped else NO_TOKEN, ", ".join(map(self._split, failing)))
        if both := set(right) & set(wrong):
            raise _UnusableError(SHARED, f"{self._tokenizer.decode([min(both)])!r} in {pair.right} and {pair.wrong}")
        return right, wrong

    def _tokens(self, answers: Answers, by_first: bool, skipped: int) -> Ids:
        """The token of each answer: its only one, or its first one if the pair allows that; none if there is none."""
        key = answers, by_first, skipped
        if key not in self._sides:
            known = {answer: self._known[answer][skipped:] for answer in answers}
            tokens = {a: ids[0] for a, ids in known.items() if len(ids) == 1 or (ids and by_first)}
            for token in tokens.values():
                if not 0 <= token < self._size:
                    raise _UnusableError(NO_ID, f"{token} is not one of 0 to {self._size - 1}")
            self._sides[key] = tuple(dict.fromkeys(tokens.values()))
            if tokens:
                self.left_out |= {str(answer) for answer in known if answer not in tokens}
        return self._sides[key]

    def _split(self, answer: str | int) -> str:
        """An answer and its tokens: ``' 42' is ' ' + '4' + '2'``."""
        return f"{answer!r} is {as_tokens(self._tokenizer, self._known[answer])}"


def as_tokens(tokenizer: Tokenizer, ids: Ids) -> str:
    """Tokens as text: ``' ' + '4' + '2'``."""
    return " + ".join(repr(tokenizer.decode([token])) for token in ids) or "no token"


def common_beginning(lists: Sequence[Ids]) -> Ids:
    """The tokens that all lists begin with.

    >>> common_beginning([(1, 2, 3), (1, 2, 4), (1, 2)])
    (1, 2)
    """
    same = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*lists, strict=False))
    return tuple(tokens[0] for tokens in same)
