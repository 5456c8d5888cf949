"""Several processes on one piece of work, as ``torchrun`` starts them: who this one is, and how they agree.

Every process (a *rank*) runs the same program on the same model and examples. Batches are dealt out over the
ranks (``memory.in_shared_batches``), what they give is added up, and from there on all ranks hold the same
numbers. Whatever touches files is done by the first rank alone (``from_first``), and what it finds there is
what all of them go by, so ranks need no common folder.

Nothing here does anything in a process that was not started as one of several. One that was takes part
unless it says otherwise::

    with gradpath.ranks.alone():
        scores = gradpath.attribute(...)  # this rank's own examples, and nobody else's

A rank that fails in shared work tells the others, and all of them raise the same error. One that dies is
noticed at the next sum: the others stop with a sentence.
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

if TYPE_CHECKING:
    import torch
    from torch import Tensor


Value = TypeVar("Value")

# How long a rank waits for the others. A dead one is noticed at once; this is for one that hangs.
_PATIENCE = timedelta(hours=2)
_alone = ContextVar("alone", default=False)


@contextmanager
def alone() -> Iterator[None]:
    """In here this process works for itself, whoever else was started with it."""
    before = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(before)


def world() -> int:
    """How many ranks share the work; 1 if this process is on its own."""
    if _alone.get():
        return 1
    dist = sys.modules.get("torch.distributed")  # not there: nobody can have met
    if dist is not None and dist.is_available() and dist.is_initialized():
        n_ranks: int = dist.get_world_size()
        return n_ranks
    return _launched()


def rank() -> int:
    """Which of them this one is; the first, 0, writes and prints."""
    if world() == 1:
        return 0
    import torch.distributed as dist

    return dist.get_rank() if dist.is_initialized() else int(os.environ["RANK"])


def _launched() -> int:
    """How many processes torchrun, or whoever sets the same variables, has started."""
    named = all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    return int(os.environ["WORLD_SIZE"]) if named else 1


def local_device() -> torch.device | None:
    """This rank's own GPU; None on a machine without, and for a process that is on its own."""
    import torch

    if world() == 1 or not torch.cuda.is_available():
        return None
    local, found = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= found:
        raise UsageError(
            f"every process needs a GPU of its own: process {local + 1} on this machine has none of its "
            f"{found}. Start at most {found} (torchrun --nproc-per-node), or give --device."
        )
    return torch.device(local)


def all_sum(values: Tensor) -> Tensor:
    """The sum over all ranks, the same to the last digit on each of them."""
    return _reduced(values, "SUM")


def all_max(values: Tensor) -> Tensor:
    """The all_max of every entry over all ranks."""
    return _reduced(values, "MAX")


def total_over_ranks(number: float) -> float:
    """The sum of one number over all ranks, such as the time each has worked."""
    import torch

    return float(all_sum(torch.tensor([number], dtype=torch.float64, device="cpu")))


def _reduced(values: Tensor, how: str) -> Tensor:
    if world() == 1:
        return values
    import torch.distributed as dist

    sent = values.to(_wire(), copy=True).contiguous()
    _with_others(lambda: dist.all_reduce(sent, getattr(dist.ReduceOp, how)))
    return sent.to(values.device)


def broadcast_first(values: Tensor) -> Tensor:
    """The first rank's tensor, for what machines of another make could round, and so decide, otherwise."""
    if world() == 1:
        return values
    import torch
    import torch.distributed as dist

    shape = on_first_rank(lambda: list(values.shape))
    sent = values.to(_wire()).contiguous()
    if rank() != 0:
        sent = torch.empty(shape, dtype=values.dtype, device=_wire())
    _with_others(lambda: dist.broadcast(sent, 0))
    return sent.to(values.device)


def on_first_rank(work: Callable[[], Value]) -> Value:
    """What ``work`` gives on the first rank, which does it alone: any plain value that JSON can hold.

    If it fails there, it fails everywhere.
    """
    if world() == 1:
        return work()
    found: Any = None
    with fail_together():
        if rank() == 0:
            with alone():
                found = work()
    given: Value = json.loads(_said_by(json.dumps(found), 0))
    return given


@contextmanager
def fail_together() -> Iterator[None]:
    """What one rank fails at in here, all fail at: it tells them, and each raises the error."""
    if world() == 1:
        yield
        return
    try:
        yield
    except Exception as problem:
        _share_failure(problem)
        raise
    _share_failure(None)


def _share_failure(own: Exception | None) -> None:
    """Meet the others at the end of some work, and raise what the lowest rank that failed has to say."""
    import torch

    failed = torch.full((1,), -1, dtype=torch.long, device="cpu")
    if own is not None:
        failed[0] = world() - rank()
    lowest = int(all_max(failed))
    if lowest < 0:
        return
    who = world() - lowest
    said = str(own) if isinstance(own, GradpathError) else f"{type(own).__name__}: {own}"
    message, code = json.loads(_said_by(json.dumps([said, getattr(own, "exit_code", 1)]), who))
    if own is not None and who == rank():
        own.shared = True  # type: ignore[attr-defined]
        return
    kind = UsageError if code == UsageError.exit_code else GradpathError
    raise _shared(kind(message if who == 0 else f"{message} (process {who} of {world()})")) from None


def check_same(what: str, *content: Any) -> None:
    """Refuse to add up what does not belong fail_together: ranks that were asked for different things."""
    if world() == 1:
        return
    import torch

    def plain(value: Any) -> str:  # an object may print its address, which no two processes share
        return sha256(value).hexdigest() if isinstance(value, bytes) else type(value).__name__

    seen = sha256(json.dumps(content, default=plain, sort_keys=True).encode())
    number = torch.tensor([int(seen.hexdigest()[:15], 16)], device="cpu")
    if int(all_max(number)) != -int(all_max(-number)):
        raise _shared(
            UsageError(
                f"the {world()} processes of this run were given different {what}, and share their work: "
                "give all of them the same, or use gradpath.ranks.alone() to have each work for itself."
            )
        )


def _shared(error: GradpathError) -> GradpathError:
    error.shared = True
    return error


def _said_by(text: str, who: int) -> str:
    """A text of one rank, on all of them."""
    import torch
    import torch.distributed as dist

    data = text.encode()
    size = torch.tensor([len(data)], device=_wire())
    _with_others(lambda: dist.broadcast(size, who))
    sent = torch.empty(int(size), dtype=torch.uint8, device=_wire())
    if rank() == who:
        sent = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(_wire())
    _with_others(lambda: dist.broadcast(sent, who))
    return bytes(sent.tolist()).decode()


def _wire() -> torch.device:
    """Where tensors have to be to be sent: on the GPU if NCCL sends them, else on the CPU."""
    import torch
    import torch.distributed as dist

    _join()
    if torch.cuda.is_available() and "nccl" in dist.get_backend_config():
        return torch.device(torch.cuda.current_device())
    return torch.device("cpu")


def _join() -> None:
    """Meet the other ranks, once; whoever has done so before us has our thanks."""
    import atexit

    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        return
    device = local_device()
    if device is not None:
        torch.cuda.set_device(device)
    _with_others(lambda: dist.init_process_group(timeout=_PATIENCE))
    atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())


def _with_others(meet: Callable[[], object]) -> None:
    try:
        meet()
    except RuntimeError as problem:  # torch.distributed's errors are of this kind
        line = str(problem).partition("\n")[0]
        reason = line.rpartition("] ")[2].partition(". ")[0]  # without where in its source, and its advice
        raise GradpathError(
            f"another process of this run has ended or cannot be reached ({reason}). What was finished "
            "is kept: run the same command again to go on."
        ) from None
