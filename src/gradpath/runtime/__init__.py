"""How a run uses the machine: threads, files, progress, several processes.

OpenMP splits every large matrix product over its threads, and by default a thread that finishes early *spins* until
the others are done. On a busy machine one of them is always late, and the others occupy whole cores while they wait:
two threads then take several times the CPU time of one, and more time, too. Threads that sleep while they wait cost
nothing. OpenMP reads its settings once, when PyTorch is imported, so ``set_threads`` has to be called before that. The
number of threads does not depend on how busy the machine is: that could change the last digit of a result.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def set_threads() -> None:
    """Let waiting threads sleep, and use no more threads than a container has cores.

    Variables that the user has set stay as they are. Once PyTorch is imported, nothing is set.
    """
    if "torch" in sys.modules:
        return
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if (cores := _cpu_quota()) is not None:  # PyTorch counts the cores of the whole machine
        os.environ.setdefault("OMP_NUM_THREADS", str(cores))


def _cpu_quota() -> int | None:
    """The number of cores that a container may use, if that is less than there are."""
    try:
        quota, period = (CGROUP / "cpu.max").read_text().split()
        cores = max(1, round(int(quota) / int(period)))
        return cores if cores < (os.cpu_count() or 1) else None
    except (OSError, ValueError):  # no container, or no limit
        return None
