"""A run that is killed and started again repeats no finished cell, loses none, and gives the same table."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.colors import to_hex

from gradpath.evaluation import PASSES_PER_CIRCUIT, evaluate_many
from gradpath.grid import jobs as grid
from gradpath.grid.bench import Bench, Store
from gradpath.grid.faithfulness import jobs, outcome
from gradpath.grid.jobs import CellJob, run_jobs
from gradpath.grid.request import MethodSpec, Request, parse_methods
from gradpath.paper import steps
from gradpath.report.style import GREY
from gradpath.scores import load_scores


class Watching:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.total, self.done, self.titles = 0.0, 0.0, list[str]()

    def begin(self, total: float) -> None:
        self.total = total

    def start(self, title: str) -> None:
        self.titles.append(title)

    def advance(self, done: float) -> None:
        self.done += done


def test_a_heat_map_that_goes_on_rounds_as_one_that_was_not_stopped(tiny, tmp_path):
    request = Request(tasks=("ioi",), sparsities=(0.5,), steps=(2, 3, 4), examples=4)
    bench = Bench(tiny, request, Store(tmp_path))
    run_jobs(bench, steps.jobs(bench))
    files = sorted((tmp_path / "scores").iterdir())
    values = {file: load_scores(file).values for file in files}
    assert len(files) == 3
    for lost in (files[:1], files[1:], files[:2]):
        for file in lost:
            file.unlink()
        for file in (tmp_path / "cells").iterdir():
            file.unlink()
        run_jobs(bench, steps.jobs(bench))
        for file in files:
            assert load_scores(file).values.equal(values[file])


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
        bench, watch = Bench(tiny, request, Store(folder)), Watching()
        run_jobs(bench, steps.jobs(bench), watch)
        assert watch.done == pytest.approx(watch.total)
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


def test_nothing_is_left_of_what_is_finished(tiny, tmp_path):
    request = Request(tasks=("ioi",), sparsities=(0.5, 0.8), examples=4)
    bench, first, second = Bench(tiny, request, Store(tmp_path)), Watching(), Watching()
    run_jobs(bench, jobs(bench), first)
    assert first.titles == [
        "ioi: eap",
        "ioi: eap-ig",
        "ioi: eap-gp+stride=unit",
        "ioi: eap",
    ]  # the last for random circuits
    assert first.done == pytest.approx(first.total)
    run_jobs(bench, jobs(bench), second)
    assert (second.titles, second.total) == ([], 0)


def test_only_the_missing_cells_are_computed(tiny, tmp_path):
    request = Request(tasks=("ioi",), sparsities=(0.5, 0.8), examples=4)
    bench = Bench(tiny, request, Store(tmp_path))
    run_jobs(bench, jobs(bench))
    cells = sorted((tmp_path / "cells").iterdir())
    before = {file: file.stat().st_mtime_ns for file in cells}
    content = cells[0].read_bytes()
    cells[0].unlink()
    watch = Watching()
    run_jobs(bench, jobs(bench), watch)
    assert len(watch.titles) == 1
    assert cells[0].read_bytes() == content
    assert all(file.stat().st_mtime_ns == before[file] for file in cells[1:])


def test_scores_are_computed_once_for_all_experiments(everything):
    keys = [file.name for file in (everything.out / "scores").iterdir()]
    # Two tasks: eap, eap-ig and eap-gp with 5 steps, and the heat map's 3 and 4 steps.
    assert len(keys) == 2 * (3 + 2)


def test_the_bar_reaches_its_end_when_work_was_shared(tiny, tmp_path):
    bench, watch = Bench(tiny, Request(), Store(tmp_path)), Watching()
    cheap = CellJob("a", {"kind": "a"}, 10.0, lambda advance: {"value": advance(25.0)})
    run_jobs(bench, [cheap], watch)
    assert watch.done == watch.total == 10


def test_the_bar_foresees_shared_scores_and_cells_once(tiny, tmp_path):
    request = Request(tasks=("ioi",), sparsities=(0.5,), steps=(2, 3), examples=4, hows=("top",))
    bench, once, twice = Bench(tiny, request, Store(tmp_path)), Watching(), Watching()
    run_jobs(Bench(tiny, request, Store(tmp_path / "other")), jobs(bench), once)
    run_jobs(bench, [*jobs(bench), *jobs(bench)], twice)
    assert once.total == twice.total == pytest.approx(twice.done)
    heat, walk = Watching(), MethodSpec("eap-gp", (("stride", "unit"), ("steps", 3))).cost(tiny)
    run_jobs(bench, steps.jobs(bench), heat)
    assert heat.total == pytest.approx(4 * walk + 4 * (2 + 2 * PASSES_PER_CIRCUIT))


def test_other_settings_in_the_same_folder_are_as_in_a_fresh_one(run, tiny_folder, tmp_path):
    def table(out: Path, sparsities: str) -> tuple[bytes, str]:
        asked = ("--tasks", "ioi", "--examples", 4, "--methods", "eap", "--how", "top", "--sparsities", sparsities)
        ran = run("reproduce", "faithfulness", "--model", tiny_folder, *asked, "--out", out)
        assert ran.code == 0, ran.err
        return (out / "faithfulness.csv").read_bytes(), ran.err

    first, _ = table(tmp_path / "same", "0.5")
    second, said = table(tmp_path / "same", "0.7")
    assert "was made with other settings" in said
    assert second == table(tmp_path / "fresh", "0.7")[0] != first
    assert table(tmp_path / "same", "0.5")[0] == first


def test_a_group_that_was_half_kept_rounds_as_one_that_was_not(tiny, tmp_path):
    """Whichever cells of a group a kill left behind, the others come out the same to the last digit."""
    request = Request(tasks=("ioi",), sparsities=(0.9, 0.8, 0.7, 0.6, 0.4), examples=5)
    bench = Bench(tiny, request, Store(tmp_path))
    run_jobs(bench, jobs(bench))
    whole = {file: file.read_bytes() for file in sorted((tmp_path / "cells").iterdir())}
    for kept in (2, 5):
        for i, file in enumerate(whole):
            if i % 6 >= kept:
                file.unlink()
        run_jobs(bench, jobs(bench))
        assert {file: file.read_bytes() for file in sorted((tmp_path / "cells").iterdir())} == whole


def test_every_curve_has_random_circuits_of_the_same_sizes_beside_it(tiny, tmp_path):
    request = Request(tasks=("ioi",), methods=parse_methods("eap"), hows=("top",), sparsities=(0.2, 0.8), examples=4)
    bench = Bench(tiny, request, Store(tmp_path))
    run_jobs(bench, jobs(bench))
    made = outcome(bench)
    rows = made.facts["random"]
    assert [row["edges_asked"] for row in rows] == [row["edges_asked"] for row in made.rows]
    assert all(row["faithfulness_low"] <= row["faithfulness"] <= row["faithfulness_high"] for row in rows)
    assert rows[0]["faithfulness_low"] < rows[0]["faithfulness_high"]
    assert "## Random circuits" in made.text
    [ax] = made.figures["faithfulness"]().axes
    assert any(to_hex(band.get_facecolor()[0]) == GREY for band in ax.collections)
