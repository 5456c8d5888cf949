"""``gradpath curve``: faithfulness against sparsity on one task, for several methods."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradpath import defaults
from gradpath.cli import options as opt
from gradpath.cli.progress import GridBar, Screen, print_result
from gradpath.cli.reproduce import as_json_object, request_of

if TYPE_CHECKING:
    from gradpath.grid.bench import Bench
    from gradpath.grid.output import Outcome, Row
    from gradpath.grid.request import MethodSpec
    from gradpath.grid.runner import Written
    from gradpath.report import Chosen, CurvePoint, MethodRun


@click.command(name="curve")
@opt.model_option
@opt.task_option
@opt.data_option
@opt.metric_option
@opt.grid_options(methods=defaults.METHOD, how=defaults.SELECTION, data=True)
@opt.ablation_option(defaults.ABLATION)
@opt.plugin_option
@opt.out_option("Write the table, the figure, a report and all measurements to this folder.")
@opt.json_option
@opt.load_options
def command(
    task: str | None, data: Path | None, how: str | None, out: Path | None, as_json: bool, **given: Any
) -> None:
    """Measure circuits of many sizes, found by several methods on one task.

    With --out, an interrupted run continues where it stopped.

    \b
    gradpath curve --model smollm2 --task ioi --methods eap,eap-ig,eap-gp --out out/ioi-curve
    gradpath curve --task sva --methods eap-gp,eap-gp+stride=unit --sparsities 0.99,0.975 --json
    gradpath curve --task ioi --how refined,acdc+among=0.1+threshold=0.01,0.03,0.1 --out out/acdc
    """
    opt.check_folder(out)
    from gradpath.grid import faithfulness
    from gradpath.grid.bench import Bench
    from gradpath.grid.runner import Experiment, Written, reproduce
    from gradpath.grid.store import Store
    from gradpath.paper import published
    from gradpath.pipeline.notices import notices
    from gradpath.runtime.files import lock_folder

    loading = opt.pick(opt.ModelOptions, given)
    name = task or ("custom" if data else defaults.TASK)
    how = opt.grid_selections(how, given["grid"], defaults.SELECTION)
    request = request_of(tasks=name, how=how, data=data, **given)

    def outcome(bench: Bench) -> Outcome:
        made = faithfulness.outcome(bench, "curve")
        return made if out is None else replace(made, files=lambda draft: [_write_report(bench, made, draft)])

    curve = Experiment("curve", faithfulness.jobs, outcome)
    with ExitStack() as stack:
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradpath-")))
        stack.enter_context(lock_folder(folder))
        model = loading.load()
        bench = Bench(model, request, Store(folder), published(model))
        for line in notices(*(bench.task(name, split) for split in ("train", "test"))) if data else ():
            Screen().note(line)
        with GridBar() as bar:
            written = reproduce(bench, [curve], folder, command=opt.command_line(), watch=bar, note=Screen().note)
        if out is None:
            written = [Written(one.outcome, one.record, []) for one in written]
        print_result(as_json_object(written) if as_json else _text(written[0], out))


def _text(written: Written, out: Path | None) -> str:
    """The measurements for a terminal: a table for each method and selection, and where the rest is."""
    from gradpath.grid.faithfulness import examples_of
    from gradpath.grid.output import grouped

    rows, areas = written.outcome.rows, written.outcome.facts.get("mib", ())
    first = rows[0]
    lines = [f"{first['task']}: {examples_of(first)}"]
    for (method, how), group in grouped(rows, "method", "how").items():
        own_size = "threshold" in group[0]
        first_column = f"{'threshold':>10}" if own_size else ""
        heading = f"{first_column}{'sparsity':>10}{'edges':>10}{'kept':>10}  {'faithfulness [95%]':<22}error"
        lines += ["", f"{method}, {how}", heading]
        for row in group:
            low, high = (f"{100 * row[f'faithfulness_{end}']:.0f}" for end in ("low", "high"))
            share = f"{100 * row['faithfulness']:.1f}% [{low}, {high}]"
            sizes = f"{row['threshold']:>10g}" if own_size else ""
            sizes += f"{row['sparsity']:>10.2%}{row['edges_asked']:>10,}{row['edges_kept']:>10,}"
            lines.append(f"{sizes}  {share:<22}{row['error']:.3f}")
        own = [row for row in areas if (row["method"], row["how"]) == (method, how)]
        lines += [f"  MIB: CPR {row['cpr']:.3f}, CMD {row['cmd']:.3f}" for row in own]
    ends = [100 * row[f"faithfulness_{end}"] for row in written.outcome.facts["random"] for end in ("low", "high")]
    lines += ["", f"Random circuits of the same sizes: faithfulness {min(ends):.1f}% to {max(ends):.1f}%"]
    for row in written.outcome.facts.get("mib_random", ()):
        lines.append(
            f"  MIB: CPR {row['cpr']:.3f}, CMD {row['cmd']:.3f}, the mean of {row['rankings']} random rankings"
        )
    if out is None:
        return "\n".join([*lines, "", "To write the tables, the figure and a report, give a folder with --out."])
    names = ", ".join(file.name for file in written.files)
    return "\n".join([*lines, "", f"Wrote to {out}:", f"  {names}", f"Open {out / 'report.html'} in a browser."])


def _size(row: Row) -> int:
    return int(row["edges_asked"])


def _write_report(bench: Bench, outcome: Outcome, folder: Path) -> Path:
    """Write ``report.html``: all methods side by side, opened on the last circuit of the first of them."""
    from gradpath.report import Report, write

    rows, request = outcome.rows, bench.request
    readable = _readable(rows, request.methods[0].label)
    runs = _runs(bench, outcome, readable)
    report = Report(
        title=f"{rows[0]['task']} in {bench.model.name}",
        model=bench.model.name,
        task=rows[0]["task"],
        runs=runs,
        chosen=_chosen(rows, runs[0], readable, unsized=request.hows[0] in request.unsized),
        examples=(),
        command=opt.command_line(),
        about={"examples measured": rows[0]["examples"], "seed": request.seed},
    )
    write(report, folder / "report.html")
    return folder / "report.html"


def _readable(rows: Sequence[Row], method: str) -> Row:
    """Of circuits that are not parts of each other, the page shows one: the largest that a person can follow."""
    from gradpath.pipeline.found import READABLE

    own = [row for row in rows if row["how"] == rows[0]["how"] and row["method"] == method]
    return max((row for row in own if row["edges_asked"] <= READABLE), key=_size, default=min(own, key=_size))


def _runs(bench: Bench, outcome: Outcome, readable: Row) -> list[MethodRun]:
    """The scores, the points of the curve and the circuits of every method."""
    from gradpath.evaluation.mib import Areas
    from gradpath.report import CurvePoint, MethodRun
    from gradpath.report.data import IN_PAGE, selected_by
    from gradpath.selection import swept

    rows, hows = outcome.rows, bench.request.hows
    task, how = rows[0]["task"], rows[0]["how"]
    chance = _random_points(bench, outcome)
    names = ["how", "edges_asked", "edges_kept", "faithfulness", "faithfulness_low", "faithfulness_high", "error"]
    area_names = [field.name for field in fields(Areas)]

    def run_of(method: MethodSpec) -> MethodRun:
        label, scores = method.label, bench.scores(task, method)
        points = [CurvePoint(*(row[name] for name in names)) for row in rows if row["method"] == label]
        own = [row for row in outcome.facts.get("mib", ()) if row["method"] == label]
        areas = {row["how"]: Areas(*(row[name] for name in area_names)) for row in own}
        run = MethodRun(scores, points + chance, name=label, areas=areas)
        if hows[0] in bench.request.unsized:
            kept = bench.circuit(scores, swept(hows[0])[readable["threshold"]])
            return run if kept is None else replace(run, circuit=selected_by(kept, how))
        order = None if how in IN_PAGE else bench.order(scores, how)
        return run if order is None else replace(run, circuit=order[0], smallest=order[1])

    return [run_of(method) for method in bench.request.methods]


def _random_points(bench: Bench, outcome: Outcome) -> list[CurvePoint]:
    from gradpath.grid.faithfulness import RANDOM
    from gradpath.grid.jobs import circuit_cell
    from gradpath.report import CurvePoint
    from gradpath.report.data import CHANCE

    def point(how: str, n: int) -> CurvePoint:
        cell = circuit_cell(bench, outcome.rows[0]["task"], bench.request.methods[0], how, n)
        low, high = cell["faithfulness_interval"]
        return CurvePoint(CHANCE, n, cell["edges_kept"], cell["faithfulness"], low, high, cell["error"])

    return [point(how, row["edges_asked"]) for how in RANDOM for row in outcome.facts["random"]]


def _chosen(rows: Sequence[Row], run: MethodRun, readable: Row, *, unsized: bool) -> Chosen:
    """The circuit that the page opens with."""
    from gradpath.pipeline.found import READABLE
    from gradpath.report import Chosen
    from gradpath.report.data import IN_PAGE, SAVED
    from gradpath.report.payload import LIMIT

    how = rows[0]["how"]
    shown = how if how in IN_PAGE else SAVED if run.circuit is not None else "top"
    if unsized and shown == SAVED:
        return Chosen(edges=readable["edges_kept"], how=SAVED)
    # A page of half of all edges would be large and would show nothing.
    sizes = [row["edges_asked"] for row in rows if 0 < row["edges_asked"] <= LIMIT] or [LIMIT]
    return Chosen(edges=max(sizes), how=shown, opens=max((n for n in sizes if n <= READABLE), default=min(sizes)))
