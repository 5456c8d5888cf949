"""Differences between two ways to a circuit."""

from __future__ import annotations

import pytest
import torch

from gradpath.evaluation.result import Result, distance_difference, error_difference
from gradpath.grid.bench import Bench, Store
from gradpath.grid.faithfulness import comparison, jobs
from gradpath.grid.jobs import circuit_cell, measured, run_jobs
from gradpath.grid.request import Request, parse_methods


def cells(off, n=40, seed=0):
    """Two sizes of a circuit whose examples are off by ``off`` and a little noise of their own."""
    generator = torch.Generator().manual_seed(seed)
    clean, corrupted = 3 + torch.randn(n, generator=generator), torch.randn(n, generator=generator)
    noise = 0.1 * torch.randn(2, n, generator=generator)
    return [measured(Result(clean, corrupted, clean - off * (i + 1) + noise[i], 10, 10)) for i in range(2)]


def test_the_difference_is_that_of_the_mean_figures():
    ours, theirs = cells(0.5), cells(1.0, seed=0)
    found = error_difference(ours, theirs)
    mean = [sum(cell["error"] for cell in side) / 2 for side in (ours, theirs)]
    assert found.value == pytest.approx(mean[0] - mean[1], abs=1e-6)
    away = [sum(abs(1 - cell["faithfulness"]) for cell in side) / 2 for side in (ours, theirs)]
    assert distance_difference(ours, theirs).value == pytest.approx(away[0] - away[1], abs=1e-6)


def test_a_better_way_is_clear_and_an_equal_one_is_not():
    better = error_difference(cells(0.5), cells(1.0))
    assert better.low <= better.value <= better.high < 0
    assert better.is_clear
    same = error_difference(cells(0.5), cells(0.5))
    assert (same.value, same.low, same.high) == (0, 0, 0)
    assert not same.is_clear


def test_resampling_the_same_examples_on_both_sides_sees_what_two_intervals_hide():
    # Examples differ more from each other than the two ways do.
    ours, theirs = cells(0.5), cells(0.55)
    assert ours[0]["error_interval"][1] > theirs[0]["error_interval"][0]
    assert error_difference(ours, theirs).is_clear


def measured_bench(tiny, folder, methods, hows) -> Bench:
    request = Request(tasks=("ioi",), sparsities=(0.8, 0.5), examples=4, methods=parse_methods(methods), hows=hows)
    bench = Bench(tiny, request, Store(folder))
    run_jobs(bench, jobs(bench))
    return bench


def test_every_way_is_compared_with_eap_ig_by_the_first_selection(tiny, tmp_path):
    bench = measured_bench(tiny, tmp_path, "eap,eap-ig", ("top", "refined"))
    text = comparison(bench)
    assert text is not None
    assert "minus those of eap-ig, top" in text
    error, distance = (table.splitlines() for table in text.split("\n\n")[2:])
    assert error[0] == "| Error | eap, top | eap-ig, refined | eap, refined |"
    assert distance[0].replace("\\|", "|").startswith("| |1 - NFS| | eap, top |")
    sides = [
        [circuit_cell(bench, "ioi", method, how, bench.edges(s)) for s in (0.8, 0.5)]
        for method, how in ((parse_methods("eap")[0], "top"), (parse_methods("eap-ig")[0], "top"))
    ]
    assert f"{error_difference(*sides).value:+.3f} [" in error[2].split("|")[2]
    assert f"{distance_difference(*sides).value:+.3f} [" in distance[2].split("|")[2]


def test_one_way_alone_is_compared_with_nothing(tiny, tmp_path):
    assert comparison(measured_bench(tiny, tmp_path, "eap", ("top",))) is None
