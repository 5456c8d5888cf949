"""Differences between two ways to a circuit."""

from __future__ import annotations

import pytest
import torch

from gradpath.evaluation.result import Result, distance_difference, error_difference
from gradpath.recipe import Recipe
from gradpath.study import Study
from gradpath.study.bench import Bench, Store, cell_of
from gradpath.study.faithfulness import outcome


def cells(off, n=40, seed=0):
    """Two sizes of a circuit whose examples are off by ``off`` and a little noise of their own."""
    generator = torch.Generator().manual_seed(seed)
    clean, corrupted = 3 + torch.randn(n, generator=generator), torch.randn(n, generator=generator)
    noise = 0.1 * torch.randn(2, n, generator=generator)
    return [cell_of(Result(clean, corrupted, clean - off * (i + 1) + noise[i], 10, 10)) for i in range(2)]


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


SIZES = (("sparsity", 0.8), ("sparsity", 0.5))


def bench_of(tiny, folder, methods, selections) -> Bench:
    recipe = Recipe(examples=4)
    return Bench(tiny, Study(recipe, ("ioi",), methods, selections, SIZES), Store(folder))


def test_every_way_is_compared_with_eap_ig_by_the_first_selection(tiny, tmp_path):
    bench = bench_of(tiny, tmp_path, ("eap", "eap-ig"), ("top", "refined"))
    made = outcome(bench)
    ways = [(row["method"], row["selection"]) for row in made.facts["compared"]]
    assert ways == [("eap", "top"), ("eap-ig", "refined"), ("eap", "refined")]
    sides = [bench.measure(list(bench.study.recipes("ioi", SIZES, [method], ["top"]))) for method in ("eap", "eap-ig")]
    first = made.facts["compared"][0]
    assert first["error_difference"] == error_difference(*sides).value
    assert first["distance_difference"] == distance_difference(*sides).value
    section = made.text.partition("## Compared with eap-ig, top")[2].partition("##")[0]
    assert f"eap, top | {first['error_difference']:+.3f} [" in section.replace("**", "")


def test_one_way_alone_is_compared_with_nothing(tiny, tmp_path):
    made = outcome(bench_of(tiny, tmp_path, ("eap",), ("top",)))
    assert made.facts["compared"] == []
    assert "Compared" not in made.text
