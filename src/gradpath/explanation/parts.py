"""The parts of a prompt that a head may attend to, by name, and the answers of a task.

A prompt is divided into parts, so that the attention of a query over them adds up to 1. Data with named spans has
those. Elsewhere the parts are those of ``labels_of``: before the first difference of the pair, the changed part,
between that and the end, and the end. Out of what has no name of its own (before, between, rest) come

    first token      on which many heads rest
    right answer     tokens that are the example's right answer: in IOI the "indirect object"
    wrong answer     tokens that are its wrong answer: in IOI the "subject", where it is first mentioned
    after X          the token behind such a mention, which a previous-token head marks for an induction head
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks.builtin import TASKS
from gradpath.tasks.metrics import METRICS
from gradpath.tasks.task import PADDING, REST, Labels, Pairs, Task, labels_of

FIRST, AFTER, END = "first token", "after ", "end"
UNNAMED = ("before", "between", REST)
SIDES = ("right answer", "wrong answer")


def answers_of(task: Task, pairs: Pairs) -> Int[Tensor, "example side answer"] | None:
    """The right and the wrong answers of each example, padded with -1; None for labels of another kind."""
    labels = pairs.labels
    if task.metric not in METRICS.values() or not isinstance(labels, Tensor) or labels.is_floating_point():
        return None
    if labels.ndim not in (2, 3) or labels.shape[1] != len(SIDES):
        return None
    return labels.cpu().reshape(len(labels), len(SIDES), -1)


def names_of_answers(task: Task) -> tuple[str, str]:
    """What the right and the wrong answer are called: in IOI the indirect object and the subject."""
    known = TASKS.get(task.name)
    if known is None or known.answers is None or task.about.get("changed") != known.changed:
        return SIDES
    return known.answers


def parts_of(task: Task, pairs: Pairs, tokenizer: Tokenizer | None) -> Labels:
    """Name the part of every position of a task's prompts.

    Args:
        task: The task.
        pairs: Its prompts as token ids.
        tokenizer: The model's tokenizer, for spans that are named in text.

    Returns:
        The names that occur, and the part of each position, -1 for padding.
    """
    spans = labels_of(task, pairs, tokenizer, "span")
    names, at = list(spans.names), spans.at.clone()
    unnamed = torch.tensor([*(name in UNNAMED for name in names), False], device="cpu")

    def name(where: Tensor, part: str) -> None:
        """Give positions that have no name of their own one."""
        if part not in names:
            names.append(part)
        at[where & unnamed[torch.where(at < len(spans.names), at, PADDING)]] = names.index(part)

    position = torch.arange(at.shape[1], device="cpu")
    name(position == pairs.last[:, None], END)
    answers = answers_of(task, pairs)
    if answers is not None and answers.shape[-1] == 1:  # one of many answers may stand anywhere by chance
        said = [(pairs.clean[:, :, None] == answers[:, None, side]).any(-1) for side in range(len(SIDES))]
        for where, part in zip(said, names_of_answers(task), strict=True):
            name(where, part)
        for part in names_of_answers(task):
            mention = at == names.index(part)
            name(torch.nn.functional.pad(mention[:, :-1], (1, 0)), f"{AFTER}{part}")
    name(position == 0, FIRST)
    return _that_occur(Labels(tuple(names), at), pairs)


def _that_occur(labels: Labels, pairs: Pairs) -> Labels:
    """The same without names that no position has, in the order in which they begin in the prompts."""
    where = torch.arange(labels.at.shape[1], device="cpu").expand_as(labels.at).double()
    seen = [i for i in range(len(labels.names)) if bool((labels.at == i).any())]
    seen.sort(key=lambda i: float(where[labels.at == i].mean()))
    number = torch.full((len(labels.names) + 1,), PADDING, device="cpu")
    number[seen] = torch.arange(len(seen), device="cpu")
    return Labels(tuple(labels.names[i] for i in seen), number[labels.at])
