"""The parts of prompts: a name for the place of every token.

A prompt is divided into parts, so that the attention of a query over them adds up to 1. Data with named spans has
those, and "rest". Otherwise a prompt has four: the part before the first difference of the pair, the changed part (from
the first differing token to the last), the part between that and the end, and the end, where the answer is read. A task
gives the changed part its name, such as "subject". Positions without a name (before, between, rest) are split further:

    first token      on which many heads rest
    right answer     tokens that are the example's correct answer: in IOI the "indirect object"
    wrong answer     tokens that are its wrong answer: in IOI the "subject", where it is first mentioned
    after X          the token after such a mention, which a previous-token head marks for an induction head
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Int
from torch import Tensor

from gradpath.errors import InputError
from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks.builtin import TASKS
from gradpath.tasks.metrics import METRICS
from gradpath.tasks.task import Pairs, Spans, Task

FIRST, AFTER, END, REST = "first token", "after ", "end", "rest"
UNNAMED = ("before", "between", REST)
SIDES = ("right answer", "wrong answer")
PADDING = -1


@dataclass(frozen=True)
class Parts:
    """The names of parts, and the part of every position of every example, -1 for padding."""

    names: tuple[str, ...]
    at: Int[Tensor, "example pos"]


def answers_of(task: Task, pairs: Pairs) -> Int[Tensor, "example side answer"] | None:
    """The correct and the wrong answers of each example, padded with -1; None for labels of another kind."""
    labels = pairs.labels
    if task.metric not in METRICS.values() or not isinstance(labels, Tensor) or labels.is_floating_point():
        return None
    if labels.ndim not in (2, 3) or labels.shape[1] != len(SIDES):
        return None
    return labels.cpu().reshape(len(labels), len(SIDES), -1)


def names_of_answers(task: Task) -> tuple[str, str]:
    """The names of the correct and the wrong answer: in IOI the indirect object and the subject."""
    known = TASKS.get(task.name)
    if known is None or known.answers is None or task.facts.get("changed") != known.changed:
        return SIDES
    return known.answers


def parts_of(task: Task, pairs: Pairs, tokenizer: Tokenizer | None) -> Parts:
    """The parts that occur in a task's prompts."""
    if task.spans is None:
        spans = _by_difference(pairs, str(task.facts.get("changed", "changed")))
    else:
        spans = _by_name(task, task.spans, pairs, tokenizer)
    names, at = list(spans.names), spans.at.clone()
    unnamed = torch.tensor([*(name in UNNAMED for name in names), False], device="cpu")

    def name(where: Tensor, part: str) -> None:
        """Name the positions that have no name yet."""
        if part not in names:
            names.append(part)
        at[where & unnamed[torch.where(at < len(spans.names), at, PADDING)]] = names.index(part)

    position = torch.arange(at.shape[1], device="cpu")
    name(position == pairs.last[:, None], END)
    answers = answers_of(task, pairs)
    if answers is not None and answers.shape[-1] == 1:  # one of many answers may occur anywhere by chance
        for side, part in enumerate(names_of_answers(task)):
            name((pairs.clean[:, :, None] == answers[:, None, side]).any(-1), part)
        for part in names_of_answers(task):
            mention = at == names.index(part)
            name(F.pad(mention[:, :-1], (1, 0)), f"{AFTER}{part}")
    name(position == 0, FIRST)
    return _that_occur(Parts(tuple(names), at))


def _that_occur(labels: Parts) -> Parts:
    """Drop names that no position has, and order the others by their mean position."""
    position = torch.arange(labels.at.shape[1], device="cpu").expand_as(labels.at).double()
    order = [i for i in range(len(labels.names)) if bool((labels.at == i).any())]
    order.sort(key=lambda i: float(position[labels.at == i].mean()))
    number = torch.full((len(labels.names) + 1,), PADDING, device="cpu")
    number[order] = torch.arange(len(order), device="cpu")
    return Parts(tuple(labels.names[i] for i in order), number[labels.at])


def _by_difference(pairs: Pairs, changed: str) -> Parts:
    position = torch.arange(pairs.clean.shape[1], device="cpu")
    last_changed = torch.where(pairs.clean != pairs.corrupted, position, -1).amax(1, keepdim=True)
    at = torch.where(position < pairs.first[:, None], 0, torch.where(position <= last_changed, 1, 2))
    at[position == pairs.last[:, None]] = 3
    at[position > pairs.last[:, None]] = PADDING
    return Parts(("before", changed, "between", END), at)


def _by_name(task: Task, spans: Sequence[Spans], pairs: Pairs, tokenizer: Tokenizer | None) -> Parts:
    if tokenizer is None or isinstance(task.clean, Tensor):
        raise InputError("spans are named in text, and these prompts are token ids. Give them as text.")
    names = (*dict.fromkeys(name for named in spans for name in named), REST)
    at = torch.full(pairs.clean.shape, PADDING, device="cpu")
    for i, (text, named) in enumerate(zip(task.clean, spans, strict=True)):
        for position, (begin, end) in enumerate(tokenizer.pieces(text)):
            inside = [name for name, (a, b) in named.items() if begin < b and end > a]
            at[i, position] = names.index(inside[0] if inside else REST)
    return Parts(names, at)
