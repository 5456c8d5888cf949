"""How much may be computed at once: batches and points that fit into memory, and are no larger than they have to be.

Beyond a few hundred rows (one for each position of each example) a product takes the same time per row, and memory
grows for nothing. Fewer are taken where an estimate of the bytes of a row says so. It errs on the high side; where it
does not, ``sweep`` halves the batch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
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
# What a position before the first difference costs, in rows: keys and values alone.
PREFIX = 0.25
# Times the vocabulary that logits take for each example: those of a few circuits, and copies.
LOGITS = 12
# Forward passes over one example that are made unless the user is ``sure``: hours on a CPU, with a small model.
MOST_PASSES = 100_000
# The most bytes that the expanded writes of one chunk of rows may take.
CHUNK = 1 << 27

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}


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

    def rows(self, model: Transformer, pairs: Pairs, rows: int, *, whole: bool = False) -> int:
        """The most rows of a batch: so many on a CPU, more on other devices, or as many as fit into memory.

        With ``whole``, positions before the first difference are rows, too.
        """
        most = rows if model.device.type == "cpu" else ACCELERATOR * rows
        fitting = self._fitting_rows(model, pairs, whole)
        return most if fitting is None else min(most, fitting)

    def most(self, pairs: Pairs) -> int:
        """The most examples in a batch whose rows are bounded."""
        requested = len(pairs) if self.batch_size is None else whole_number("the batch size", self.batch_size)
        return min(requested, len(pairs))

    def batch(self, model: Transformer, pairs: Pairs, rows: int = ROWS, *, whole: bool = False) -> int:
        """The number of examples in a batch, if batches are cut evenly; ``rows`` if no batch size is requested."""
        most, most_rows = self.most(pairs), None
        if self.batch_size is None:
            most_rows = self.rows(model, pairs, rows, whole=whole)
        elif self.memory is not None:
            most_rows = self._fitting_rows(model, pairs, whole)
        if most_rows is None:
            return most
        ordered, fits = pairs.in_order(), most_rows
        return max(1, _last_that(lambda n: _rows(ordered.first, ordered.last, n, whole) <= fits, most))

    def tight_batches(self, model: Transformer, pairs: Pairs) -> list[Pairs]:
        """All pairs in batches for circuits, cut where that leaves little padding."""
        return pairs.tight_batches(self.rows(model, pairs, ROWS), self.most(pairs), BATCH, PADDING)

    def attribution(
        self, model: Transformer, pairs: Pairs, *, points: int = 1, whole: bool = False
    ) -> tuple[list[Pairs], int]:
        """All pairs in batches, and how many points of a path are run at once.

        Args:
            model: The model to run.
            pairs: The examples.
            points: The number of points of the path.
            whole: Whether the path moves positions before the first difference, too.
        """
        rows = gradient_rows(points, whole)
        if self.batch_size is None and not whole and model.device.type == "cpu":
            batches = pairs.tight_batches(self.rows(model, pairs, rows), len(pairs), GRADIENT_BATCH)
        else:
            batches = list(pairs.batches(self.batch(model, pairs, rows, whole=whole)))
        largest = max(_rows(batch.first, batch.last, len(batch), whole) for batch in batches)
        at_once = self.rows(model, pairs, 2 * GRADIENT_ROWS, whole=whole) // largest
        return batches, min(RUN_AT_ONCE, points, max(1, at_once))

    def peak(self, model: Transformer, pairs: Pairs, *, points: int = 1, accelerator: bool = False) -> int:
        """Estimate the bytes that attribution takes, weights included, where memory is no limit.

        Args:
            model: The model; its weights need not be loaded.
            pairs: The examples.
            points: The number of points of the path.
            accelerator: For a GPU, whose batches are larger.
        """
        sizes = pairs.last + 1 - pairs.first
        rows = 2 * STACKED_ROWS if points > 1 else GRADIENT_ROWS
        rows = min(rows * (ACCELERATOR if accelerator else 1), int(sizes.sum()) * min(RUN_AT_ONCE, points))
        fixed, per_row = self._prices(model, pairs, whole=False)
        return fixed + max(int(sizes.max()), rows) * int(per_row.mean())

    def least(self, model: Transformer, pairs: Pairs) -> int:
        """The smallest budget in bytes that runs one example at a time."""
        fixed, per_row = self._prices(model, pairs, whole=False)
        return fixed + int((pairs.last + 1 - pairs.first).max()) * int(per_row.max())

    def _prices(self, model: Transformer, pairs: Pairs, *, whole: bool) -> tuple[int, Tensor]:
        """Bytes that every run takes, and bytes of a row of each example."""
        prefix = torch.zeros_like(pairs.first) if whole else pairs.first
        rows = pairs.last + 1 - prefix
        # Both the prefix of an example and its results are counted as a part of its rows.
        of_example = 4 * LOGITS * len(model.unembedding) + 16 * model.graph.n_pairs
        per_row = ((rows + PREFIX * prefix) * bytes_per_row(model) + of_example).double().div(rows)
        return bytes_of_weights(model) + 2 * CHUNK, per_row

    def _fitting_rows(self, model: Transformer, pairs: Pairs, whole: bool) -> int | None:
        """The rows that fit into memory; None where the budget is not known."""
        budget = self._budget(model)
        if budget is None:
            return None
        fixed, prices = self._prices(model, pairs, whole=whole)
        per_row = int(prices.max())
        longest = int((pairs.last + 1 - (0 if whole else pairs.first)).max())
        if self.memory is not None and fixed + longest * per_row > budget:
            raise UsageError(
                f"a memory budget of {size_text(self.memory)} is too small for {model.name or 'this model'}: it "
                f"needs about {size_text(fixed + longest * per_row)} to run one example at a time. Allow more, or "
                "use --dtype bfloat16."
            )
        return max(0, budget - fixed) // per_row

    def _budget(self, model: Transformer) -> int | None:
        """The budget in bytes. The default is the same on all ranks, and None where it is not known."""
        if self.memory is not None:
            return self.memory
        free = free_memory() if model.device.type == "cpu" else _free_on(model.device)
        if free is None or distributed.world() > 1:
            return None
        return bytes_of_weights(model) + free // 2


def bytes_per_row(model: Transformer) -> int:
    """What one position of one example takes, in bytes: an estimate that errs on the high side.

    Autograd keeps what every matrix of weights reads and writes. Gradients at the targets, their sums over points and
    the writes of both ends take less than twice as much again. A circuit needs three vectors for every node instead.
    """
    kept = 0.0
    for layer in model.layers:
        share = 1.0 if layer.experts is None else layer.experts.per_token / len(layer.experts.router)
        for name, x in fields_of(layer).items():
            if isinstance(x, Tensor) and x.ndim > 1:
                used = share if name in ("experts.w_in", "experts.w_out") else 1.0
                kept += used * (math.prod(x.shape[:-1]) + math.prod(x.shape[:-2]) * x.shape[-1])
    number, nodes = model.embedding.element_size(), 3 * model.graph.n_sources * model.arch.d_model
    return int(number * kept + max(max(4, number) * 2 * kept, number * nodes))  # sums are in float32 at least


def gradient_rows(points: int, whole: bool) -> int:
    """The rows of a batch, by default, of gradients at so many points."""
    return GRADIENT_ROWS if points == 1 or whole else STACKED_ROWS


def _rows(first: Tensor, last: Tensor, size: int, whole: bool) -> int:
    """The rows of the largest batch, padding included, if examples are cut evenly in their order."""
    starts = [0 if whole else int(part.min()) for part in torch.split(first, size)]
    return max(
        size * (int(part.max()) + 1 - start) for part, start in zip(torch.split(last, size), starts, strict=True)
    )


def _last_that(holds: Callable[[int], bool], most: int) -> int:
    """The largest number up to ``most`` for which something holds that holds for smaller ones, or 0."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _free_on(device: torch.device) -> int | None:
    """Bytes that are free on an accelerator, if PyTorch can tell."""
    info = getattr(torch.get_device_module(device), "mem_get_info", None)
    return None if info is None else int(info(device)[0])


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


def bytes_of_weights(model: Transformer) -> int:
    """The bytes of all weights; of a model without them (on the meta device), those that they would take."""
    tensors = [t for x in (*model.layers, model) for t in fields_of(x).values() if isinstance(t, Tensor)]
    storages = [t.untyped_storage() for t in tensors]
    return sum({s._cdata if s.device.type == "meta" else s.data_ptr(): s.nbytes() for s in storages}.values())


def size_text(n_bytes: int) -> str:
    return f"{n_bytes / 10**9:.2f} GB" if n_bytes >= 10**9 else f"{n_bytes / 10**6:.0f} MB"
