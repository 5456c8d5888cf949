"""Several processes find what one finds: real ones, started by torchrun, over loopback."""

from __future__ import annotations

import json

import pytest
import torch

import rank_work
from gradpath import ranks
from launching import TESTS, finished, torchrun


@pytest.fixture(scope="module")
def one():
    return rank_work.everything()


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def many(request, tmp_path_factory):
    """What each of several ranks found."""
    out = tmp_path_factory.mktemp("ranks") / "found"
    done = finished(torchrun(request.param, TESTS / "rank_work.py", out))
    assert done.returncode == 0, done.stderr
    return [json.loads(out.with_name(f"found-{rank}.json").read_text()) for rank in range(request.param)]


def test_ranks_find_what_one_process_finds(one, many):
    for found in many:
        assert found["numbers"].keys() == one.keys()
        for name, expected in one.items():
            got = torch.tensor(found["numbers"][name], dtype=torch.float64)
            size = float(torch.tensor(expected, dtype=torch.float64).abs().max())
            assert got.tolist() == pytest.approx(expected, rel=0, abs=1e-6 * size), name


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
        assert said.startswith("ValueError" if rank == 1 else "GradpathError")


def test_a_rank_may_work_alone(many):
    assert [found["refusals"]["alone"] for found in many] == ["7"] + ["3"] * (len(many) - 1)


def test_a_process_on_its_own_is_the_first_of_one():
    assert (ranks.rank(), ranks.world()) == (0, 1)
    assert ranks.from_first(lambda: 3) == 3
    values = torch.ones(2)
    assert ranks.add_up(values) is values
    assert ranks.local_device() is None
