"""A run that is killed at any moment goes on: no cell is lost or repeated, and the table is the same."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from serving import Server, until

FILES = ("cells", "scores")
AHEAD = 3  # files that a run may finish after the moment from which it may be killed


def cells(out: Path) -> dict[str, int]:
    """Every finished cell and file of scores, with the moment it was written."""
    files = [file for folder in FILES for file in (out / folder).glob("[!.]*")]
    return {file.name: file.stat().st_mtime_ns for file in files}


def killed(server: Server, out: Path, *command: object, kills: int, seed: int = 7) -> list[int]:
    """Kill a run at random moments and start it again; how many files there were each time, and at the end.

    The moment is a while after a random file, so that it falls into the work on a slow machine too.
    """
    dice = random.Random(seed)
    seen: dict[str, int] = {}
    counts = []
    for last in [False] * kills + [True]:
        if last:
            assert server.run(*command) == 0, server.err.read_text()
        else:
            files = len(seen) + dice.randint(0, 1)
            hold = [out / folder / "*" for folder in FILES]
            child = server.start(*command, hold=hold, files=files + AHEAD)
            until(lambda files=files, child=child: len(cells(out)) >= files or server.ask(ended=child))
            time.sleep(dice.uniform(0, 0.03))
            assert not server.ask(ended=child), server.err.read_text()
            os.kill(child, signal.SIGKILL)
            assert server.ask(wait=child) == -signal.SIGKILL
        now = cells(out)
        assert {name: now.get(name) for name in seen} == seen, "a cell was lost, or written again"
        counts.append(len(now))
        seen = now
    return counts


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_kills_leave_the_same_table(run, server, tiny_folder, tmp_path, kills):
    # A kill lets at most a few more files be finished, so there have to be more of them than that.
    tasks = "ioi,sva" if kills < 6 else "ioi,sva,gender-bias,greater-than"
    ways = ("--methods", "eap,eap-ig", "--selection", "top") if kills < 6 else ()
    common = ("reproduce", "faithfulness", "--model", tiny_folder, "--tasks", tasks, *ways)
    common += ("--examples", 6, "--batch-size", 4, "--sparsities", "0.8,0.6,0.4,0.2")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert run(*common, "--out", whole).code == 0
    *counts, all_files = killed(server, broken, *common, "--out", broken, kills=kills)
    unfinished = {count for count in counts if count < all_files}
    assert len(unfinished) >= kills // 3  # the kills did fall into the work, at different states of it
    one, other = (json.loads((out / "faithfulness.json").read_text())["rows"] for out in (whole, broken))
    for row, same in zip(one, other, strict=True):
        for name, value in row.items():
            close = isinstance(value, float)
            assert same[name] == (pytest.approx(value, rel=1e-4, abs=1e-5) if close else value), name
