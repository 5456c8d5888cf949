"""A task: pairs of clean and corrupted prompts, what the answers are, and how to judge them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gradpath.errors import InputError, UsageError
from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks.metrics import Metric, kl_divergence, logit_difference

Spans = Mapping[str, tuple[int, int]]  # parts of a prompt by name: from this character up to that one


@dataclass(frozen=True)
class Task:
    """Pairs of prompts with labels and a metric.

    ``clean`` and ``corrupted`` are two lists of strings, or two equal-shaped tensors of token ids
    without padding. ``labels`` is a tensor, or a list, whose first axis is the example; strings in it
    stand for single tokens. ``metric`` takes the logits at the last position, (batch, vocab), and
    the same rows' labels, and returns (batch,). ``name`` and ``about`` go into the files that are saved.
    ``spans`` may name parts of each clean prompt, as {"subject": (4, 9)} in characters (``tasks.spans``).
    """

    clean: Sequence[str] | Tensor
    corrupted: Sequence[str] | Tensor
    labels: Any
    metric: Metric = logit_difference
    name: str = "custom"
    about: Mapping[str, Any] = field(default_factory=dict)
    spans: Sequence[Spans] | None = None

    def __post_init__(self) -> None:
        lengths = {"clean": len(self.clean), "corrupted": len(self.corrupted), "labels": len(self.labels)}
        if len(set(lengths.values())) > 1:
            raise InputError(f"a task needs as many corrupted prompts and labels as clean prompts: got {lengths}.")
        if self.spans is not None and len(self.spans) != len(self.clean):
            raise InputError(
                f"spans are named for every prompt or for none: got {len(self.spans)} for {len(self.clean)}."
            )
        if not len(self.clean):
            raise InputError("a task needs at least one pair of prompts: got none.")

    def __len__(self) -> int:
        return len(self.clean)

    def __getitem__(self, rows: Any) -> Task:
        """A task of some of the pairs: ``task[:50]``."""
        if not isinstance(rows, slice):
            raise UsageError(f"a task is cut with a slice, such as task[:50]: got {rows!r}.")
        parts = {name: getattr(self, name)[rows] for name in ("clean", "corrupted", "labels")}
        return replace(self, **parts, spans=None if self.spans is None else self.spans[rows])


@dataclass(frozen=True)
class Pairs:
    """Token ids of a task's prompts under one tokenizer, padded on the right.

    ``last`` is the index of each prompt's last real token, ``first`` that of the first token in which
    the two prompts of a pair differ. A causal model never sees what stands to the right, so no
    attention mask is needed, and nothing left of ``first`` differs between the two runs.
    """

    clean: Int[Tensor, "batch pos"]
    corrupted: Int[Tensor, "batch pos"]
    last: Int[Tensor, " batch"]
    first: Int[Tensor, " batch"]
    labels: Any
    index: Int[Tensor, " batch"]  # which example of the task each row is
    spans: Int[Tensor, "batch pos"] | None = None  # which part of its prompt a position is in: see ``spans``

    def __len__(self) -> int:
        return len(self.clean)

    @property
    def start(self) -> int:
        """The first position at which any pair of the batch differs."""
        return int(self.first.min())

    def rows(self, rows: Tensor) -> Pairs:
        """Some of the pairs, cut to the longest of them."""
        length = int(self.last[rows].max()) + 1
        pick = [self.labels[int(i)] for i in rows] if isinstance(self.labels, list) else self.labels[rows]
        return Pairs(
            clean=self.clean[rows, :length],
            corrupted=self.corrupted[rows, :length],
            last=self.last[rows],
            first=self.first[rows],
            labels=pick,
            index=self.index[rows],
            spans=None if self.spans is None else self.spans[rows, :length],
        )

    def batches(self, size: int) -> Iterator[Pairs]:
        """All pairs, those of like length and like first difference together (little padding)."""
        order = self._order()
        for at in range(0, len(order), size):
            yield self.rows(order[at : at + size])

    def in_order(self) -> Pairs:
        """The pairs in the order in which they come in batches."""
        return self.rows(self._order())

    def _order(self) -> Tensor:
        by_length = sorted(range(len(self)), key=lambda i: (int(self.last[i]), int(self.first[i])))
        return torch.tensor(by_length, device="cpu")

    def to(self, device: torch.device) -> Pairs:
        labels = self.labels.to(device) if isinstance(self.labels, Tensor) else self.labels
        moved = {name: getattr(self, name).to(device) for name in ("clean", "corrupted", "last", "first")}
        spans = None if self.spans is None else self.spans.to(device)
        return replace(self, labels=labels, spans=spans, **moved)


def judged_by_kl(task: Task, clean_logits: Float[Tensor, "example vocab"]) -> Task:
    """The same pairs, judged by how near the whole output stays to the clean one.

    ``clean_logits`` are the model's logits at the last position of the task's clean prompts, in the
    task's order. They are kept, so this costs examples x vocabulary numbers.
    """
    if clean_logits.ndim != 2 or len(clean_logits) != len(task):
        raise InputError(
            f"KL needs one row of clean logits per example, ({len(task)}, vocabulary): "
            f"got {tuple(clean_logits.shape)}. Take the logits at each clean prompt's last position."
        )
    labels = clean_logits.detach().float().log_softmax(-1)
    return replace(task, labels=labels, metric=kl_divergence, about={**task.about, "metric": "kl-divergence"})


def encode(task: Task, tokenizer: Tokenizer | None) -> Pairs:
    """The task's prompts as token ids, checked pair by pair."""
    clean, corrupted = (_ids(prompts, tokenizer) for prompts in (task.clean, task.corrupted))
    for i, (a, b) in enumerate(zip(clean, corrupted, strict=True)):
        if not a or not b:
            raise InputError(f"a prompt needs at least one token: pair {i} has an empty one. Drop it.")
        if len(a) != len(b):
            raise InputError(
                "clean and corrupted prompts must have the same number of tokens: "
                f"pair {i} has {len(a)} and {len(b)}. Drop the pair, or reword it."
            )
    last = torch.tensor([len(ids) - 1 for ids in clean], device="cpu")
    clean_ids, corrupted_ids = _padded(clean), _padded(corrupted)
    differs = clean_ids != corrupted_ids
    # Two equal prompts differ nowhere; the last position then stands for "from here on".
    first = torch.where(differs.any(1), differs.int().argmax(1), last)
    return Pairs(clean_ids, corrupted_ids, last, first, _labels(task, tokenizer), torch.arange(len(task), device="cpu"))


def _ids(prompts: Sequence[str] | Tensor, tokenizer: Tokenizer | None) -> list[list[int]]:
    if isinstance(prompts, Tensor):
        if prompts.ndim != 2 or prompts.is_floating_point():
            raise InputError(
                "prompts given as a tensor must be token ids of shape (examples, positions): "
                f"got {prompts.dtype} of shape {tuple(prompts.shape)}."
            )
        rows: list[list[int]] = prompts.tolist()
        return rows
    return _need(tokenizer).encode(prompts)


def _need(tokenizer: Tokenizer | None) -> Tokenizer:
    if tokenizer is None:
        raise InputError(
            "this model came without a tokenizer, so text cannot be used: give token ids, or load the "
            "model with load_model(..., tokenizer=...)."
        )
    return tokenizer


def _padded(ids: list[list[int]]) -> Tensor:
    rows = [torch.tensor(row, device="cpu") for row in ids]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def _labels(task: Task, tokenizer: Tokenizer | None) -> Any:
    """Labels as a tensor where they are rectangular, else as a list of rows."""
    labels = task.labels
    if isinstance(labels, Tensor):
        return labels
    rows = [_label(row, tokenizer) for row in labels]
    shapes = {tuple(torch.as_tensor(row).shape) for row in rows}
    return torch.as_tensor(rows) if len(shapes) == 1 else [torch.as_tensor(row) for row in rows]


def _label(row: Any, tokenizer: Tokenizer | None) -> Any:
    if isinstance(row, str):
        return _need(tokenizer).token(row)
    if isinstance(row, (list, tuple)):
        return [_label(item, tokenizer) for item in row]
    return row
