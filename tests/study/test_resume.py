"""A run that is killed and started again repeats no finished cell, loses none, and gives the same table."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.colors import to_hex

from gradpath.evaluation import evaluate_many
from gradpath.paper import steps
from gradpath.recipe import Recipe
from gradpath.report.style import GREY
from gradpath.study import Study
from gradpath.study import bench as bench_module
from gradpath.study.bench import Bench, Store
from gradpath.study.faithfulness import outcome

SIZES = (("sparsity", 0.5), ("sparsity", 0.8))
STUDY = Study(Recipe(examples=4), ("ioi",), sizes=SIZES, steps=(2, 3, 4))


@pytest.fixture
def sizes(monkeypatch):
    """How many circuits were evaluated together, each time."""
    counts = list[int]()

    def counting(prepared, circuits):
        counts.append(len(circuits))
        return evaluate_many(prepared, circuits)

    monkeypatch.setattr(bench_module, "evaluate_many", counting)
    return counts


def circuit_cells(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in (folder / "cells").glob("circuit-*")}


def test_a_kill_keeps_the_groups_that_are_finished(tiny, tmp_path, monkeypatch):
    bench, left = Bench(tiny, STUDY, Store(tmp_path)), [4]

    def dying(prepared, circuits):
        if not left:
            raise KeyboardInterrupt
        assert len(circuits) == left.pop()
        return evaluate_many(prepared, circuits)

    monkeypatch.setattr(bench_module, "TOGETHER", 4)
    monkeypatch.setattr(bench_module, "evaluate_many", dying)
    with pytest.raises(KeyboardInterrupt):
        steps.outcome(bench)
    assert len(circuit_cells(tmp_path)) == 4
    left.append(2)
    assert len(steps.outcome(bench).rows) == len(circuit_cells(tmp_path)) == 6


def test_only_the_missing_cells_are_computed_and_agree_with_those_of_a_whole_run(tiny, tmp_path, sizes):
    bench = Bench(tiny, STUDY, Store(tmp_path))
    whole = outcome(bench)
    assert sum(sizes) == len(circuit_cells(tmp_path)) == 3 * 2 * 2 + 5 * 2
    before = circuit_cells(tmp_path)
    sizes.clear()
    assert outcome(bench).rows == whole.rows
    assert sizes == []
    first, *others = sorted(before)
    (tmp_path / "cells" / first).unlink()
    again = outcome(bench)
    assert sizes == [1]
    assert {name: circuit_cells(tmp_path)[name] for name in others} == {name: before[name] for name in others}
    for row, other in zip(again.rows, whole.rows, strict=True):
        assert row["faithfulness"] == pytest.approx(other["faithfulness"], abs=1e-5)
        assert row["error"] == pytest.approx(other["error"], abs=1e-5)


def test_an_order_that_runs_the_model_is_kept(tiny, tmp_path, monkeypatch):
    study = Study(Recipe(examples=4), ("ioi",), ("eap",), ("refined",), SIZES)
    bench = Bench(tiny, study, Store(tmp_path))
    whole = bench.rows(list(study.recipes("ioi", SIZES)))
    for cell in (tmp_path / "cells").glob("circuit-*"):
        cell.unlink()
    monkeypatch.setattr("gradpath.selection.refine.Descent", None)  # it is not called again
    again = bench.rows(list(study.recipes("ioi", SIZES)))
    assert [row["edges_kept"] for row in again] == [row["edges_kept"] for row in whole]


def test_a_circuit_without_a_size_is_that_of_find(tiny, tmp_path):
    study = Study(Recipe(examples=4), ("ioi",), ("eap",), ("acdc+threshold=0.05", "top"), (("", None),))
    bench = Bench(tiny, study, Store(tmp_path))
    own, searched = recipes = list(study.recipes("ioi", study.sizes))
    rows = bench.rows(recipes)
    assert rows[0]["edges_requested"] == bench.order(own, {None}).size
    train = bench.task(searched, "train")
    order = bench.order(searched, {None})
    from gradpath.prepared import PreparedBatches
    from gradpath.selection.faithful import smallest_faithful

    assert rows[1]["edges_requested"] == smallest_faithful(PreparedBatches(tiny, train), order, 0.85)


def test_scores_are_computed_once_for_all_experiments(everything):
    keys = [file.name for file in (everything.out / "scores").iterdir()]
    # Two tasks: eap, eap-ig and eap-gp with 5 steps, and the heat map's 3 and 4 steps.
    assert len(keys) == 2 * (3 + 2)


def test_every_curve_has_random_circuits_of_the_same_sizes_beside_it(tiny, tmp_path):
    sizes = (("sparsity", 0.2), ("sparsity", 0.8))
    study = Study(Recipe(examples=4), ("ioi",), ("eap",), ("top",), sizes)
    made = outcome(Bench(tiny, study, Store(tmp_path)))
    rows = made.facts["random"]
    assert [row["edges_requested"] for row in rows] == [row["edges_requested"] for row in made.rows]
    assert all(row["faithfulness_low"] <= row["faithfulness"] <= row["faithfulness_high"] for row in rows)
    assert rows[0]["faithfulness_low"] < rows[0]["faithfulness_high"]
    assert "random circuits" in made.text
    [ax] = made.figures["faithfulness"]().axes
    assert any(to_hex(band.get_facecolor()[0]) == GREY for band in ax.collections)
