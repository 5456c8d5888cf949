"""A batch set up for circuits: its clean and corrupted runs, which serve any number of circuits.

Cost per batch: one clean and one corrupted forward pass.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gradpath.ablation import CORRUPTED, Ablation, ablation_of, all_positions
from gradpath.model.transformer import Past, PositionInfo, Run, Transformer
from gradpath.sweep import Limits, own_settings
from gradpath.tasks.metrics import Metric, metric_of
from gradpath.tasks.task import Pairs, Task, encode

# Bytes of prepared batches that are kept; others are prepared again.
ROOM = 3 * 2**27


class CorruptedLayer(NamedTuple):
    """What circuits read of a layer of the corrupted run.

    Keys and values may be those of a group of heads that shares them.
    """

    attn_in: Tensor  # (row, d_model)
    q: Tensor  # (row, head, d_qkv)
    k: Tensor  # (batch, pos, head, d_qkv): later rows read them at all positions
    v: Tensor
    written: Tensor  # (row, head, d_head)
    mlp_in: Tensor  # (row, d_model)
    mlp_out: Tensor  # (row, d_model)


@dataclass(frozen=True)
class Prepared:
    """One batch, set up for any number of circuits: its corrupted run, and what ``logits`` reads at both ends.

    A *row* is a position at which an example can differ from its corrupted run: from its first differing token to its
    last token, example after example. The other positions of the suffix are padding, or before that token. Only
    attention needs them.
    """

    model: Transformer
    batch: Pairs
    cells: Int[Tensor, " row"]  # the place of each row among all positions of the suffix, (batch pos)
    n_positions: int  # of the suffix
    layers: list[CorruptedLayer]  # or those of the ablation
    ablated: bool  # whether its nodes write something else than what follows from their inputs
    prefix: list[Past]  # per layer, or empty if the prompts differ from the first token on
    input: Float[Tensor, "row d_model"]  # x - x' of the node input
    clean_final: Float[Tensor, "batch d_model"]  # what logits reads at the last position of the clean prompts
    corrupted_final: Float[Tensor, "batch d_model"]

    @classmethod
    def of(
        cls,
        model: Transformer,
        batch: Pairs,
        corrupted: Run,
        *,
        ablated: bool,
        prefix: list[Past],
        input: Float[Tensor, "batch pos d_model"],  # noqa: A002  (the node)
        clean_final: Tensor,
    ) -> Prepared:
        """Take from a run what circuits read, once where heads share keys and values."""
        a, start, n_positions = model.arch, batch.start, input.shape[1]
        position = torch.arange(start, start + n_positions, device=batch.last.device)
        is_row = (batch.first[:, None] <= position) & (position <= batch.last[:, None])
        cells = is_row.flatten().nonzero()[:, 0]
        every = bool(is_row.all())

        def rows(x: Tensor) -> Tensor:
            x = x.flatten(0, 1)
            return x if every else x.index_select(0, cells)

        def once(x: Tensor, axis: int, n_own: int) -> Tensor:
            first_of_group = torch.arange(0, a.n_heads, a.n_heads // n_own, device=x.device)
            return x if n_own == a.n_heads else x.index_select(axis, first_of_group)

        layers = []
        for x in corrupted.layers:
            q, k, v = (once(part, 2, n_own) for part, n_own in zip((x.q, x.k, x.v), a.qkv_blocks, strict=True))
            at_rows = [rows(part) for part in (x.attn_in, q, x.written, x.mlp_in, x.mlp_out)]
            layers.append(CorruptedLayer(at_rows[0], at_rows[1], k, v, *at_rows[2:]))
        n_keys = a.n_kv_heads if a.d_latent is None else a.n_heads  # what is made of a latent differs between heads
        example = torch.arange(len(batch), device=batch.last.device)
        return cls(
            model=model,
            batch=batch,
            cells=cells,
            n_positions=n_positions,
            layers=layers,
            ablated=ablated,
            prefix=[Past(once(past.keys, 1, n_keys), once(past.values, 1, n_keys)) for past in prefix],
            input=rows(input),
            clean_final=clean_final,
            corrupted_final=corrupted.final_in[example, batch.last - start],
        )

    def ends(self, metric: Metric) -> Tensor:
        """The metric of the examples on the clean prompts, and on the corrupted ones or ablated, (2, batch)."""
        finals = torch.stack([self.clean_final, self.corrupted_final])
        return metric_of(self.model, metric, finals, self.batch.labels)

    @property
    def n_bytes(self) -> int:
        """The memory that the runs take."""
        return sum(x.nbytes for parts in (*self.layers, *self.prefix) for x in parts)

    @cached_property
    def positions(self) -> PositionInfo:
        """Masks and rotations of the suffix."""
        return self.model.position_info(self.batch.start, self.n_positions)

    @cached_property
    def sizes(self) -> Int[Tensor, " batch"]:
        """The number of rows of each example."""
        return self.batch.last - self.batch.first + 1

    @cached_property
    def last(self) -> Int[Tensor, " batch"]:
        """The row of each example's last token."""
        return self.sizes.cumsum(0) - 1


def prepare(model: Transformer, batch: Pairs, ablation: Ablation | None = None) -> Prepared:
    """Run the clean and the corrupted prompts of a batch; or take an ablation for the corrupted run."""
    start = batch.start
    clean, corrupted = model.embed(batch.clean), model.embed(batch.corrupted)
    past = model.prefix(clean[:, :start]) if start else []
    row, at = torch.arange(len(batch), device=model.device), batch.last - start
    clean_final = model.final_in(clean[:, start:], start=start, past=past)[row, at]
    if ablation is None:
        run = model.run(corrupted[:, start:], start=start, past=past)
    else:
        corrupted, run = ablation.run(model, *batch.clean.shape)
    change = (clean - corrupted)[:, start:]
    return Prepared.of(
        model, batch, run, ablated=ablation is not None, prefix=past, input=change, clean_final=clean_final
    )


class PreparedBatch(NamedTuple):
    """A batch that is ready for circuits, and the metric of its examples at both ends, (batch,)."""

    prepared: Prepared
    clean: Tensor
    corrupted: Tensor


class PreparedBatches:
    """A task's examples for one model: their tokens, the ablation, and batches that are prepared for circuits.

    Make one for a task, which tokenises it, and pass it to all that runs its examples. ``mean_over`` is the task whose
    clean prompts the means are taken over, or its prepared examples; by default ``task``. ``room`` is the memory in
    bytes of prepared batches that are kept; beyond it they are prepared again.
    """

    def __init__(
        self,
        model: Transformer,
        task: Task,
        ablation: str = CORRUPTED,
        limits: Limits = Limits(),
        *,
        mean_over: Task | PreparedBatches | None = None,
        room: int = ROOM,
    ) -> None:
        self.model, self.task, self.ablation_name, self.limits, self.room = model, task, ablation, limits, room
        self.encoded = encode(task, model.tokenizer)
        self.ablation: Ablation | None
        if isinstance(mean_over, PreparedBatches):
            self.ablation = mean_over.ablation
        else:
            with own_settings(model):
                self.ablation = ablation_of(ablation, model, mean_over or task, limits)
        self.pairs = all_positions(self.encoded, self.ablation)
        self.batches: list[Pairs] | None = None  # all examples, in the batches in which they were prepared
        self._prepared = dict[tuple[int, ...], PreparedBatch]()

    def take(self, rows: Sequence[int]) -> PreparedBatches:
        """Some of the examples, with the same tokens and ablation; none of their batches is prepared yet."""
        part, index = copy(self), torch.tensor(rows, dtype=torch.long, device="cpu")
        part.task = self.task.take(rows)
        part.encoded = replace(self.encoded.rows(index), index=torch.arange(len(rows), device="cpu"))
        part.pairs = all_positions(part.encoded, self.ablation)
        part.batches, part._prepared, part.room = None, {}, 0
        return part

    @torch.no_grad()
    def prepare(self, batch: Pairs) -> PreparedBatch:
        """Prepare a batch, or return it as it was prepared; a batch is known by the numbers of its examples."""
        key = tuple(batch.index.tolist())
        if key in self._prepared:
            return self._prepared[key]
        prepared = prepare(self.model, batch.to(self.model.device), self.ablation)
        prepared_batch = PreparedBatch(prepared, *prepared.ends(self.task.metric))
        if (n_bytes := prepared_batch.prepared.n_bytes) <= self.room:
            self._prepared[key] = prepared_batch
            self.room -= n_bytes
        return prepared_batch

    def keep_only(self, examples: Collection[int]) -> None:
        """Forget the batches with other examples than these."""
        inside = set(examples)
        for key in [key for key in self._prepared if not inside.issuperset(key)]:
            self.room += self._prepared.pop(key).prepared.n_bytes
