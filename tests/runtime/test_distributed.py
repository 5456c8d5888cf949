"""Several processes find what one finds: real ones, started as torchrun does, over loopback."""

from __future__ import annotations

import json
from typing import Any

import pytest
import rank_work
import torch
from covering import some
from launching import TESTS, finished, gradpath_command, torchrun
from tiny_folder import save_tiny

from gradpath.runtime import distributed


@pytest.fixture(scope="module")
def one():
    return rank_work.everything()


# Forked ranks import nothing again; those that torchrun starts, everything.
@pytest.fixture(scope="module", params=some(["2 forked", "3 by torchrun"], ["2 forked"]))
def many(request, server, tmp_path_factory):
    """What each of several ranks found."""
    n_ranks = int(request.param[0])
    out, work = tmp_path_factory.mktemp("ranks") / "found", str(TESTS / "rank_work.py")
    if request.param == "2 forked":
        assert server.run(out, n_ranks, script=work) == 0, server.err.read_text()
    else:
        done = finished(torchrun(n_ranks, work, out))
        assert done.returncode == 0, done.stderr
    return [json.loads(out.with_name(f"found-{rank}.json").read_text()) for rank in range(n_ranks)]


def test_ranks_find_what_one_process_finds(one, many):
    for found in many:
        assert found["numbers"].keys() == one.keys()
        for name, expected in one.items():
            got = torch.tensor(found["numbers"][name], dtype=torch.float64)
            size = float(torch.tensor(expected, dtype=torch.float64).abs().max())
            # Smaller batches round differently; by how much depends on the processor.
            rounding = 1e-5 if name == "fewer examples than ranks" else 1e-6
            assert got.tolist() == pytest.approx(expected, rel=0, abs=rounding * size), name


def test_all_ranks_hold_the_same_numbers(many):
    for other in many[1:]:
        assert other["numbers"] == many[0]["numbers"]


def test_what_does_not_belong_together_is_not_added_up(many):
    for found in many:
        said = found["refusals"]
        assert said["other examples"].startswith("UsageError: the")
        assert "different examples" in said["other examples"]
        assert "different models, circuits or options" in said["other options"]


def test_what_one_rank_fails_at_all_fail_at(many):
    for rank, found in enumerate(many):
        said = found["refusals"]["one fails"]
        assert "no such label" in said
        assert said.startswith("InputError" if rank == 1 else "GradpathError")


def test_a_rank_may_work_alone(many):
    assert [found["refusals"]["alone"] for found in many] == ["7"] + ["3"] * (len(many) - 1)


QUICK = ("--examples", 7, "--batch-size", 2, "--json")
GRID = ("--sparsities", "0.5,0.2", "--selection", "top,refined")
COMMANDS = {
    "find": ("find", "--task", "ioi", "--sparsity", 0.9, *QUICK),
    "all": ("reproduce", "all", "--tasks", "ioi", "--steps", "3-4", *GRID, *QUICK),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny-gpt2")


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_commands_write_and_print_once_what_one_process_does(folder, tmp_path, name):
    single, shared = tmp_path / "single", tmp_path / "shared"
    same(2, *COMMANDS[name], "--model", folder, out=(single, shared))
    files = {file.relative_to(single) for file in single.rglob("*") if file.is_file()}
    assert files == {file.relative_to(shared) for file in shared.rglob("*") if file.is_file()}
    if name == "find":
        same(3, "eval", single / "circuit.json", *QUICK)


def same(n_ranks: int, *arguments: Any, out: tuple[Any, ...] = ()) -> None:
    """Run a command on one process and on several: both have to print one object, with the same in it."""
    commands = [("--out", folder) for folder in out] or [(), ()]
    one = finished(gradpath_command(*arguments, *commands[0]))
    many = finished(torchrun(n_ranks, "-m", "gradpath", *arguments, *commands[1]))
    assert one.returncode == many.returncode == 0, one.stderr + many.stderr
    assert alike(json.loads(one.stdout), json.loads(many.stdout))


def alike(one: Any, other: Any) -> bool:
    """Whether two records say the same, but for when, where and how long."""
    passing = {"times", "command", "commit", "files", "platform", "out"}
    if isinstance(one, dict):
        names = {name for name in one if name not in passing and "seconds" not in name and name != "ratio"}
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in names)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float):
        return one == pytest.approx(other, rel=1e-5, abs=1e-6)
    return one == other


def test_a_process_on_its_own_is_the_first_of_one():
    assert (distributed.rank(), distributed.world()) == (0, 1)
    assert distributed.on_first_rank(lambda: 3) == 3
    values = torch.ones(2)
    assert distributed.all_sum(values) is values
    assert distributed.local_device() is None
