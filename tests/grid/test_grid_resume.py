"""A run that is killed and started again repeats no finished cell, loses none, and gives the same table."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.colors import to_hex

from gradpath.evaluation import evaluate_many
from gradpath.grid import jobs as grid
from gradpath.grid.bench import Bench, Store
from gradpath.grid.faithfulness import jobs, outcome
from gradpath.grid.jobs import CircuitJob, run_jobs
from gradpath.grid.request import Request, parse_methods
from gradpath.paper import steps
from gradpath.report.style import GREY


@pytest.fixture
def ran(monkeypatch):
    """The titles of the jobs that were run."""
    titles, run = list[str](), CircuitJob.run

    def noted(self, bench):
        titles.append(self.title)
        run(self, bench)

    monkeypatch.setattr(CircuitJob, "run", noted)
    return titles


def test_the_circuits_of_all_numbers_of_steps_share_set_ups(tiny, tmp_path, monkeypatch):
    """In groups, each kept when it is done: the same cells as with a set-up for every number of steps."""
    request = Request(tasks=("ioi",), sparsities=(0.5, 0.8), steps=(2, 3, 4), examples=4)

    def cells(folder: Path, together: int) -> tuple[dict[str, bytes], list[int]]:
        sizes = []

        def counting(model, circuits, *rest, **options):
            sizes.append(len(circuits))
            return evaluate_many(model, circuits, *rest, **options)

        monkeypatch.setattr(grid, "TOGETHER", together)
        monkeypatch.setattr(grid, "evaluate_many", counting)
        bench = Bench(tiny, request, Store(folder))
        run_jobs(bench, steps.jobs(bench))
        return {file.name: file.read_bytes() for file in (folder / "cells").iterdir()}, sizes

    apart, one_by_one = cells(tmp_path / "apart", 2)
    groups, in_groups = cells(tmp_path / "groups", 4)
    assert (one_by_one, in_groups) == ([2, 2, 2], [4, 2])
    assert apart == groups


def test_a_kill_keeps_the_groups_that_are_finished(tiny, tmp_path, monkeypatch):
    request = Request(tasks=("ioi",), sparsities=(0.5, 0.8), steps=(2, 3, 4), examples=4)
    bench = Bench(tiny, request, Store(tmp_path))
    left = [4]

    def dying(model, circuits, *rest, **options):
        if not left:
            raise KeyboardInterrupt
        assert len(circuits) == left.pop()
        return evaluate_many(model, circuits, *rest, **options)

    monkeypatch.setattr(grid, "TOGETHER", 4)
    monkeypatch.setattr(grid, "evaluate_many", dying)
    with pytest.raises(KeyboardInterrupt):
        run_jobs(bench, steps.jobs(bench))
    assert len(list((tmp_path / "cells").iterdir())) == 4
    left.append(2)
    run_jobs(bench, steps.jobs(bench))
    assert len(list((tmp_path / "cells").iterdir())) == 6


def test_nothing_is_left_of_what_is_finished(tiny, tmp_path, ran):
    request = Request(tasks=("ioi",), sparsities=(0.5, 0.8), examples=4)
    bench = Bench(tiny, request, Store(tmp_path))
    run_jobs(bench, jobs(bench))
    assert ran == ["ioi: eap", "ioi: eap-ig", "ioi: eap-gp+stride=unit", "ioi: eap"]  # the last for random circuits
    ran.clear()
    run_jobs(bench, jobs(bench))
    assert ran == []


def test_only_the_missing_cells_are_computed(tiny, tmp_path, ran):
    request = Request(tasks=("ioi",), sparsities=(0.5, 0.8), examples=4)
    bench = Bench(tiny, request, Store(tmp_path))
    run_jobs(bench, jobs(bench))
    cells = sorted((tmp_path / "cells").iterdir())
    before = {file: file.stat().st_mtime_ns for file in cells}
    content = cells[0].read_bytes()
    cells[0].unlink()
    ran.clear()
    run_jobs(bench, jobs(bench))
    assert len(ran) == 1
    assert cells[0].read_bytes() == content
    assert all(file.stat().st_mtime_ns == before[file] for file in cells[1:])


def test_scores_are_computed_once_for_all_experiments(everything):
    keys = [file.name for file in (everything.out / "scores").iterdir()]
    # Two tasks: eap, eap-ig and eap-gp with 5 steps, and the heat map's 3 and 4 steps.
    assert len(keys) == 2 * (3 + 2)


def test_shared_cells_are_measured_once(tiny, tmp_path, ran):
    request = Request(tasks=("ioi",), sparsities=(0.5,), examples=4, hows=("top",))
    bench = Bench(tiny, request, Store(tmp_path))
    run_jobs(bench, [*jobs(bench), *jobs(bench)])
    assert len(ran) == len(jobs(bench))


@pytest.mark.slow
def test_other_settings_in_the_same_folder_are_as_in_a_fresh_one(run, tiny_folder, tmp_path):
    def table(out: Path, sparsities: str) -> tuple[bytes, str]:
        asked = (
            "--tasks",
            "ioi",
            "--examples",
            4,
            "--methods",
            "eap",
            "--selection",
            "top",
            "--sparsities",
            sparsities,
        )
        ran = run("reproduce", "faithfulness", "--model", tiny_folder, *asked, "--out", out)
        assert ran.code == 0, ran.err
        return (out / "faithfulness.csv").read_bytes(), ran.err

    first, _ = table(tmp_path / "same", "0.5")
    second, said = table(tmp_path / "same", "0.7")
    assert "was made with other settings" in said
    assert second == table(tmp_path / "fresh", "0.7")[0] != first
    assert table(tmp_path / "same", "0.5")[0] == first


def test_every_curve_has_random_circuits_of_the_same_sizes_beside_it(tiny, tmp_path):
    request = Request(tasks=("ioi",), methods=parse_methods("eap"), hows=("top",), sparsities=(0.2, 0.8), examples=4)
    bench = Bench(tiny, request, Store(tmp_path))
    run_jobs(bench, jobs(bench))
    made = outcome(bench)
    rows = made.facts["random"]
    assert [row["edges_requested"] for row in rows] == [row["edges_requested"] for row in made.rows]
    assert all(row["faithfulness_low"] <= row["faithfulness"] <= row["faithfulness_high"] for row in rows)
    assert rows[0]["faithfulness_low"] < rows[0]["faithfulness_high"]
    assert "## Random circuits" in made.text
    [ax] = made.figures["faithfulness"]().axes
    assert any(to_hex(band.get_facecolor()[0]) == GREY for band in ax.collections)
