"""A run that is killed at any moment goes on: no cell is lost or repeated, and the table is the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).with_name("kill_harness.py")


def harness(out: Path, kills: int, *arguments: object) -> dict:
    command = [sys.executable, str(HARNESS), str(out), str(kills), "7", "--", *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=1200, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_kills_leave_the_same_table(tiny_folder, tmp_path, kills):
    # A kill lets at most one more job finish, so there have to be more of them than kills.
    tasks = "ioi,sva" if kills < 6 else "ioi,sva,gender-bias,greater-than"
    common = ("reproduce", "faithfulness", "--model", tiny_folder, "--tasks", tasks)
    common += ("--examples", 6, "--batch-size", 4, "--sparsities", "0.8,0.6,0.4,0.2")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert harness(whole, 0, *common, "--out", whole)["code"] == 0
    report = harness(broken, kills, *common, "--out", broken)
    assert report["code"] == 0
    assert report["killed"] == kills
    assert report["unfinished"] >= kills // 3  # the kills did fall into the work, at different states of it
    assert report["lost"] == []
    assert report["repeated"] == []
    for name in ("faithfulness.csv", "faithfulness.md", "faithfulness.png", "faithfulness.svg"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes()
    one, other = (json.loads((out / "faithfulness.json").read_text()) for out in (whole, broken))
    for record in (one, other):
        for name in ("times", "command", "commit"):  # where and when it was run, not what it found
            del record[name]
    assert one == other
