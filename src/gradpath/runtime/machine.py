"""Free memory, and how threads wait.

OpenMP splits every large matrix product over its threads, and by default a thread that finishes early *spins* until
the others are done. On a busy machine one of them is always late, and the others occupy whole cores while they wait:
two threads then take several times the CPU time of one, and more time, too. Threads that sleep while they wait cost
nothing. OpenMP reads its settings once, when PyTorch is imported, so ``set_threads`` has to be called before that. The
number of threads does not depend on how busy the machine is: that could change the last digit of a result.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def set_threads() -> None:
    """Let waiting threads sleep, and use no more threads than a container has cores.

    Variables that the user has set stay as they are. Once PyTorch is imported, nothing is set.
    """
    if "torch" in sys.modules:
        return
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if (cores := _cpu_quota()) is not None:  # PyTorch counts the cores of the whole machine
        os.environ.setdefault("OMP_NUM_THREADS", str(cores))


def free_memory() -> int | None:
    """Bytes of main memory that could be used without swapping, within the limit of a container; None if not known."""
    free = _meminfo().get("MemAvailable")
    try:
        limit, current = (int((_CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no container, or no limit
        return free
    # File pages count towards current memory, but are freed when other memory is requested.
    pages = sum(_fields(_CGROUP / "memory.stat").get(name, 0) for name in ("inactive_file", "active_file"))
    below_limit = max(0, limit - current + pages)
    return below_limit if free is None else min(free, below_limit)


def return_memory() -> None:
    """Return freed memory to the operating system. C's allocator would keep what lies between blocks in use."""
    if sys.platform.startswith("linux"):
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


def _cpu_quota() -> int | None:
    """The number of cores that a container may use, if that is less than there are."""
    try:
        quota, period = (_CGROUP / "cpu.max").read_text().split()
        cores = max(1, round(int(quota) / int(period)))
        return cores if cores < (os.cpu_count() or 1) else None
    except (OSError, ValueError):  # no container, or no limit
        return None


def _meminfo() -> dict[str, int]:
    return {name.rstrip(":"): 1024 * number for name, number in _fields(Path("/proc/meminfo")).items()}


def _fields(file: Path) -> dict[str, int]:
    try:
        words = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdigit()}
