"""The report of ``curve``: what its page shows, and which circuit it opens on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import product
from pathlib import Path

from gradpath.evaluation.mib import Areas
from gradpath.grid.bench import Bench
from gradpath.grid.experiment import Outcome, Row
from gradpath.grid.faithfulness import RANDOM
from gradpath.grid.jobs import circuit_cell
from gradpath.report import Chosen, CurvePoint, MethodRun, Report, write
from gradpath.report.data import CHANCE, IN_PAGE, READABLE, SAVED
from gradpath.report.payload import LIMIT


def write_report(bench: Bench, outcome: Outcome, folder: Path, command: str) -> list[Path]:
    """Write ``report.html``: all methods side by side, opened on the last circuit of the first of them.

    Args:
        bench: The model and the request.
        outcome: The measured circuits.
        folder: The folder to write to.
        command: The command line, for the page.

    Returns:
        The files written.
    """
    rows, request = outcome.rows, bench.request
    runs = _runs(bench, outcome)
    report = Report(
        title=f"{rows[0]['task']} in {bench.model.name}",
        model=bench.model.name,
        task=rows[0]["task"],
        runs=runs,
        chosen=_chosen(rows, runs[0]),
        command=command,
        about={"examples measured": rows[0]["examples"], "seed": request.seed},
    )
    write(report, folder / "report.html")
    return [folder / "report.html"]


def _runs(bench: Bench, outcome: Outcome) -> list[MethodRun]:
    """The scores, the points of the curve and the circuits of every method."""
    rows, request = outcome.rows, bench.request
    task, how = rows[0]["task"], rows[0]["how"]
    names = ["how", "edges_requested", "edges_kept", "faithfulness", "faithfulness_low", "faithfulness_high", "error"]
    area_names = [field.name for field in fields(Areas)]
    chance, runs = _random_points(bench, outcome), []
    for method in request.methods:
        label, scores = method.label, bench.scores(task, method)
        points = [CurvePoint(*(row[name] for name in names)) for row in rows if row["method"] == label]
        mib_rows = [row for row in outcome.facts.get("mib", ()) if row["method"] == label]
        areas = {row["how"]: Areas(*(row[name] for name in area_names)) for row in mib_rows}
        run = MethodRun(scores, points + chance, name=label, areas=areas)
        if how not in IN_PAGE and (order := bench.order(scores, how)) is not None:
            run = replace(run, circuit=order[0], smallest=order[1])
        runs.append(run)
    return runs


def _random_points(bench: Bench, outcome: Outcome) -> list[CurvePoint]:
    task, method, points = outcome.rows[0]["task"], bench.request.methods[0], []
    for how, row in product(RANDOM, outcome.facts["random"]):
        cell = circuit_cell(bench, task, method, how, row["edges_requested"])
        low, high = cell["faithfulness_interval"] or (None, None)
        numbers = cell["edges_kept"], cell["faithfulness"], low, high, cell["error"]
        points.append(CurvePoint(CHANCE, row["edges_requested"], *numbers))
    return points


def _chosen(rows: Sequence[Row], run: MethodRun) -> Chosen:
    """The circuit that the page opens with."""
    how = rows[0]["how"]
    shown = how if how in IN_PAGE else SAVED if run.circuit is not None else "top"
    # A page of half of all edges would be large and would show nothing.
    sizes = [row["edges_requested"] for row in rows if 0 < row["edges_requested"] <= LIMIT] or [LIMIT]
    return Chosen(edges=max((n for n in sizes if n <= READABLE), default=min(sizes)), how=shown, found=False)
