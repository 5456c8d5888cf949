"""Kill a run with SIGKILL at random moments, start it again, and say what happened to its cells.

    python kill_harness.py OUT KILLS SEED -- ARGUMENTS OF GRADPATH

Everything is imported once; each run is then a forked process of its own, so that ten of them take seconds.
Prints one JSON object: how many were killed while they worked, at how many different states of an unfinished
grid, and the cells that were written more than once or lost.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

import gradpath.grid.faithfulness
import gradpath.grid.runner
import gradpath.model.load  # noqa: F401
from gradpath import cli

torch.set_num_threads(1)


def start(arguments: list[str]) -> int:
    """Run the command in a process of its own, silently; its id."""
    child = os.fork()
    if child:
        return child
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    try:
        cli.main(arguments)
    except SystemExit as leave:
        os._exit(int(leave.code or 0))
    os._exit(1)


def cells(out: Path) -> dict[str, int]:
    """Every finished cell and file of scores, with the moment it was written."""
    files = [*(out / "cells").glob("[!.]*"), *(out / "scores").glob("[!.]*")]
    return {file.name: file.stat().st_mtime_ns for file in files}


def wait(child: int, out: Path, files: int, moment: float) -> int | None:
    """Until there are so many finished files and a moment more; the status of a child that ended before.

    Waiting for progress rather than for a time is what puts the kills into the work on a slow machine too.
    """
    while len(cells(out)) < files:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.002)
    time.sleep(moment)
    return None


def main(out: Path, kills: int, seed: int, arguments: list[str]) -> None:
    dice = random.Random(seed)
    seen: dict[str, int] = {}
    killed, counts = 0, []
    repeated, lost = set[str](), set[str]()
    for _ in range(kills):
        child = start(arguments)
        status = wait(child, out, len(seen) + dice.randint(0, 1), dice.uniform(0, 0.03))
        if status is None:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
        now = cells(out)
        counts.append(len(now))
        lost |= seen.keys() - now.keys()
        repeated |= {name for name in seen.keys() & now.keys() if seen[name] != now[name]}
        seen |= now
    _, status = os.waitpid(start(arguments), 0)
    now = cells(out)
    lost |= seen.keys() - now.keys()
    repeated |= {name for name in seen if now.get(name, seen[name]) != seen[name]}
    unfinished = len({count for count in counts if count < len(now)})
    report = {"code": os.waitstatus_to_exitcode(status), "killed": killed, "unfinished": unfinished}
    sys.stdout.write(json.dumps({**report, "lost": sorted(lost), "repeated": sorted(repeated)}) + "\n")


if __name__ == "__main__":
    folder, how_often, moment, _, *given = sys.argv[1:]
    main(Path(folder), int(how_often), int(moment), given)
