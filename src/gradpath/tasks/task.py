"""``Task``: pairs of clean and corrupted prompts, their answers and a metric; and ``Pairs``, the same as token ids."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import pairwise
from typing import Any, NamedTuple, SupportsIndex, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gradpath.errors import InputError, UsageError, check_type, reason
from gradpath.model.tokenizer import Tokenizer, check_tokenizer, padded, prompt_ids
from gradpath.recipe import IN_MEMORY, Recipe
from gradpath.tasks.metrics import (
    Metric,
    check_labels,
    kl_divergence,
    label_tensor,
    logit_difference,
    metric_name,
    probability_difference,
)

_ANSWERS_SHOWN = 4  # of each side, in print(task)
Spans = Mapping[str, tuple[int, int]]  # named parts of a prompt: first character, and the one after the last


class PromptPair(NamedTuple):
    """One pair of a task: ``clean, corrupted, label = task[3]``."""

    clean: str | Tensor
    corrupted: str | Tensor
    label: Any


@dataclass(frozen=True, eq=False, repr=False)
class Task:
    """Pairs of prompts with labels and a metric.

    Args:
        clean: The clean prompts: strings, or a tensor of token ids without padding.
        corrupted: The corrupted prompts, in the same form and with the same numbers of tokens.
        labels: A tensor, or a list, whose first axis is the example. Strings in it stand for single tokens.
        metric: A function of the logits at the last position, (batch, vocab), and the labels of the same rows that
            returns (batch,).
        name: The name of the task in saved files.
        recipe: How the pairs were drawn; None for pairs of your own.
        facts: Further facts on the pairs, to store in saved files.
        spans: Named parts of each clean prompt in characters, such as {"subject": (4, 9)} (``explanation.parts``).
        decode: From token ids to text, to print labels as words.
    """

    clean: Sequence[str] | Tensor
    corrupted: Sequence[str] | Tensor
    labels: Any
    metric: Metric = logit_difference
    name: str = "custom"
    recipe: Recipe | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    spans: Sequence[Spans] | None = None
    decode: Callable[[list[int]], str] | None = None

    def __post_init__(self) -> None:
        for name in ("clean", "corrupted"):
            prompts = getattr(self, name)
            texts = isinstance(prompts, Sequence) and not isinstance(prompts, str)  # which is a sequence of characters
            if not isinstance(prompts, Tensor) and not (texts and all(isinstance(prompt, str) for prompt in prompts)):
                raise InputError(
                    f"{name} has to be a list of strings, or one tensor of token ids, (examples, positions): "
                    f"got {shortened(repr(prompts))}."
                )
        if isinstance(self.labels, str) or not hasattr(self.labels, "__len__") or getattr(self.labels, "ndim", 1) == 0:
            raise InputError(
                f"labels have to be a tensor or a list with one entry per example: got {shortened(repr(self.labels))}."
            )
        if not callable(self.metric):
            raise InputError(
                f"a metric is a function of logits and labels: got {self.metric!r}. Metrics by name are for load_task."
            )
        lengths = {"clean": len(self.clean), "corrupted": len(self.corrupted), "labels": len(self.labels)}
        if len(set(lengths.values())) > 1:
            raise InputError(f"a task needs as many corrupted prompts and labels as clean prompts: got {lengths}.")
        if self.spans is not None and len(self.spans) != len(self.clean):
            raise InputError(
                f"spans have to be given for every prompt or for none: got {len(self.spans)} for {len(self.clean)}."
            )
        if not len(self.clean):
            raise InputError("a task needs at least one pair of prompts: got none.")

    def __repr__(self) -> str:
        return f"<Task {self.name}: {len(self):,} {'pair' if len(self) == 1 else 'pairs'}, {metric_name(self.metric)}>"

    def __str__(self) -> str:
        def shown(value: Any) -> str:
            return shortened(str(value.tolist() if isinstance(value, Tensor) else value))

        clean, corrupted, label = self[0]
        return "\n".join(
            [
                f"Task {self.name}: {len(self):,} {'pair' if len(self) == 1 else 'pairs'} of prompts",
                f"  metric     {metric_name(self.metric)}",
                f"  clean      {shown(clean)}",
                f"  corrupted  {shown(corrupted)}",
                f"  label      {self._words(label) or shown(label)}",
            ]
        )

    def _words(self, label: Any) -> str:
        """The correct and the wrong answers of a label as words, a few of each; empty if they cannot be told."""
        if self.decode is None or not isinstance(label, Tensor) or label.is_floating_point() or label.shape[:1] != (2,):
            return ""
        sides = []
        for side in label.reshape(2, -1).tolist():
            tokens = [token for token in side if token >= 0]  # a shorter list of answers ends in -1
            words = ", ".join(repr(self.decode([token])) for token in tokens[:_ANSWERS_SHOWN])
            sides.append(words + (f" and {len(tokens) - _ANSWERS_SHOWN} more" if len(tokens) > _ANSWERS_SHOWN else ""))
        return f"{sides[0]}; not {sides[1]}"

    def __len__(self) -> int:
        return len(self.clean)

    @overload
    def __getitem__(self, at: SupportsIndex) -> PromptPair: ...
    @overload
    def __getitem__(self, at: slice) -> Task: ...
    def __getitem__(self, at: Any) -> PromptPair | Task:
        """One pair, ``task[3]``, or a task with some of the pairs, ``task[:50]``."""
        if isinstance(at, slice):
            return self.take(range(len(self))[at])
        try:
            row = range(len(self))[operator.index(at)]
        except TypeError:
            raise UsageError(f"a task is indexed by a number or a slice, task[3] or task[:50]: got {at!r}.") from None
        except IndexError:
            raise IndexError(f"this task has {len(self)} pairs, from 0 to {len(self) - 1}: got {at}.") from None
        return PromptPair(self.clean[row], self.corrupted[row], self.labels[row])

    def take(self, rows: Sequence[int]) -> Task:
        """A task with the pairs at these indices, in this order."""

        def select(column: Any) -> Any:
            return column[list(rows)] if isinstance(column, Tensor) else [column[i] for i in rows]

        parts = {name: select(getattr(self, name)) for name in ("clean", "corrupted", "labels")}
        return replace(self, **parts, spans=None if self.spans is None else select(self.spans))

    def __iter__(self) -> Iterator[PromptPair]:
        return (self[i] for i in range(len(self)))

    @property
    def record(self) -> Recipe:
        """How the pairs were drawn, for files: of pairs of your own, that they were in memory."""
        if self.recipe is not None:
            return self.recipe.changed(task=self.name)
        return Recipe(task=self.name, data=IN_MEMORY, metric=metric_name(self.metric), examples=len(self))

    @property
    def prompts(self) -> Sequence[str] | Tensor:
        """The clean prompts."""
        return self.clean


def shortened(text: str, width: int = 100) -> str:
    """A text on one line of at most this many characters; the middle of a longer text is left out.

    >>> shortened("When Mary and John went to the store", 21)
    'When Mar ... he store'
    """
    text = " ".join(text.split())
    half = (width - 5) // 2
    return text if len(text) <= width else f"{text[:half].rstrip()} ... {text[-half:].lstrip()}"


@dataclass(frozen=True, eq=False)
class Pairs:
    """Token ids of a task's prompts under one tokenizer, padded on the right.

    ``last`` is the position of each prompt's last token, ``first`` the first position at which the two prompts of a
    pair differ. A causal model never reads to the right, so padding needs no attention mask, and the two runs of a pair
    are equal to the left of ``first``.
    """

    clean: Int[Tensor, "batch pos"]
    corrupted: Int[Tensor, "batch pos"]
    last: Int[Tensor, " batch"]
    first: Int[Tensor, " batch"]
    labels: Any
    index: Int[Tensor, " batch"]  # the row of the task that each pair comes from

    def __len__(self) -> int:
        return len(self.clean)

    @property
    def start(self) -> int:
        """The first position at which any pair of the batch differs."""
        return int(self.first.min())

    def rows(self, rows: Tensor) -> Pairs:
        """Some of the pairs, cut to the length of the longest."""
        length = int(self.last[rows].max()) + 1
        labels = [self.labels[int(i)] for i in rows] if isinstance(self.labels, list) else self.labels[rows]
        return Pairs(
            clean=self.clean[rows, :length],
            corrupted=self.corrupted[rows, :length],
            last=self.last[rows],
            first=self.first[rows],
            labels=labels,
            index=self.index[rows],
        )

    def batches(self, size: int) -> Iterator[Pairs]:
        """All pairs in batches. Pairs with similar length and first difference are together, for little padding."""
        order = self._order()
        for start in range(0, len(order), size):
            yield self.rows(order[start : start + size])

    def tight_batches(self, rows: int, most: int, price: int = 20, padding: float = 1.0) -> list[Pairs]:
        """All pairs in batches, divided so that they take the least time.

        Args:
            rows: The largest number of rows of a batch with several examples. A row is a position of an example, from
                its first difference on.
            most: The largest number of examples of a batch.
            price: The cost of one more batch, in rows.
            padding: The cost of a position that is in a batch only because of other examples, in rows.

        Returns:
            The batches, in the order of ``batches``.
        """
        order = self._order()
        first, last = self.first[order].tolist(), self.last[order].tolist()
        least, begins = [0.0], [0]  # the lowest cost of the first ``end`` pairs, and where their last batch begins
        for end in range(1, len(order) + 1):
            least.append(math.inf)
            begins.append(end - 1)
            start, stop, real = first[end - 1], last[end - 1], 0
            for begin in range(end - 1, max(-1, end - 1 - most), -1):
                start, stop = min(start, first[begin]), max(stop, last[begin])
                real += last[begin] - first[begin] + 1
                size = real + padding * ((end - begin) * (stop - start + 1) - real)
                if size > rows and end - begin > 1:
                    break
                if least[begin] + size + price < least[end]:
                    least[end], begins[end] = least[begin] + size + price, begin
        ends = [len(order)]
        while ends[-1]:
            ends.append(begins[ends[-1]])
        return [self.rows(order[begin:end]) for begin, end in pairwise(reversed(ends))]

    def _order(self) -> Tensor:
        order = sorted(range(len(self)), key=lambda i: (int(self.last[i]), int(self.first[i])))
        return torch.tensor(order, device="cpu")

    def to(self, device: torch.device) -> Pairs:
        """The same pairs on a device; ``index`` stays on the CPU."""
        moved = {k: x.to(device) for k, x in vars(self).items() if isinstance(x, Tensor) and k != "index"}
        return replace(self, **moved)


def judged_by_kl(task: Task, clean_logits: Float[Tensor, "example vocab"]) -> Task:
    """The same pairs with ``kl_divergence`` as the metric: how close the output is to the output of the clean run.

    ``clean_logits`` are the model's at the last position of the clean prompts; their log-probabilities are the labels.
    """
    if clean_logits.ndim != 2 or len(clean_logits) != len(task):
        raise InputError(
            f"KL needs one row of clean logits per example, ({len(task)}, vocabulary): "
            f"got {tuple(clean_logits.shape)}. Take the logits at each clean prompt's last position."
        )
    labels = clean_logits.detach().float().log_softmax(-1)
    recipe = None if task.recipe is None else task.recipe.changed(metric="kl")
    return replace(task, labels=labels, metric=kl_divergence, recipe=recipe)


def encode(task: Task, tokenizer: Tokenizer | None) -> Pairs:
    """Tokenise the prompts of a task, and check them pair by pair; the token ids are on the CPU.

    Without a tokenizer, all prompts and labels have to be token ids.
    """
    check_type("the task", task, Task)
    clean, corrupted = (prompt_ids(prompts, tokenizer) for prompts in (task.clean, task.corrupted))
    for i, (a, b) in enumerate(zip(clean, corrupted, strict=True)):
        if not a or not b:
            raise InputError(f"a prompt needs at least one token: pair {i} has an empty one. Drop it.")
        if len(a) != len(b):
            raise InputError(
                "clean and corrupted prompts must have the same number of tokens: "
                f"pair {i} has {len(a)} and {len(b)}. Drop the pair, or reword it."
            )
    last = torch.tensor([len(ids) - 1 for ids in clean], device="cpu")
    clean_ids, corrupted_ids = padded(clean), padded(corrupted)
    differs = clean_ids != corrupted_ids
    # If the two prompts are equal, the last position counts as the first difference.
    first = torch.where(differs.any(1), differs.int().argmax(1), last)
    labels = _labels(task, tokenizer)
    check_labels(task.metric, labels)
    return Pairs(clean_ids, corrupted_ids, last, first, labels, torch.arange(len(task), device="cpu"))


def task_digest(task: Task, tokenizer: Tokenizer | None) -> str:
    """A digest of the prompts' tokens (including BOS), the labels and the metric."""
    pairs = encode(task, tokenizer)
    labels: Any = pairs.labels
    if isinstance(labels, list):
        labels = [x.tolist() for x in labels]
    elif labels.is_floating_point():  # such as the clean output: many numbers
        labels = sha256(labels.double().numpy().tobytes()).hexdigest()
    else:
        labels = labels.tolist()
    metric = task.record.metric
    content = (pairs.clean.tolist(), pairs.corrupted.tolist(), pairs.last.tolist(), labels, metric)
    return sha256(repr(content).encode()).hexdigest()[:16]


def _labels(task: Task, tokenizer: Tokenizer | None) -> Any:
    """The labels as a tensor if all rows have the same shape, else as a list of tensors."""
    if isinstance(task.labels, Tensor):
        return task.labels
    rows = [_label(row, tokenizer) for row in task.labels]
    if task.metric is probability_difference and all(_is_two_lists(row) for row in rows):
        return label_tensor([(right, wrong) for right, wrong in rows], many=True)
    try:
        tensors = [torch.as_tensor(row) for row in rows]
    except (TypeError, ValueError, RuntimeError, OverflowError) as problem:
        raise InputError(f"labels have to be numbers, or texts that are single tokens: {reason(problem)}.") from None
    return torch.stack(tensors) if len({x.shape for x in tensors}) == 1 else tensors


def _is_two_lists(row: Any) -> bool:
    return isinstance(row, list) and len(row) == 2 and all(isinstance(side, list) and side for side in row)


def _label(row: Any, tokenizer: Tokenizer | None) -> Any:
    if isinstance(row, str):
        return check_tokenizer(tokenizer).token(row)
    if isinstance(row, (list, tuple)):
        return [_label(item, tokenizer) for item in row]
    return row
