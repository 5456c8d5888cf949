"""The report of ``curve``: what its page shows, and which circuit it opens on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from gradpath.evaluation.mib import Areas
from gradpath.report import Chosen, CurvePoint, MethodRun, Report, write
from gradpath.report.data import CHANCE, IN_PAGE, READABLE, SAVED
from gradpath.report.payload import LIMIT
from gradpath.study.bench import Bench, Row
from gradpath.study.faithfulness import RANDOM
from gradpath.study.outcome import Outcome

COLUMNS = ("edges_requested", "edges_kept", "faithfulness", "faithfulness_low", "faithfulness_high", "error")


def write_report(bench: Bench, outcome: Outcome, folder: Path, command: str) -> list[Path]:
    """Write ``report.html``: all methods side by side, opened on the last circuit of the first of them."""
    rows = outcome.rows
    runs = _runs(bench, outcome)
    report = Report(
        title=f"{rows[0]['task']} in {bench.model.name}",
        model=bench.model.name,
        task=rows[0]["task"],
        runs=runs,
        chosen=_chosen(rows, runs[0]),
        command=command,
        about={"examples measured": rows[0]["examples"], "seed": rows[0]["seed"]},
    )
    write(report, folder / "report.html")
    return [folder / "report.html"]


def _point(selection: str, row: Row) -> CurvePoint:
    return CurvePoint(selection, *(row[name] for name in COLUMNS))


def _runs(bench: Bench, outcome: Outcome) -> list[MethodRun]:
    """The scores, the points of the curve and the circuits of every method."""
    rows, study, selection = outcome.rows, bench.study, outcome.rows[0]["selection"]
    [task] = study.task_names
    area_names = [field.name for field in fields(Areas)]
    sizes, runs = [row["edges_requested"] for row in outcome.facts["random"]], list[MethodRun]()
    chance = [study.at(task, study.methods[0]).changed(selection=name, edges=n) for name in RANDOM for n in sizes]
    chance_points = [_point(CHANCE, row) for row in bench.rows(chance)]
    for method in study.methods:
        points = [_point(row["selection"], row) for row in rows if row["method"] == method]
        mib_rows = [row for row in outcome.facts.get("mib", ()) if row["method"] == method]
        areas = {row["selection"]: Areas(*(row[name] for name in area_names)) for row in mib_rows}
        recipes = list(study.recipes(task, bench.sizes(task), [method], [selection]))
        run = MethodRun(bench.scores(recipes[0]), points + chance_points, name=method, areas=areas)
        if selection not in IN_PAGE:
            order = bench.order(recipes[0], {bench.edge_count(recipe) for recipe in recipes})
            run = replace(run, circuit=order.circuit(len(order), prune=False), smallest=order.smallest)
        runs.append(run)
    return runs


def _chosen(rows: Sequence[Row], run: MethodRun) -> Chosen:
    """The circuit that the page opens with."""
    selection = rows[0]["selection"]
    shown = selection if selection in IN_PAGE else SAVED if run.circuit is not None else "top"
    # A page of half of all edges would be large and would show nothing.
    sizes = [row["edges_requested"] for row in rows if 0 < row["edges_requested"] <= LIMIT] or [LIMIT]
    return Chosen(edges=max((n for n in sizes if n <= READABLE), default=min(sizes)), how=shown, found=False)
