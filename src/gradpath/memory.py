"""How many examples fit into memory: by an estimate beforehand, and by halving when it was wrong.

The estimate counts what autograd keeps: per position and layer about five tensors of the widths of the
residual stream, of the fused projection and of the MLP's hidden layer. That is what was measured on GPT-2
small's shape (within a fifth for EAP, EAP-IG and EAP-GP); it is meant to err on the high side.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

import torch

from gradpath import ranks
from gradpath.errors import GradpathError, UsageError
from gradpath.model.transformer import Transformer
from gradpath.tasks.task import Pairs

Done = TypeVar("Done")
Progress = Callable[[int], None]  # called with the number of examples that were finished

# Points of a stack that are run at once, and points that are summed before a contraction: what bounds
# memory when a path is long.
RUN_AT_ONCE = 4
SUM_AT_ONCE = 8
# The most bytes that the expanded writes of one chunk of rows may take.
CHUNK = 1 << 27

_COPIES = 5
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}


def parse_bytes(text: str) -> int:
    """'600MB', '16GiB' or '2e9' as a number of bytes.

    >>> parse_bytes("1.5 GB")
    1500000000
    """
    found = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([KMG]I?|)B?\s*", text, re.IGNORECASE)
    try:
        return int(float(found[1]) * _UNITS[found[2].upper()]) if found else int("")
    except ValueError:
        raise UsageError(f"a memory budget is written like 600MB or 16GiB: got {text!r}.") from None


def batch_that_fits(
    model: Transformer,
    pairs: Pairs,
    most: int,
    memory: int | None,
    *,
    points: int = 1,
    whole: bool = False,
    results: int = 1,
) -> int:
    """The largest batch, at most ``most``, whose estimate stays within ``memory`` bytes in all.

    ``points`` are those of the path, ``whole`` says whether it moves the prefix, ``results`` how many
    matrices of scores are summed at the same time.
    """
    if most < 1:
        raise UsageError(f"the batch size must be at least 1: got {most}.")
    most = min(most, len(pairs))
    if memory is None:
        return most
    fixed = _weights(model) + _fixed(model, results)
    one = _per_example(model, pairs, points, whole)
    fits = (memory - fixed) // one
    if fits < 1:
        raise UsageError(
            f"a memory budget of {_said(memory)} is too small for {model.name or 'this model'}: it needs "
            f"about {_said(fixed + one)} to run one example at a time. Allow more, or use --dtype bfloat16."
        )
    return int(min(most, fits))


def _weights(model: Transformer) -> int:
    tensors = [t for x in (*model.layers, model) for t in vars(x).values() if isinstance(t, torch.Tensor)]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def _fixed(model: Transformer, results: int) -> int:
    """The scores (once in float64, twice in float32) and one chunk of the contraction."""
    return 16 * results * model.graph.n_sources * model.graph.n_targets + 2 * CHUNK


def _per_example(model: Transformer, pairs: Pairs, points: int, whole: bool) -> int:
    length = int(pairs.last.max()) + 1
    suffix = length - int(pairs.first.min())
    # The clean and the corrupted run, and the points that are run at once.
    rows = suffix + 2 * length if whole else suffix * (2 + min(points - 1, RUN_AT_ONCE))
    layer = model.layers[0]
    width = model.arch.d_model + len(layer.w_qkv) + len(layer.w_in)
    kept = rows * model.arch.n_layers * _COPIES * width
    logits = 4 * (2 + min(points, RUN_AT_ONCE)) * len(model.unembedding)
    return (kept + logits) * model.embedding.element_size()


def in_batches(
    work: Callable[[Pairs], Done], pairs: Pairs, size: int, progress: Progress | None = None
) -> Iterator[Done]:
    """Do the work on every batch, or on its parts where it does not fit; report each batch that is done."""
    for batch in pairs.batches(size):
        yield from halving(work, batch)
        if progress is not None:
            progress(len(batch))


def in_shared_batches(
    work: Callable[[Pairs], Done],
    pairs: Pairs,
    size: int,
    progress: Progress | None = None,
    *,
    asked: Callable[[], object],
) -> Iterator[Done]:
    """As ``in_batches``, over this rank's batches alone: who calls it has to add up over the ranks.

    The batches are those of one process, dealt out, so an example's numbers do not depend on how many ranks
    there are; they are only made smaller where some rank would have none. ``asked`` gives all that the
    work depends on beside the examples: it has to be the same on all ranks. The first one reports for all.
    """
    world = ranks.world()
    if world == 1:
        yield from in_batches(work, pairs, size, progress)
        return
    given = (pairs.clean, pairs.corrupted, pairs.last, pairs.first)
    ranks.check_same("examples", repr(pairs.labels), *(part.numpy().tobytes() for part in given))
    ranks.check_same("models, circuits or options", asked(), size)
    left = len(pairs)
    with ranks.together():
        enough = math.ceil(len(pairs) / size) >= world
        batches = pairs.batches(size if enough else math.ceil(len(pairs) / world))
        for batch in islice(batches, ranks.rank(), None, world):
            yield from halving(work, batch)
            if progress is not None:
                progress(min(left, len(batch) * world))
                left -= min(left, len(batch) * world)


def halving(work: Callable[[Pairs], Done], batch: Pairs) -> Iterator[Done]:
    """Do the work on a batch; where it does not fit, on its halves, with a warning."""
    try:
        done = work(batch)
    except (RuntimeError, MemoryError) as problem:
        if not _out_of_memory(problem):
            raise
        if len(batch) == 1:
            raise GradpathError(
                f"one example of {int(batch.last[0]) + 1} tokens does not fit into memory: "
                f"{_wanted(problem)}. Use a smaller model, shorter prompts, fewer steps or --dtype bfloat16."
            ) from None
    else:
        yield done
        return
    half = len(batch) // 2
    warnings.warn(f"a batch of {len(batch)} examples does not fit into memory: trying {half}.", stacklevel=3)
    every = torch.arange(len(batch), device="cpu")
    for rows in (every[:half], every[half:]):
        yield from halving(work, batch.rows(rows))


def _out_of_memory(problem: Exception) -> bool:
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(problem, kinds) or "can't allocate memory" in str(problem)


def _wanted(problem: Exception) -> str:
    found = re.search(r"tried to allocate ([0-9.]+ ?\w+)", str(problem), re.IGNORECASE)
    return f"the allocation that failed was of {found[1]}" if found else "its size is not known"


def _said(n_bytes: int) -> str:
    return f"{n_bytes / 10**9:.2f} GB" if n_bytes >= 10**9 else f"{n_bytes / 10**6:.0f} MB"
