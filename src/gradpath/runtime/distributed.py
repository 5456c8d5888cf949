"""Distributed runs on ``torch.distributed``, as ``torchrun`` starts them.

Every process (a *rank*) runs the same program on the same model and examples. Batches are dealt out over the
ranks (``gradpath.sweep``) and their results are summed, after which all ranks have the same numbers. The first
rank alone reads and writes files (``on_first_rank``), so the ranks need no common folder.

In a single process, everything here does nothing. A process of a distributed run takes part in the shared work
unless it opts out::

    with gradpath.runtime.distributed.alone():
        scores = gradpath.attribute(...)  # on the examples of this rank only

If a rank fails in shared work, all ranks raise its error. If a rank dies, the others notice at the next sum
and stop with a sentence.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

from gradpath.errors import GradpathError, UsageError

if TYPE_CHECKING:  # torch is imported when it is needed, so that help is quick
    import torch
    from torch import Tensor

Value = TypeVar("Value")

_TIMEOUT = timedelta(hours=1)  # to wait for a rank that hangs; a dead one is noticed at once
_alone = ContextVar("alone", default=False)


@contextmanager
def alone() -> Iterator[None]:
    """A context in which this process does not share its work with other ranks."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def world() -> int:
    """The number of ranks that share the work; 1 for a single process."""
    if _alone.get():
        return 1
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        n_ranks: int = dist.get_world_size()
        return n_ranks
    launched = all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    return int(os.environ["WORLD_SIZE"]) if launched else 1


def rank() -> int:
    """The index of this rank. Rank 0 writes and prints."""
    if world() == 1:
        return 0
    import torch.distributed as dist

    return dist.get_rank() if dist.is_initialized() else int(os.environ["RANK"])


def local_device() -> torch.device | None:
    """The GPU of this rank; None without GPUs and for a single process."""
    import torch

    if world() == 1 or not torch.cuda.is_available():
        return None
    local, n_devices = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= n_devices:
        raise UsageError(
            f"each process needs its own GPU: this machine has {n_devices}, too few for process {local + 1}. "
            f"Start at most {n_devices} (torchrun --nproc-per-node), or give --device."
        )
    return torch.device(local)


def all_sum(values: Tensor) -> Tensor:
    """The sum of a tensor over all ranks, bitwise the same on each of them."""
    if world() == 1:
        return values
    import torch.distributed as dist

    result = values.to(_wire(), copy=True).contiguous()
    _communicate(lambda: dist.all_reduce(result))
    return result.to(values.device)


def broadcast_first(values: Tensor) -> Tensor:
    """The tensor of the first rank, for decisions that rounding could make different on other machines."""
    return gathered(values.cpu())[0].to(values.device)


def gathered(value: Value) -> list[Value]:
    """A value of every rank, on all of them."""
    if world() == 1:
        return [value]
    import torch.distributed as dist

    _wire()  # begins the communication, if nothing has
    values: list[Any] = [None] * world()
    _communicate(lambda: dist.all_gather_object(values, value))
    return values


def on_first_rank(work: Callable[[], Value]) -> Value:
    """Do work on the first rank alone. Its result is returned on all ranks, and so is its error raised."""
    if world() == 1:
        return work()
    result: Any = None
    with fail_together():
        if rank() == 0:
            with alone():
                result = work()
    first: Value = gathered(result)[0]
    return first


@contextmanager
def fail_together() -> Iterator[None]:
    """If one rank fails in this context, all ranks raise its error at the end of it."""
    if world() == 1:
        yield
        return
    try:
        yield
    except Exception as problem:
        _share_failure(problem)
        raise
    _share_failure(None)


def _share_failure(problem: Exception | None) -> None:
    """Raise the failure of the lowest rank that has one; on that rank return, so that the caller raises it."""
    message = str(problem) if isinstance(problem, GradpathError) else f"{type(problem).__name__}: {problem}"
    failures = gathered(None if problem is None else (message, getattr(problem, "exit_code", 1)))
    if not any(failures):
        return
    lowest, (message, code) = next((n, failure) for n, failure in enumerate(failures) if failure)
    if problem is not None and lowest == rank():
        problem.shared = True  # type: ignore[attr-defined]
        return
    error = (UsageError if code == UsageError.exit_code else GradpathError)(
        message if lowest == 0 else f"{message} (process {lowest} of {world()})"
    )
    error.shared = True
    raise error from None


def check_same(what: str, *content: Any) -> None:
    """Refuse shared work if the ranks were given different content: plain values, or objects by their type alone."""
    if world() == 1:
        return

    def plain(value: Any) -> str:  # not repr(), which can contain an address
        return sha256(value).hexdigest() if isinstance(value, bytes) else type(value).__name__

    if len(set(gathered(json.dumps(content, default=plain, sort_keys=True)))) > 1:
        error = UsageError(
            f"the {world()} processes of this run share their work but were given different {what}. Give all of "
            "them the same, or use gradpath.runtime.distributed.alone() to let each work by itself."
        )
        error.shared = True
        raise error


def _wire() -> torch.device:
    """The device from which tensors are sent: the GPU for NCCL, else the CPU.

    The first call initialises the process group, unless the caller already has.
    """
    import atexit

    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        device = local_device()
        if device is not None:
            torch.cuda.set_device(device)
        backend = None if torch.cuda.is_available() else "gloo"
        _communicate(lambda: dist.init_process_group(backend, timeout=_TIMEOUT))
        atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())
    if torch.cuda.is_available() and "nccl" in dist.get_backend_config():
        return torch.device(torch.cuda.current_device())
    return torch.device("cpu")


def _communicate(call: Callable[[], object]) -> None:
    """Call ``torch.distributed``; its errors become one sentence."""
    try:
        call()
    except RuntimeError as problem:
        line = str(problem).partition("\n")[0]
        reason = line.rpartition("] ")[2].partition(". ")[0]  # without the place in its source, and its advice
        raise GradpathError(
            f"another process of this run has ended or cannot be reached ({reason}). Finished work is saved: "
            "run the same command again to continue."
        ) from None
