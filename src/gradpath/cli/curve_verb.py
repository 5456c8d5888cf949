"""``gradpath curve``: faithfulness against sparsity of one task, for several methods."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradpath import ranks
from gradpath.cli.grid_options import DEFAULT_HOW, Bar, check_out, grid_options
from gradpath.cli.options import ablation_option, json_option, load, memory_budget, model_options
from gradpath.cli.reproduce_verb import as_object, told, typed

if TYPE_CHECKING:
    from gradpath.experiments.bench import Bench
    from gradpath.experiments.output import Outcome


@click.command(name="curve")
@click.option(
    "--model",
    default="smollm2",
    show_default=True,
    help="Hub name, folder, .gguf file, smollm2 or gemma3-270m.",
)
@click.option("--task", help="A built-in task (see gradpath ls tasks).  [ioi, if there is no --data]")
@click.option(
    "--data", type=click.Path(path_type=Path), metavar="FILE", help="Your own pairs (.csv, .jsonl)."
)
@grid_options
@ablation_option("corrupted")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Keep the table, the figure and the cells."
)
@json_option
@model_options
def command(
    model: str,
    task: str | None,
    data: Path | None,
    methods: str,
    sparsities: str | None,
    grid: str,
    how: str | None,
    examples: int,
    seed: int,
    batch_size: int,
    memory: str | None,
    ablation: str,
    out: Path | None,
    as_json: bool,
    **load_options: Any,
) -> None:
    """Measure circuits of many sizes, found by several methods on one task.

    With --out, a run that was stopped goes on where it was.

    \b
    gradpath curve --model smollm2 --task ioi --methods eap,eap-ig,eap-gp --out out/ioi-curve
    gradpath curve --task sva --methods eap-gp,eap-gp+stride=matched --sparsities 0.99,0.975 --json
    """
    check_out(out)
    from gradpath.cli.progress import note, result
    from gradpath.experiments import bench as benches
    from gradpath.experiments import faithfulness
    from gradpath.experiments.methods import parse_methods
    from gradpath.experiments.registry import Experiment
    from gradpath.experiments.request import Request, numbers, words
    from gradpath.experiments.runner import reproduce
    from gradpath.experiments.store import Store
    from gradpath.files import held

    request = Request(
        tasks=(task or ("custom" if data else "ioi"),),
        methods=parse_methods(methods),
        hows=words(how or DEFAULT_HOW[grid]),
        sparsities=None if sparsities is None else numbers(sparsities, "--sparsities"),
        grid=grid,
        examples=examples,
        seed=seed,
        batch_size=batch_size,
        memory=memory_budget(memory),
        ablation=ablation,
        data=data,
    )
    curve = Experiment("curve", faithfulness.jobs, lambda bench: faithfulness.outcome(bench, "curve"))
    with ExitStack() as stack:
        folder = out or _passing(stack)
        stack.enter_context(held(folder))
        bench = benches.Bench(load(model, **load_options), request, Store(folder))
        with Bar() as bar:
            written = reproduce(bench, [curve], folder, command=typed(), watch=bar, note=note)
        if out is not None:
            page = out / "report.html"
            ranks.from_first(lambda: _write_report(bench, written[0].outcome, page))
        if out is None:
            written = [type(one)(one.outcome, one.record, []) for one in written]
        result(as_object(written) if as_json else told(written))


def _write_report(bench: Bench, outcome: Outcome, file: Path) -> None:
    """One page with all methods side by side, opened on the last circuit of the first of them."""
    from gradpath.mib import Areas
    from gradpath.report import Chosen, CurvePoint, MethodRun, Report, write
    from gradpath.report.data import IN_PAGE
    from gradpath.report.payload import LIMIT

    rows = outcome.rows

    def points(label: str) -> list[CurvePoint]:
        names = ["how", "edges_asked", "edges_kept", "faithfulness"]
        names += ["faithfulness_low", "faithfulness_high", "error"]
        own = [[row[name] for name in names] for row in rows if row["method"] == label]
        return [CurvePoint(*values) for values in own]

    task, how = rows[0]["task"], rows[0]["how"]

    def areas(label: str) -> dict[str, Areas]:
        names = [field.name for field in fields(Areas)]
        own = [row for row in outcome.facts.get("mib", ()) if row["method"] == label]
        return {row["how"]: Areas(*(row[name] for name in names)) for row in own}

    runs = [
        MethodRun(bench.scores(task, x), points(x.label), name=x.label, areas=areas(x.label))
        for x in bench.request.methods
    ]
    # A page of half of all edges would be large and would show nothing.
    asked = max((row["edges_asked"] for row in rows if row["edges_asked"] <= LIMIT), default=LIMIT)
    report = Report(
        title=f"{task} in {bench.model.name}",
        model=bench.model.name,
        task=task,
        runs=runs,
        chosen=Chosen(edges=asked, how=how if how in IN_PAGE else "top"),
        examples=(),
        command=typed(),
        about={"examples measured": bench.request.examples, "seed": bench.request.seed},
    )
    write(report, file)


def _passing(stack: ExitStack) -> Path:
    """A folder for the cells of a run that is not to be kept."""
    import tempfile

    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradpath-")))
