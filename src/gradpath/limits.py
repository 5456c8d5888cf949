"""How much may be computed at once: batches and points that fit into memory, and are no larger than they have to be.

Beyond a few hundred rows (one for each position of each example) a product takes the same time per row, and memory
grows for nothing. The estimate counts what autograd keeps of one point, or of a stack of points, and the sums that
outlive it (``_Sizes``). It is meant to err on the high side.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from gradpath.errors import UsageError, whole_number
from gradpath.model.architecture import fields_of
from gradpath.model.transformer import Transformer
from gradpath.runtime import distributed
from gradpath.runtime.machine import free_memory
from gradpath.tasks.task import Pairs

# Points of a stack that are run at once, and points that are summed before a contraction, at most: what bounds
# memory when a path is long.
RUN_AT_ONCE = 4
SUM_AT_ONCE = 8
# Rows of a batch, by default, of circuits, of gradients at one point and at stacked ones: from 100 on a CPU's time per
# row is within a few percent of its best, and memory grows with every further one. Other devices need more.
ROWS = 120
GRADIENT_ROWS = 100
STACKED_ROWS = 85
ACCELERATOR = 16
# What one more batch costs, in rows: of circuits, and of gradients.
BATCH = 60
GRADIENT_BATCH = 20
# What a position costs that is in a batch only because of other examples, in rows. Circuits need it for attention
# alone, the runs before them as any other.
PADDING = 0.5
# Forward passes over one example that are made unless the user is ``sure``: hours on a CPU, with a small model.
MOST_PASSES = 100_000
# The most bytes that the expanded writes of one chunk of rows may take.
CHUNK = 1 << 27

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}


@dataclass(frozen=True)
class AtOnce:
    """How much of an attribution is computed at once."""

    examples: int  # in a batch, if batches are cut evenly
    points: int = 1  # of a stack that are run together
    batches: list[Pairs] | None = None  # all examples, cut where that leaves little padding; None to cut evenly

    @property
    def largest(self) -> int:
        """The number of examples in the largest batch."""
        return self.examples if self.batches is None else max(map(len, self.batches))


@dataclass(frozen=True)
class Limits:
    """How much may be computed at once.

    Args:
        batch_size: The largest number of examples in a batch; by default as many as it takes to use the processor
            well (``ROWS``), and as fit into memory.
        memory: A budget in bytes, weights included; by default the weights and half of what the machine has free.
    """

    batch_size: int | None = None
    memory: int | None = None

    def batch(self, model: Transformer, pairs: Pairs) -> int:
        """The number of examples in a batch of runs without autograd graphs, such as those of circuits."""
        return self._largest(model, len(pairs), _extents(pairs), ROWS, False, _Sizes(model).circuits, 2 * CHUNK)

    def tight_batches(self, model: Transformer, pairs: Pairs) -> list[Pairs]:
        """All pairs in batches for circuits, cut where that leaves little padding."""
        return pairs.tight_batches(rows_at_once(model, ROWS), self.fitting(model, pairs), BATCH, PADDING)

    def fitting(self, model: Transformer, pairs: Pairs) -> int:
        """As ``batch``, if the number of rows is bounded elsewhere."""
        return self._largest(model, len(pairs), _extents(pairs), None, False, _Sizes(model).circuits, 2 * CHUNK)

    def attribution(
        self, model: Transformer, pairs: Pairs, *, points: int = 1, whole: bool = False, results: int = 1
    ) -> AtOnce:
        """How many examples, and points of a path, are attributed at once.

        Args:
            model: The model to run.
            pairs: The examples.
            points: The number of points of the path.
            whole: Whether the path moves positions before the first difference, too.
            results: How many matrices of scores are summed at the same time.
        """
        # The scores (once in float64, twice in float32) and one chunk of the contraction.
        scores = 16 * results * model.graph.n_pairs + 2 * CHUNK

        def needed(extent: _Extent, at_once: int = 1) -> int:
            return _Sizes(model).attribution(extent, points, at_once, whole)

        extents, batches = _extents(pairs), None
        rows = GRADIENT_ROWS if points == 1 or whole else STACKED_ROWS
        examples = self._largest(model, len(pairs), extents, rows, whole, needed, scores)
        extent = extents(examples)
        if self.batch_size is None and not whole and model.device.type == "cpu":
            fitting = self._largest(model, len(pairs), extents, None, whole, needed, scores)
            batches = pairs.tight_batches(rows, fitting, GRADIENT_BATCH)
            extent = max(map(_extent, batches), key=needed)
        most = min(RUN_AT_ONCE, points, max(1, 2 * rows_at_once(model, GRADIENT_ROWS) // extent.rows(whole)))
        left = None if (budget := self._budget(model)) is None else budget - _bytes_of_weights(model) - scores
        fits = (n for n in range(most, 1, -1) if left is None or needed(extent, n) <= left)
        return AtOnce(examples, next(fits, 1), batches)

    def _largest(
        self,
        model: Transformer,
        most: int,
        extents: Callable[[int], _Extent],
        rows: int | None,
        whole: bool,
        needed: Callable[[_Extent], int],
        results: int,
    ) -> int:
        """The most examples in a batch of at most that many rows, if any, whose estimate stays within the budget."""
        if self.batch_size is not None:
            most = min(whole_number("the batch size", self.batch_size), most)
            if self.memory is None:
                return most
        elif rows is not None:
            most_rows = rows_at_once(model, rows)
            most = max(1, _last_that(lambda n: extents(n).rows(whole) <= most_rows, most))
        if (budget := self._budget(model)) is None:
            return most
        fixed = _bytes_of_weights(model) + results
        fits = _last_that(lambda n: fixed + needed(extents(n)) <= budget, most)
        if not fits and self.memory is not None:
            raise UsageError(
                f"a memory budget of {_size(self.memory)} is too small for {model.name or 'this model'}: it "
                f"needs about {_size(fixed + needed(extents(1)))} to run one example at a time. Allow more, or "
                "use --dtype bfloat16."
            )
        return max(1, fits)

    def _budget(self, model: Transformer) -> int | None:
        """The budget in bytes. The default is the same on all ranks, and None where it is not known."""
        if self.memory is not None:
            return self.memory
        free = free_memory() if model.device.type == "cpu" else _free_on(model.device)
        if free is None or distributed.world() > 1:
            return None
        return _bytes_of_weights(model) + free // 2


@dataclass(frozen=True)
class _Extent:
    """The largest batch of some size: its examples, and their positions with and without the shared prefix."""

    examples: int
    length: int
    suffix: int

    def rows(self, whole: bool = False) -> int:
        return self.examples * (self.length if whole else self.suffix)


def _extent(batch: Pairs) -> _Extent:
    length = int(batch.last.max()) + 1
    return _Extent(len(batch), length, length - int(batch.first.min()))


def _extents(pairs: Pairs) -> Callable[[int], _Extent]:
    """The largest batch for a number of examples, as a function of that number."""
    last, first = (getattr(pairs.in_order(), name).cpu() for name in ("last", "first"))

    def of(size: int) -> _Extent:
        padding = (0, -len(last) % size)
        ends = F.pad(last, padding, value=-1).view(-1, size).amax(1) + 1
        starts = F.pad(first, padding, value=int(last.max()) + 1).view(-1, size).amin(1)
        return _Extent(size, int(ends.max()), int((ends - starts).max()))

    return of


def _last_that(holds: Callable[[int], bool], most: int) -> int:
    """The largest number up to ``most`` for which something holds that holds for smaller ones, or 0."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def rows_at_once(model: Transformer, rows: int) -> int:
    """The rows of a batch on the model's device, where a CPU takes so many."""
    return rows if model.device.type == "cpu" else ACCELERATOR * rows


def _free_on(device: torch.device) -> int | None:
    """Bytes that are free on an accelerator, if PyTorch can tell."""
    info = getattr(torch.get_device_module(device), "mem_get_info", None)
    return None if info is None else int(info(device)[0])


class _Sizes:
    """Estimates of what is held at once, in bytes, from the sizes of a model's tensors."""

    def __init__(self, model: Transformer) -> None:
        a, layer = model.arch, max(model.layers, key=lambda layer: layer.d_hidden)
        self.layers, self.sources, self.vocab = a.n_layers, model.graph.n_sources, len(model.unembedding)
        self.model, self.heads, self.qkv = a.d_model, a.n_heads * a.d_head, 3 * a.n_heads * a.d_qkv
        self.number = model.embedding.element_size()
        self.wide = max(4, self.number)  # sums are kept in float32 at least
        # Numbers per row that autograd keeps of one layer: four residual streams or outputs, the projection, queries,
        # keys and values as attention reads them and what it gathers, the hidden layer before and after activation.
        self.layer = 4 * a.d_model + len(layer.w_qkv) + 5 * self.heads + 3 * layer.d_hidden // 2
        if (latent := layer.latent) is not None:  # each head has copies of the latents; their norm is in float32
            ranks = 2 * latent.v_up.shape[2] + (0 if latent.q_up is None else latent.q_up.shape[2])
            self.layer += (2 if latent.q_up is None else 3) * a.n_heads * a.d_qkv
            self.layer += 0 if self.number >= 4 else 4 // self.number * a.n_heads * ranks
        if layer.experts is not None:  # a token's input and its output, twice, for each expert that it uses
            self.layer += 3 * layer.experts.per_token * a.d_model

    def attribution(self, extent: _Extent, points: int, at_once: int, whole: bool) -> int:
        """One graph, the gradients at the targets, their sums over points, and the writes at both ends."""
        prefix = extent.examples * (extent.length - extent.suffix)
        rows = at_once * extent.rows(whole)
        reads = self.qkv + self.model
        graph = rows * (self.layer + reads) + prefix * 3 * self.heads * (1 if whole else 1 + 2 * at_once)
        sums = extent.rows() * (reads + min(points, SUM_AT_ONCE) * self.model + 3 * (self.heads + self.model))
        logits = 4 * extent.examples * at_once * self.vocab
        return self.number * (self.layers * graph + logits) + self.wide * self.layers * sums

    def circuits(self, extent: _Extent) -> int:
        """The corrupted run, and what live nodes write, with a gradient and a product of the same size."""
        prefix = extent.examples * (extent.length - extent.suffix)
        run = extent.rows() * (self.layer - self.heads) + prefix * 3 * self.heads
        nodes = extent.rows() * 3 * self.sources * self.model
        return self.number * (self.layers * run + nodes + 12 * extent.examples * self.vocab)


def check_affordable(what: str, passes: float, fewer: str, *, sure: bool) -> None:
    """Refuse what would take very long, unless the user is sure; ``fewer`` says what would make it shorter."""
    if passes > MOST_PASSES and not sure:
        raise UsageError(
            f"{what} takes about {passes:,.0f} forward passes of one example: {fewer}, or confirm with sure=true."
        )


def parse_bytes(text: str) -> int:
    """'600MB', '16GiB' or '2e9' as a number of bytes.

    >>> parse_bytes("1.5 GB")
    1500000000
    """
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([KMG]I?|)B?\s*", text, re.IGNORECASE)
    try:
        return int(float(match[1]) * _UNITS[match[2].upper()]) if match else int("")
    except ValueError:
        raise UsageError(f"a memory budget is written like 600MB or 16GiB: got {text!r}.") from None


def _bytes_of_weights(model: Transformer) -> int:
    tensors = [t for x in (*model.layers, model) for t in fields_of(x).values() if isinstance(t, Tensor)]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 10**9:.2f} GB" if n_bytes >= 10**9 else f"{n_bytes / 10**6:.0f} MB"
