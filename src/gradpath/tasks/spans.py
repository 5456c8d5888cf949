"""The spans of prompts: a name for the place of every token.

Edges can be split by them. By ``token``, every position is a span, and all prompts need the same length. By ``span``, a
prompt of any length has four: the part before the first difference of the pair, the changed part (from the first
differing token to the last), the part between that and the end, and the end, where the answer is read. A task gives the
changed part its name, such as "subject". Data with named spans has those instead, and "rest".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from gradpath import defaults
from gradpath.errors import InputError, check_choice
from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks.task import Pairs, Spans, Task

REST = "rest"
PADDING = -1


@dataclass(frozen=True)
class PositionSpans:
    """The names of spans, and the index of the span of every position of every example."""

    names: tuple[str, ...]
    at: Int[Tensor, "example pos"]

    def reach(self) -> Bool[Tensor, "from to"]:
        """Whether any token of a span is at or before any token of another span, in any example."""
        reach = torch.eye(len(self.names), dtype=torch.bool, device="cpu")
        for row in torch.unique(self.at, dim=0):
            positions = [(row == i).nonzero() for i in range(len(self.names))]
            for i, a in enumerate(positions):
                for j, b in enumerate(positions):
                    reach[i, j] |= bool(len(a) and len(b) and a.min() <= b.max())
        return reach

    def under(self, names: Sequence[str]) -> PositionSpans:
        """The same positions with the names of a circuit, in their order."""
        for name in self.names:
            if name not in names:
                raise InputError(
                    f"the circuit's positions are {', '.join(names)}, and these prompts have {name!r} as "
                    "well. Use prompts of the template on which the circuit was found."
                )
        number = torch.tensor([*(names.index(name) for name in self.names), PADDING], device="cpu")
        return PositionSpans(tuple(names), number[self.at])


def spans_of(task: Task, pairs: Pairs, tokenizer: Tokenizer | None, by: str) -> PositionSpans:
    """Find the span of every position of a task's prompts.

    Args:
        task: The task.
        pairs: Its prompts as token ids.
        tokenizer: The tokenizer of the model, for spans that are named in text.
        by: "token" or "span".

    Returns:
        The names of the spans, and the span of each position, -1 for padding.
    """
    check_choice("positions", by, defaults.POSITIONS)
    if by == "token":
        return _by_token(pairs)
    if task.spans is not None:
        return _by_name(task, task.spans, pairs, tokenizer)
    return _by_part(pairs, str(task.about.get("changed", "changed")))


def _by_token(pairs: Pairs) -> PositionSpans:
    shortest, longest = int(pairs.last.min()) + 1, int(pairs.last.max()) + 1
    if shortest != longest:
        raise InputError(
            f"to split edges by token, all prompts need the same number of tokens: these have {shortest} to "
            f"{longest}. Split them by span, or take prompts of one template."
        )
    at = torch.arange(longest, device="cpu").repeat(len(pairs), 1)
    return PositionSpans(tuple(f"t{i}" for i in range(longest)), at)


def _by_part(pairs: Pairs, changed: str) -> PositionSpans:
    position = torch.arange(pairs.clean.shape[1], device="cpu")
    last_changed = torch.where(pairs.clean != pairs.corrupted, position, -1).amax(1, keepdim=True)
    at = torch.where(position < pairs.first[:, None], 0, torch.where(position <= last_changed, 1, 2))
    at[position == pairs.last[:, None]] = 3
    at[position > pairs.last[:, None]] = PADDING
    return PositionSpans(("before", changed, "between", "end"), at)


def _by_name(task: Task, spans: Sequence[Spans], pairs: Pairs, tokenizer: Tokenizer | None) -> PositionSpans:
    if tokenizer is None or isinstance(task.clean, Tensor):
        raise InputError("spans are named in text, and these prompts are token ids. Give them as text.")
    names = (*dict.fromkeys(name for named in spans for name in named), REST)
    at = torch.full(pairs.clean.shape, PADDING, device="cpu")
    for i, (text, named) in enumerate(zip(task.clean, spans, strict=True)):
        for position, (begin, end) in enumerate(tokenizer.pieces(text)):
            inside = [name for name, (a, b) in named.items() if begin < b and end > a]
            at[i, position] = names.index(inside[0] if inside else REST)
    return PositionSpans(names, at)
