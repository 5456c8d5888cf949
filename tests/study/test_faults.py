"""Faults: a full disk, a folder that cannot be written to, signals, two runs at once, a rank that dies.

After each of them no file is half written, what was finished is kept, stderr has one sentence and no
traceback, the exit code says what happened, and the same command goes on. All of it happens for real, to
processes of their own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from covering import some
from launching import LIMIT, environment, gradpath_command, torchrun
from safetensors import safe_open
from serving import until

QUICK = ("--examples", "6", "--batch-size", "4")
FEW = ("--methods", "eap,eap-ig", "--selection", "top")
VERBS = {
    "find": ("find", "--task", "ioi", "--selection", "top", "--sparsity", "0.5", *QUICK),
    "curve": ("curve", "--task", "ioi", "--sparsities", "0.5,0.2", *FEW, *QUICK),
    "reproduce": ("reproduce", "faithfulness", "--tasks", "ioi", "--sparsities", "0.5,0.2", *FEW, *QUICK),
}
# As many batches as there will be ranks: then all numbers are the same to the last digit.
LONGER = ("reproduce", "faithfulness", "--tasks", "ioi,sva,gender-bias", "--sparsities", "0.5,0.2")
LONGER += ("--examples", "6", "--batch-size", "2")


def verbs(*quick: str) -> list[Any]:
    """All three, of which only those named are run every time."""
    return [pytest.param(verb, marks=[] if verb in quick else pytest.mark.slow) for verb in VERBS]


def finished_files(out: Path) -> dict[str, int]:
    """Every file with the moment it was written, each of which has to be whole."""
    files = [file for file in out.rglob("*") if file.is_file() and file.name != ".gradpath-lock"]
    files = [file for file in files if not file.name.endswith("gradpath-part")]
    for file in files:
        if file.suffix == ".json":
            json.loads(file.read_text())
        elif file.suffix == ".safetensors":
            with safe_open(str(file), framework="pt") as opened:
                opened.get_tensor("scores")
        elif file.suffix == ".html":
            assert file.read_text().rstrip().endswith("</html>")
    return {str(file.relative_to(out)): file.stat().st_mtime_ns for file in files}


def kept(before: dict[str, int], out: Path) -> bool:
    """Whether the cells and scores that were there still are, as they were."""
    now = finished_files(out)
    return all(now.get(name) == at for name, at in before.items() if name.startswith(("cells", "scores/")))


def parts(out: Path) -> list[Path]:
    return list(out.rglob(".*gradpath-part"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A file system of its own, mounted with the options given, and again with others."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = False

    def mount(options: str) -> Path:
        nonlocal mounted
        again = "remount," if mounted else ""
        command = ["mount", "-t", "tmpfs", "-o", again + options, "tmpfs", str(place)]
        try:
            done = subprocess.run(command, capture_output=True, check=False)
        except OSError:
            pytest.skip("there is no mount here")
        if done.returncode:
            pytest.skip("nothing can be mounted here")
        mounted = True
        return place

    yield mount
    if mounted:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("verb", verbs("reproduce"))
def test_a_full_disk_ends_a_run_that_can_go_on(server, tiny_folder, small_disk, verb):
    out = small_disk("size=4k" if verb == "find" else "size=64k") / "out"  # a report alone may be missing
    command = (*VERBS[verb], "--model", tiny_folder, "--out", out)
    assert server.run(*command) == 1
    assert "No space left on device" in server.said()
    before = finished_files(out)
    assert before or verb == "find"
    assert not parts(out)
    small_disk("size=64m")
    assert server.run(*command) == 0, server.err.read_text()
    assert kept(before, out)


def test_a_report_that_cannot_be_written_costs_nothing_else(server, tiny_folder, tmp_path):
    command = (*VERBS["find"], "--model", tiny_folder, "--out", tmp_path / "out")
    assert server.run(*command) == 0
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    assert set(before) == {"scores.safetensors", "circuit.json", "report.html"}
    assert server.run(*command, "--seed", "1", most=20_000) == 0
    assert "report could not be made" in server.said()
    assert "File too large" in server.said()
    after = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    assert set(after) == {"scores.safetensors", "circuit.json"}  # no report of another circuit
    assert after["scores.safetensors"] != before["scores.safetensors"]


@pytest.mark.parametrize("verb", verbs("find", "curve", "reproduce"))
def test_a_read_only_folder_is_told_before_any_work(server, small_disk, verb):
    out = small_disk("size=1m,ro")
    assert server.run(*VERBS[verb], "--model", "no-such-model", "--out", out) == 1
    assert "Read-only file system. Choose a folder that can be written to" in server.said()


def test_a_full_stdout_is_told(server, tiny_folder):
    assert server.run(*VERBS["find"], "--model", tiny_folder, out="/dev/full") == 1
    assert "No space left on device" in server.said()


STOPS = {signal.SIGINT: (130, "stopped by the user"), signal.SIGTERM: (143, "stopped by SIGTERM")}


@pytest.mark.parametrize("when", [pytest.param("at the start", marks=pytest.mark.slow), "in the work"])
@pytest.mark.parametrize("how", some([*STOPS, signal.SIGKILL], [signal.SIGTERM]), ids=lambda how: how.name)
@pytest.mark.parametrize("verb", verbs("reproduce"))
def test_a_signal_ends_a_run_that_can_go_on(server, tiny_folder, tmp_path, verb, how, when):
    out = tmp_path / "out"
    command = (*VERBS[verb], "--model", tiny_folder, "--out", out)
    scores = "scores.safetensors" if verb == "find" else "scores/*.safetensors"
    begun = ".gradpath-lock" if when == "at the start" else scores
    child = server.start(*command, hold=[out / begun])
    until(lambda: server.held(child))
    os.kill(child, how)
    code = server.ask(wait=child)
    if how in STOPS:
        expected, says = STOPS[how]
        assert code == expected
        assert says in server.said()
        again = "start over" if verb == "find" else "continue where it stopped, if it has --out"
        assert f"no partial files were written; rerun to {again}." in server.said()
        assert not parts(out)
        assert not (out / ".gradpath-lock").exists()
    else:
        assert code == -how
    before = finished_files(out) if out.exists() else {}
    assert any(name.startswith("scores") for name in before) == (when == "in the work")
    assert server.run(*command) == 0, server.err.read_text()
    assert kept(before, out)
    assert not parts(out)


@pytest.mark.parametrize("verb", verbs("find"))
def test_two_runs_in_one_folder_do_not_meet(server, tiny_folder, tmp_path, verb):
    out = tmp_path / "out"
    command = (*VERBS[verb], "--model", tiny_folder, "--out", out)
    first = server.start(*command, hold=[out / ".gradpath-lock"])  # it is slow
    until(lambda: server.held(first))
    assert server.run(*command) == 1
    assert "is being written to by another run" in server.said()
    os.kill(first, signal.SIGKILL)
    server.ask(wait=first)
    assert server.run(*command) == 0, server.err.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_dies_ends_a_run_that_can_go_on(tiny_folder, tmp_path, who):
    out, whole = tmp_path / "out", tmp_path / "whole"
    arguments = (*LONGER, "--model", tiny_folder)
    command = torchrun(2, "-m", "gradpath", *arguments, "--out", out)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as run:
        until(lambda: any(out.glob("cells/*.json")))
        os.kill(rank_process(run.pid, who), signal.SIGKILL)
        said = run.communicate(timeout=LIMIT)[1]
    assert run.returncode == 1
    ours = [line for line in said.splitlines() if line.startswith("gradpath (process ")]
    assert len(ours) == 1, said
    assert "has ended" in ours[0]
    before = finished_files(out)
    again = torchrun(3, "-m", "gradpath", *arguments, "--out", out)
    subprocess.run(again, env=environment(), check=True, capture_output=True, timeout=LIMIT)
    assert kept(before, out)
    alone = gradpath_command(*arguments, "--out", whole)
    subprocess.run(alone, env=environment(), check=True, capture_output=True, timeout=LIMIT)
    assert (out / "faithfulness.csv").read_text() == (whole / "faithfulness.csv").read_text()


def rank_process(launcher: int, rank: int) -> int:
    """The process of a rank, by what torchrun set in its environment."""
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        if f"\0RANK={rank}\0" in Path(f"/proc/{child}/environ").read_text():
            return int(child)
    raise AssertionError(f"there is no rank {rank}")
