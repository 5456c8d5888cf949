"""Where in its prompt a token stands, so that edges can be told apart by it.

By ``token`` every position is on its own, which takes prompts of one length. By ``span`` a prompt is four
parts, whatever its length: what comes before the first difference of the pair, what is changed (from the
first differing token to the last), what stands between that and the end, and the end, where the answer is
read. A task calls the changed part by its name, such as "subject". Data with spans of its own has those
instead, and "rest".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from gradpath.errors import InputError, unknown
from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks.task import Pairs, Spans, Task

BY = ("span", "token")
REST = "rest"
PADDING = -1


@dataclass(frozen=True)
class Labels:
    """The names of spans, and which of them every position of every example is in."""

    names: tuple[str, ...]
    at: Int[Tensor, "example pos"]

    def reach(self) -> Bool[Tensor, "from to"]:
        """Which spans are seen from which: some token of one stands at or before some token of the other."""
        seen = torch.eye(len(self.names), dtype=torch.bool, device="cpu")
        for row in torch.unique(self.at, dim=0):
            places = [(row == i).nonzero() for i in range(len(self.names))]
            for i, a in enumerate(places):
                for j, b in enumerate(places):
                    seen[i, j] |= bool(len(a) and len(b) and a.min() <= b.max())
        return seen

    def under(self, names: Sequence[str]) -> Labels:
        """The same positions, under the names of a circuit, in its order."""
        for name in self.names:
            if name not in names:
                raise InputError(
                    f"the circuit's positions are {', '.join(names)}, and these prompts have {name!r} as "
                    "well. Use prompts of the template that it was found on."
                )
        number = torch.tensor([*(names.index(name) for name in self.names), PADDING], device="cpu")
        return Labels(tuple(names), number[self.at])


def labels_of(task: Task, pairs: Pairs, tokenizer: Tokenizer | None, by: str) -> Labels:
    """Every position of the task's prompts, by token or by span."""
    if by not in BY:
        raise unknown("way to split positions", by, BY)
    if by == "token":
        return _by_token(pairs)
    if task.spans is not None:
        return _by_name(task, task.spans, pairs, tokenizer)
    return _by_part(pairs, str(task.about.get("changed", "changed")))


def _by_token(pairs: Pairs) -> Labels:
    shortest, longest = int(pairs.last.min()) + 1, int(pairs.last.max()) + 1
    if shortest != longest:
        raise InputError(
            f"to split edges by token, all prompts need the same number of tokens: these have {shortest} to "
            f"{longest}. Split them by span, or take prompts of one template."
        )
    at = torch.arange(longest, device="cpu").expand(len(pairs), -1)
    return Labels(tuple(f"t{i}" for i in range(longest)), at.clone())


def _by_part(pairs: Pairs, changed: str) -> Labels:
    place = torch.arange(pairs.clean.shape[1], device="cpu")
    differs = pairs.clean != pairs.corrupted
    to = torch.where(differs, place, -1).amax(1, keepdim=True)
    at = torch.where(place < pairs.first[:, None], 0, torch.where(place <= to, 1, 2))
    at[place == pairs.last[:, None]] = 3
    at[place > pairs.last[:, None]] = PADDING
    return Labels(("before", changed, "between", "end"), at)


def _by_name(task: Task, spans: Sequence[Spans], pairs: Pairs, tokenizer: Tokenizer | None) -> Labels:
    if tokenizer is None or isinstance(task.clean, Tensor):
        raise InputError("spans are named in text, and these prompts are token ids. Give them as text.")
    names = (*dict.fromkeys(name for one in spans for name in one), REST)
    at = torch.full(pairs.clean.shape, PADDING, device="cpu")
    for i, (text, own) in enumerate(zip(task.clean, spans, strict=True)):
        pieces = tokenizer.pieces(text)
        for position, (begin, end) in enumerate(pieces):
            inside = [name for name, (a, b) in own.items() if begin < b and end > a]
            at[i, position] = names.index(inside[0] if inside else REST)
    return Labels(names, at)
