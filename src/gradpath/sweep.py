"""The batch loop: how much is computed at once, and what happens when it does not fit into memory.

Beyond a few hundred *rows* (one for each position of each example) a product takes the same time per row, and memory
grows for nothing. ``Limits`` cuts batches of about so many rows, and smaller ones where an estimate of the bytes of a
row says so. The estimate errs on the high side; where it does not, ``sweep`` halves the batch.
"""

from __future__ import annotations

import ctypes
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from gradpath._version import __version__
from gradpath.errors import GradpathError, UsageError, check_type, is_out_of_memory, reason, whole_number
from gradpath.model.architecture import fields_of
from gradpath.model.transformer import Transformer
from gradpath.registry import loaded_plugins
from gradpath.runtime import CGROUP, distributed
from gradpath.runtime.progress import progress_bar
from gradpath.tasks.metrics import metric_name
from gradpath.tasks.task import Pairs, Task

# Points of a stack that are run at once, and points that are summed before a contraction, at most: what bounds
# memory when a path is long.
RUN_AT_ONCE = 4
SUM_AT_ONCE = 8
# Rows of a batch of circuits, of gradients, and of gradients at stacked points: from 100 on a CPU's time per row is
# within a few percent of its best. An accelerator needs more.
ROWS = 120
GRADIENT_ROWS = 85
STACKED_ROWS = 200
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
Output = TypeVar("Output")


@dataclass(frozen=True)
class Limits:
    """How much may be computed at once.

    Args:
        batch_size: The largest number of examples in a batch; by default it depends on prompt length and memory.
        memory: A budget in bytes, weights included; by default the weights and half of what the machine has free.
    """

    batch_size: int | None = None
    memory: int | None = None

    def batches(
        self,
        model: Transformer,
        pairs: Pairs,
        rows: int = ROWS,
        cost: int = BATCH,
        padding: float = 1.0,
        *,
        whole: bool = False,
    ) -> list[Pairs]:
        """All pairs in batches: of the requested size, or of about so many rows, with little padding.

        ``rows`` are those of a batch on a CPU, if no batch size is requested; ``cost`` is what one more batch costs,
        and ``padding`` what a row of padding costs, both in rows. With ``whole``, positions before the first difference
        are rows, too.
        """
        counted = replace(pairs, index=torch.arange(len(pairs), device="cpu"))
        if whole:
            counted = replace(counted, first=torch.zeros_like(pairs.first))
        fitting = self._fitting_rows(model, counted)
        if self.batch_size is not None:
            size = whole_number("the batch size", self.batch_size)
            if self.memory is not None and fitting is not None:
                size = min(size, max(1, fitting // int(counted.last.max() + 1 - counted.start)))
            return list(pairs.batches(size))
        if model.device.type != "cpu":
            rows, cost = ACCELERATOR * rows, ACCELERATOR * cost
        rows = rows if fitting is None else min(rows, fitting)
        batches = counted.tight_batches(rows, len(pairs), cost, padding)
        return [pairs.rows(batch.index) for batch in batches]

    def attribution(
        self, model: Transformer, pairs: Pairs, *, points: int = 1, whole: bool = False
    ) -> tuple[list[Pairs], int]:
        """All pairs in batches for gradients, and how many of a path's points are run at once."""
        batches = self.batches(model, pairs, GRADIENT_ROWS, GRADIENT_BATCH, whole=whole)
        largest = max(len(x) * int(x.last.max() + 1 - (0 if whole else x.start)) for x in batches)
        rows = STACKED_ROWS if model.device.type == "cpu" else ACCELERATOR * STACKED_ROWS
        fitting = self._fitting_rows(model, pairs)
        rows = rows if fitting is None else min(rows, fitting)
        return batches, min(RUN_AT_ONCE, points, max(1, rows // largest))

    def _fitting_rows(self, model: Transformer, pairs: Pairs) -> int | None:
        """The rows that fit into memory; None where the budget is not known."""
        budget = self.memory
        if budget is None:
            free = free_memory() if model.device.type == "cpu" else _free_on(model.device)
            if free is None or distributed.world() > 1:  # batches have to be the same on all ranks
                return None
            budget = bytes_of_weights(model) + free // 2
        fixed, per_row = bytes_of_rows(model, pairs)
        least = least_bytes(model, pairs)
        if self.memory is not None and least > budget:
            raise UsageError(
                f"a memory budget of {size_text(self.memory)} is too small for {model.name or 'this model'}: it "
                f"needs about {size_text(least)} to run one example at a time. Allow more, or use --dtype bfloat16."
            )
        return max(0, budget - fixed) // int(per_row.max())


def bytes_of_rows(model: Transformer, pairs: Pairs) -> tuple[int, Tensor]:
    """The bytes that every run takes, and those of a row of each example, (example,)."""
    rows = pairs.last + 1 - pairs.first
    # Both the prefix of an example and its results are counted as a part of its rows.
    of_example = 4 * LOGITS * len(model.unembedding) + 16 * model.graph.n_pairs
    per_row = ((rows + PREFIX * pairs.first) * bytes_per_row(model) + of_example).double().div(rows)
    return bytes_of_weights(model) + 2 * CHUNK, per_row


def peak_bytes(model: Transformer, pairs: Pairs, points: int, device: str) -> int:
    """An estimate of the bytes that attribution takes, weights included, where memory is no limit."""
    fixed, per_row = bytes_of_rows(model, pairs)
    sizes = pairs.last + 1 - pairs.first
    rows = (2 * GRADIENT_ROWS if points > 1 else GRADIENT_ROWS) * (1 if device == "cpu" else ACCELERATOR)
    rows = min(rows, int(sizes.sum()) * min(RUN_AT_ONCE, points))
    return fixed + max(int(sizes.max()), rows) * int(per_row.mean())


def least_bytes(model: Transformer, pairs: Pairs) -> int:
    """The smallest budget in bytes that runs one example at a time."""
    fixed, per_row = bytes_of_rows(model, pairs)
    return fixed + int((pairs.last + 1 - pairs.first).max()) * int(per_row.max())


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


def bytes_of_weights(model: Transformer) -> int:
    """The bytes of all weights; of a model without them (on the meta device), those that they would take."""
    tensors = [t for x in (*model.layers, model) for t in fields_of(x).values() if isinstance(t, Tensor)]
    storages = [t.untyped_storage() for t in tensors]
    return sum({s._cdata if s.device.type == "meta" else s.data_ptr(): s.nbytes() for s in storages}.values())


def _free_on(device: torch.device) -> int | None:
    """Bytes that are free on an accelerator, if PyTorch can tell."""
    info = getattr(torch.get_device_module(device), "mem_get_info", None)
    return None if info is None else int(info(device)[0])


def free_memory() -> int | None:
    """Bytes of main memory that could be used without swapping, within the limit of a container; None if not known."""
    free = _meminfo().get("MemAvailable")
    try:
        limit, current = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no container, or no limit
        return free
    # File pages count towards current memory, but are freed when other memory is requested.
    pages = sum(_fields(CGROUP / "memory.stat").get(name, 0) for name in ("inactive_file", "active_file"))
    below_limit = max(0, limit - current + pages)
    return below_limit if free is None else min(free, below_limit)


def return_memory() -> None:
    """Return freed memory to the operating system. C's allocator would keep what lies between blocks in use."""
    if sys.platform.startswith("linux"):
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


def _meminfo() -> dict[str, int]:
    return {name.rstrip(":"): 1024 * number for name, number in _fields(Path("/proc/meminfo")).items()}


def _fields(file: Path) -> dict[str, int]:
    try:
        words = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdigit()}


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


def size_text(n_bytes: int) -> str:
    return f"{n_bytes / 10**9:.2f} GB" if n_bytes >= 10**9 else f"{n_bytes / 10**6:.0f} MB"


def check_affordable(what: str, passes: float, fewer: str, *, sure: bool) -> None:
    """Refuse what would take very long, unless the user is sure; ``fewer`` says what would make it shorter."""
    if passes > MOST_PASSES and not sure:
        raise UsageError(
            f"{what} takes about {passes:,.0f} forward passes of one example: {fewer}, or confirm with sure=true."
        )


@contextmanager
def own_settings(model: Transformer) -> Iterator[None]:
    """Compute in the model's own precision and with gradients available, whatever the caller has switched on."""
    check_type("the model", model, Transformer)
    with torch.inference_mode(False), torch.autocast(model.device.type, enabled=False):
        yield


def sweep(
    model: Transformer,
    task: Task,
    pairs: Pairs,
    batches: Sequence[Pairs],
    work: Callable[[Pairs], Output],
    *,
    doing: str,
    same: Callable[[], object] = lambda: None,
    bar: str = "",
) -> Iterator[Output]:
    """Run some work on every batch, in halves where it does not fit into memory, and yield what it returned.

    With several ranks, each runs its share of the batches, and the caller has to sum the results over the ranks. The
    batches are the same as in a single process, so an example's numbers do not depend on the number of ranks. They
    are smaller only where a rank would have none.

    Args:
        model, task: Named in error messages.
        pairs: The examples.
        batches: The same in batches.
        work: A function of one batch. A result that is not finite is an error.
        doing: What the work is, as the subject of an error message.
        same: Gives everything that the work depends on besides the model and the examples; it must agree on all ranks.
        bar: What the progress bar says; by default there is none. On several ranks it counts those of the first.
    """

    def checked(batch: Pairs) -> Output:
        output = work(batch)
        if not _finite(output):
            raise _nonfinite(work, batch, model, task, doing)
        return output

    world = distributed.world()
    if world > 1:
        _check_same_work(model, task, pairs, [same(), [len(batch) for batch in batches]])
        if len(batches) < world:
            batches = list(pairs.batches(math.ceil(len(pairs) / world)))
    own = batches[distributed.rank() :: world]
    with distributed.fail_together(), progress_bar(bar, len(own)) as shown:
        for batch in own:
            yield from _halving(checked, batch)
            shown.update()
    if bar and world == 1 and len(batches) > 1:  # a sweep without a bar is one of many, and the next takes it again
        return_memory()


def _check_same_work(model: Transformer, task: Task, pairs: Pairs, same: object) -> None:
    """Refuse ranks that run different examples, models or options."""
    labels = pairs.labels if isinstance(pairs.labels, list) else [pairs.labels]
    content = (pairs.clean, pairs.corrupted, pairs.last, pairs.first, *labels)
    distributed.check_same("examples", *(torch.as_tensor(part).cpu().numpy().tobytes() for part in content))
    versions = __version__, loaded_plugins()
    distributed.check_same("models, circuits or options", model.identity, metric_name(task.metric), versions, same)


def _halving(work: Callable[[Pairs], Output], batch: Pairs) -> Iterator[Output]:
    """Run the work on a batch, or on its halves, with a warning, where it does not fit into memory."""
    try:
        output = work(batch)
    except (RuntimeError, MemoryError) as problem:
        if not is_out_of_memory(problem):
            raise
        if len(batch) == 1:
            raise GradpathError(
                f"one example of {int(batch.last[0]) + 1} tokens does not fit into memory ({reason(problem)}). Use a "
                "smaller model, shorter prompts, fewer steps or --dtype bfloat16."
            ) from None
    else:
        yield output
        return
    half = len(batch) // 2
    warnings.warn(f"a batch of {len(batch)} examples does not fit into memory: trying {half}.", stacklevel=3)
    every = torch.arange(len(batch), device="cpu")
    for rows in (every[:half], every[half:]):
        yield from _halving(work, batch.rows(rows))


def _finite(output: Any) -> bool:
    """Whether all tensors in what the work returned are finite."""
    if isinstance(output, Tensor):
        return bool(output.isfinite().all())
    parts = output.values() if isinstance(output, dict) else output
    return all(map(_finite, parts)) if isinstance(output, (list, tuple, dict)) else True


def _nonfinite(
    work: Callable[[Pairs], object], batch: Pairs, model: Transformer, task: Task, doing: str
) -> GradpathError:
    """The error for a result that is not finite: it names the example, and where that first occurs."""
    singles = (batch.rows(torch.tensor([row], device="cpu")) for row in range(len(batch)))
    single = next((single for single in singles if not _finite(work(single))), None)
    if single is None:
        return GradpathError(
            f"{doing} produced a non-finite sum over {len(batch)} examples, although each of them alone is finite. "
            "Use a smaller --batch-size."
        )
    index, number = int(single.index[0]), torch.finfo(model.dtype)
    prompt = "" if isinstance(task.clean, Tensor) else f" ({task.clean[index]!r})"
    half = f"Use float32, because {number.dtype} overflows above {number.max:.3g}; or leave out the example, or "
    return GradpathError(
        f"{doing} produced a non-finite number on example {index}{prompt} of {task.name} in "
        f"{model.name or 'this model'}: {_first_nonfinite(model, task, single.to(model.device))}. "
        f"{half if number.bits <= 16 else 'Leave out the example, or '}check the weights and the metric."
    )


@torch.no_grad()
def _first_nonfinite(model: Transformer, task: Task, single: Pairs) -> str:
    """Where the first number that is not finite occurs in the runs of one example."""
    for prompt, ids in (("clean", single.clean), ("corrupted", single.corrupted)):
        x = model.embed(ids)
        outputs = {"the embeddings": x}
        outputs |= {f"layer {index}": out for index, (_, out) in enumerate(model.layer_runs(x))}
        outputs["the logits"] = model.unembed([*outputs.values()][-1][:, -1])
        outputs["the metric"] = task.metric(outputs["the logits"], single.labels)
        for name, output in outputs.items():
            if not _finite(output):
                return f"it first occurs in {name} on the {prompt} prompt"
    return "both prompts are finite, but a gradient or a patched run is not"
