"""A batch set up for circuits: its clean and corrupted runs, which serve any number of circuits.

Cost per batch: one clean and one corrupted forward pass.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple
from weakref import WeakValueDictionary

import torch
from jaxtyping import Bool
from torch import Tensor

from gradpath.ablation import Ablation, ablation_of
from gradpath.limits import Limits
from gradpath.model.prompt_cache import keep_final, known_final, prefix_of
from gradpath.model.transformer import LayerRun, Past, PositionInfo, Run, Transformer
from gradpath.tasks.metrics import Metric, metric_of
from gradpath.tasks.task import Pairs, Task

# Some positions of a batch, as an index of (batch, pos).
Positions = tuple[slice | Tensor, slice | Tensor]
# Bytes of set-ups that are kept; others are made again.
ROOM = 3 * 2**27


@dataclass(frozen=True)
class Prepared:
    """One batch, set up for any number of circuits: its corrupted run, and what ``logits`` reads at both ends."""

    model: Transformer
    batch: Pairs
    corrupted: Run  # or that of the ablation
    ablated: bool  # whether its nodes write something else than what follows from their inputs
    prefix: list[Past]  # per layer, or empty if the prompts differ from the first token on
    input: Tensor  # (batch, pos, d_model): x - x' of the node input
    clean_final: Tensor  # (batch, d_model): what logits reads at the last position of the clean prompts

    @property
    def spans(self) -> Tensor | None:
        """The span of each position of the suffix, (batch, pos), where positions have names."""
        return None if self.batch.spans is None else self.batch.spans[:, self.batch.start :]

    def for_circuits(self) -> Prepared:
        """The same without what no circuit reads: parts of the corrupted run, and copies of shared keys and values."""
        none, a = self.input.new_empty(0), self.model.arch

        def once(x: Tensor, axis: int, n_own: int) -> Tensor:
            first_of_group = torch.arange(0, a.n_heads, a.n_heads // n_own, device=x.device)
            return x if n_own == a.n_heads else x.index_select(axis, first_of_group)

        layers = []
        for x in self.layers:
            q, k, v = (once(part, 2, n_own) for part, n_own in zip((x.q, x.k, x.v), a.qkv_blocks, strict=True))
            layers.append(replace(x, q=q, k=k, v=v, y=none, rstd=none, z=none, past=Past(none, none)))
        n_keys = a.n_kv_heads if a.d_latent is None else a.n_heads  # what is made of a latent differs between heads
        prefix = [Past(once(past.keys, 1, n_keys), once(past.values, 1, n_keys)) for past in self.prefix]
        return replace(self, corrupted=replace(self.corrupted, layers=layers), prefix=prefix)

    def ends(self, metric: Metric) -> Tensor:
        """The metric of the examples on the clean prompts, and on the corrupted ones or ablated, (2, batch)."""
        finals = torch.stack([self.clean_final, self.corrupted.final_in[self.last]])
        return metric_of(self.model, metric, finals, self.batch.labels)

    @property
    def n_bytes(self) -> int:
        """The memory that the runs take."""
        parts = [x for layer in self.layers for x in vars(layer).values() if isinstance(x, Tensor)]
        return sum(x.nbytes for x in (*parts, *(x for past in self.prefix for x in past)))

    @property
    def layers(self) -> list[LayerRun]:
        """The layers of the corrupted run."""
        return self.corrupted.layers

    @cached_property
    def positions(self) -> PositionInfo:
        """Masks and rotations of the suffix."""
        return self.model.position_info(self.batch.start, self.input.shape[1])

    @property
    def last(self) -> tuple[Tensor, Tensor]:
        """The index of each example's last token in the suffix."""
        at = self.batch.last - self.batch.start
        return torch.arange(len(at), device=at.device), at

    @cached_property
    def differs(self) -> Bool[Tensor, "batch pos"]:
        """Whether an example can differ from its corrupted run at a position of the suffix.

        It can from its first differing token to its last token; the rest is padding, or before that token.
        """
        pos = torch.arange(self.batch.start, self.batch.start + self.input.shape[1], device=self.batch.last.device)
        return (self.batch.first[:, None] <= pos) & (pos <= self.batch.last[:, None])

    @cached_property
    def differing(self) -> Positions:
        """The positions where an example can differ from its corrupted run."""
        if bool(self.differs.all()):
            return slice(None), slice(None)
        row, at = self.differs.nonzero().unbind(1)
        return row, at


def prepare(model: Transformer, batch: Pairs, ablation: Ablation | None = None) -> Prepared:
    """Run the clean and the corrupted prompts of a batch; or take an ablation for the corrupted run."""
    start = batch.start
    clean, corrupted = model.embed(batch.clean), model.embed(batch.corrupted)
    past = prefix_of(model, batch.clean, batch.last, start)
    clean_final = known_final(model, batch.clean, batch.last)
    if clean_final is None:
        row, at = torch.arange(len(batch), device=model.device), batch.last - start
        clean_final = model.final_in(clean[:, start:], start=start, past=past)[row, at]
        keep_final(model, batch.clean, batch.last, clean_final)
    if ablation is None:
        run = model.run(corrupted[:, start:], start=start, past=past)
    else:
        corrupted, run = ablation.run(model, *batch.clean.shape)
    return Prepared(
        model=model,
        batch=batch,
        corrupted=run,
        ablated=ablation is not None,
        prefix=past,
        input=(clean - corrupted)[:, start:],
        clean_final=clean_final,
    )


class SetUp(NamedTuple):
    """A batch that is ready for circuits, and the metric of its examples at both ends, (batch,)."""

    prepared: Prepared
    clean: Tensor
    corrupted: Tensor


class SetUps:
    """The set-ups of batches. They are kept for further circuits as long as there is room for them."""

    def __init__(self, model: Transformer, metric: Metric, ablation: Ablation | None, room: int = ROOM) -> None:
        """``room`` is the memory in bytes that may be kept."""
        self.model, self.metric, self.ablation, self.room = model, metric, ablation, room
        self.task: Task | None = None
        self.batches: list[Pairs] | None = None  # all examples, in the batches in which they were set up
        self._set_ups = dict[tuple[int, ...], SetUp]()

    @classmethod
    def of(cls, model: Transformer, task: Task, ablation: str, limits: Limits) -> SetUps:
        """The set-ups of a task's examples, which all share that ask for them while someone holds them."""
        key = id(model), id(task), ablation
        set_ups = _SHARED.get(key)
        if set_ups is None:
            set_ups = _SHARED[key] = cls(model, task.metric, ablation_of(ablation, model, task, limits))
            set_ups.task = task  # so that no other task gets its id
        return set_ups

    @torch.no_grad()
    def prepare(self, batch: Pairs) -> SetUp:
        """The set-up of a batch; a batch is known by the numbers of its examples."""
        key = tuple(batch.index.tolist())
        if key in self._set_ups:
            return self._set_ups[key]
        prepared = prepare(self.model, batch.to(self.model.device), self.ablation)
        set_up = SetUp(prepared.for_circuits(), *prepared.ends(self.metric))
        if (n_bytes := set_up.prepared.n_bytes) <= self.room:
            self._set_ups[key] = set_up
            self.room -= n_bytes
        return set_up

    def keep_only(self, examples: Collection[int]) -> None:
        """Forget the batches with other examples than these."""
        inside = set(examples)
        for key in [key for key in self._set_ups if not inside.issuperset(key)]:
            self.room += self._set_ups.pop(key).prepared.n_bytes


_SHARED = WeakValueDictionary[tuple[int, int, str], SetUps]()
