"""What the machine offers: memory that is free, and how many threads to use.

Matrix products of a few hundred rows are what this library spends its time on. OpenMP splits each of them over its
threads, and by default a thread that is done first *spins* until the others are. On a machine with other work one of
them is always late, and the others burn whole cores waiting: two threads then take several times the CPU time of one.
So ``set_threads`` makes threads sleep where that can still be chosen, which is before PyTorch is imported, and uses no
more of them than there are cores free.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

# Whoever sets one of these has chosen the number of threads.
CHOSEN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_THREAD_LIMIT", "LOCAL_WORLD_SIZE")
_CGROUP = Path("/sys/fs/cgroup")


def set_threads() -> None:
    """Use as many threads as cores are free, and let those that wait sleep. For the command line, before torch.

    What the user has set in the environment stays as it is, for this process and for those that it starts.
    """
    if "torch" in sys.modules or any(name in os.environ for name in CHOSEN):
        return
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ["OMP_NUM_THREADS"] = str(free_cores())


def free_cores() -> int:
    """The number of cores that this process may use and that others leave free, at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed = min(allowed, _cpu_quota() or allowed)
    try:
        busy = os.getloadavg()[0]
    except OSError:  # not known here
        busy = 0.0
    # Hyper-threads share a core, and the load is that of the whole machine, not only of the cores allowed.
    share = busy * allowed / max(allowed, os.cpu_count() or 1)
    return max(1, min(allowed, round(allowed - share)))


def free_memory() -> int | None:
    """Bytes of main memory that could be used without swapping, within the limit of a container; None if not known."""
    free = _meminfo().get("MemAvailable")
    limit, used = _number(_CGROUP / "memory.max"), _number(_CGROUP / "memory.current")
    if limit is not None and used is not None:
        # File pages count as used, and are given up when memory is asked for.
        pages = sum(_fields(_CGROUP / "memory.stat").get(name, 0) for name in ("inactive_file", "active_file"))
        within = max(0, limit - used + pages)
        free = within if free is None else min(free, within)
    return free


def return_memory() -> None:
    """Give freed memory back to the operating system. C's allocator would keep what lies between blocks in use."""
    if sys.platform.startswith("linux"):
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


def _cpu_quota() -> int | None:
    """The number of cores that a container may use."""
    try:
        quota, period = (_CGROUP / "cpu.max").read_text().split()
        return max(1, round(int(quota) / int(period)))
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


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
