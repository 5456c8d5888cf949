"""Commands that measure many circuits, and continue where they stopped: ``curve``, ``run`` and ``reproduce``."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradpath import defaults
from gradpath.cli import options as opt
from gradpath.cli.options import note, print_result
from gradpath.paper import ABOUT, OWN_MODELS, find_experiment
from gradpath.recipe import Recipe

if TYPE_CHECKING:
    from gradpath.model.transformer import Transformer
    from gradpath.study import Study
    from gradpath.study.bench import Bench
    from gradpath.study.outcome import Experiment, Outcome, Written

NAMES = "\n    ".join(f"{name:<13} {about}" for name, about in ABOUT.items())


@click.command(name="curve")
@opt.model_option
@opt.recipe_options("task", "data", "metric", "examples", "seed")
@opt.grid_options(methods=defaults.METHOD, selections=defaults.SELECTION)
@opt.recipe_option("ablation")
@opt.plugin_option
@opt.out_option("Write the table, the figure, a report and all measurements to this folder.")
@opt.json_option
@opt.load_options()
def curve_command(selections: str | None, out: Path | None, as_json: bool, **values: Any) -> None:
    """Measure circuits of many sizes, found by several methods on one task.

    With --out, an interrupted run continues where it stopped.

    \b
    gradpath curve --model smollm2 --task ioi --methods eap,eap-ig,eap-gp --out out/ioi-curve
    gradpath curve --task sva --methods eap-gp,eap-gp+stride=unit --sparsities 0.99,0.975 --json
    gradpath curve --task ioi --selection refined,top --out out/selections
    """
    opt.check_folder(out)
    from gradpath.study import faithfulness
    from gradpath.study.outcome import Experiment

    recipe = Recipe(**{"model": defaults.MODEL, **opt.typed(values)})
    name = recipe.task or ("custom" if recipe.data else defaults.TASK)
    study = _study(recipe, values, tasks=name, selections=selections, default=defaults.SELECTION)

    def outcome(bench: Bench) -> Outcome:
        measured = faithfulness.outcome(bench, "curve")
        page = partial(faithfulness.write_page, bench, measured, opt.command_line())
        return measured if out is None else replace(measured, files=page)

    with ExitStack() as stack:
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradpath-")))
        written = _measure([Experiment("curve", outcome)], study, recipe, folder, values)
    print_result(_json_of(written, has_files=out is not None) if as_json else _curve_text(written[0], out))


def _curve_text(written: Written, out: Path | None) -> str:
    """The measurements for a terminal: a table for each method and selection, and where the rest is."""
    from gradpath.study.faithfulness import examples_of
    from gradpath.study.outcome import grouped, nfs, percent

    rows, facts = written.outcome.rows, written.outcome.facts
    lines = [f"{rows[0]['task']}: {examples_of(rows[0])}"]
    for (method, selection), group in grouped(rows, "method", "selection").items():
        lines += ["", f"{method}, {selection}", f"{'sparsity':>10}{'edges':>10}{'kept':>10}  {'NFS % [95%]':<20}error"]
        for row in group:
            sizes = f"{row['sparsity']:>10.2%}{row['edges_requested']:>10,}{row['edges_kept']:>10,}"
            lines.append(f"{sizes}  {nfs(row):<20}{row['error']:.3f}")
        areas = [row for row in facts.get("mib", ()) if (row["method"], row["selection"]) == (method, selection)]
        lines += [f"  MIB: CPR {row['cpr']:.3f}, CMD {row['cmd']:.3f}" for row in areas]
    chance = [row[f"faithfulness_{end}"] for row in facts["random"] for end in ("low", "high")]
    if facts["compared"]:
        lines += ["", f"Mean error minus that of {facts['baseline']}, on the same examples [95% interval]"]
    for row in facts["compared"]:
        difference, low, high = (row[f"error_{name}"] for name in ("difference", "low", "high"))
        clear = "" if row["error_clear"] else ", not clear"
        lines.append(f"  {row['method']}, {row['selection']}: {difference:+.3f} [{low:+.3f}, {high:+.3f}]{clear}")
    lines += ["", f"Random circuits of the same sizes: faithfulness {percent(min(chance))}% to {percent(max(chance))}%"]
    if out is None:
        return "\n".join([*lines, "", "To write the tables, the figure and a report, give a folder with --out."])
    names = ", ".join(file.name for file in written.files)
    return "\n".join([*lines, "", f"Wrote to {out}:", f"  {names}", f"Open {out / 'report.html'} in a browser."])


@click.command(name="run")
@click.argument("study_file", type=opt.FILE, metavar="STUDY.yaml")
@click.option(
    "--part", "part_text", metavar="I/N", default="1/1", help="Only measure the I-th of N parts of the study."
)
@opt.plugin_option
@opt.recipe_options("model", model="those of the file")
@opt.load_options(dtype="that of the file")
@opt.out_option("Write measurements and the report to this folder.  [out/NAME, for NAME.yaml]")
@opt.json_option
def run_command(study_file: Path, part_text: str, out: Path | None, as_json: bool, **values: Any) -> None:
    """Measure circuits for all combinations of models, tasks, methods, selections and sizes that a file lists.

    An interrupted run continues where it stopped. All mistakes in the file are listed at once. --model, --device
    and --dtype override the file. With --part, several machines share the work: each writes its measurements to a
    folder of its own. Copy these into one folder; a run without --part writes the report from them.

    \b
    gradpath run study.yaml --out out/study
    gradpath run study.yaml --part 3/8
    """
    opt.check_folder(out)
    from gradpath.runtime.files import lock_folder
    from gradpath.study.run import Part, measure_study, read_study, run_study

    typed = {name: values[name] for name in ("model", "device", "dtype")}
    part, study = Part.parse(part_text), read_study(study_file, **typed)
    whole = Path("out") / study_file.stem
    folder = out or (whole if part.count == 1 else whole / f"part-{part.number}-of-{part.count}")

    def load(name: str) -> Transformer:
        return opt.load(Recipe(model=name, dtype=study.dtype, bos=values["bos"]), {**values, "device": study.device})

    with lock_folder(folder):
        if part.count > 1:
            measured = measure_study(study, folder, load, part=part, note=note)
        else:
            written = run_study(study, folder, load, command=opt.command_line(), note=note)
    if part.count > 1:
        done = {"part": part_text, "attributions": measured.attributions, "circuits": len(measured.rows)}
        print_result({**done, "out": str(folder)} if as_json else _part_text(done, folder, whole))
    elif as_json:
        print_result({**written.record, "files": list(map(str, written.files)), "rows": written.outcome.rows})
    else:
        names = ", ".join(file.name for file in written.files)
        print_result(f"{written.outcome.page}\nWrote to {folder}:\n  {names}")


def _part_text(done: dict[str, Any], folder: Path, whole: Path) -> str:
    return (
        f"Part {done['part']}: {done['circuits']:,} circuits of {done['attributions']:,} attributions are measured in "
        f"{folder}.\nCopy the contents of the folders of all parts into one, such as {whole}, and run the study on it "
        "without --part for its report."
    )


@click.command(
    name="reproduce",
    help=f"""Make a table or figure of the paper, on any model. An interrupted run continues where it stopped.

    \b
    {NAMES}
    all           All of the above except truth, which has its own models.

    \b
    gradpath reproduce faithfulness --model smollm2 --tasks ioi,sva --out out/smollm2
    gradpath reproduce all --model gpt2 --out out/gpt2
    gradpath reproduce truth --out out/truth
    """,
)
@click.argument("name", metavar="NAME")
@opt.model_option
@click.option("--tasks", metavar="A,B", help="Tasks (gradpath ls tasks).  [those of the paper's table or figure]")
@opt.recipe_options("examples", "seed", examples=str(defaults.EXAMPLES))
@opt.grid_options(methods=defaults.PAPER_METHODS, selections=defaults.PAPER_SELECTIONS)
@click.option(
    "--steps",
    default=defaults.PAPER_STEPS,
    metavar="K-K",
    help=f"Numbers of steps (steps only).  [{defaults.PAPER_STEPS}]",
)
@opt.plugin_option
@opt.out_option("Write measurements and results to this folder.  [out/reproduce/MODEL]")
@opt.json_option
@opt.load_options()
def reproduce_command(
    name: str, tasks: str | None, selections: str | None, steps: str, out: Path | None, as_json: bool, **values: Any
) -> None:
    names = [name for name in ABOUT if name not in OWN_MODELS] if name == "all" else [name]
    experiments = [find_experiment(name) for name in names]
    opt.check_folder(out)
    from gradpath.study import whole_numbers

    recipe = Recipe(**{"model": defaults.MODEL, **opt.typed(values)})
    study = _study(recipe, values, tasks=tasks, selections=selections, default=defaults.PAPER_SELECTIONS)
    study = replace(study, steps=whole_numbers(steps, "--steps"))
    place = name if experiments[0].own_model else Path(str(recipe.model)).name or "model"
    written = _measure(experiments, study, recipe, out or Path("out") / "reproduce" / place, values)
    parts = []
    for experiment in written:
        files = "Wrote " + ", ".join(map(str, experiment.files)) if experiment.files else ""
        parts += [experiment.outcome.page, files]
    print_result(_json_of(written) if as_json else "\n".join(parts))


def _measure(
    experiments: list[Experiment], study: Study, recipe: Recipe, folder: Path, values: dict[str, Any]
) -> list[Written]:
    """Run experiments on the model of a recipe, or on their own, and write their results to a folder."""
    from gradpath.paper import published
    from gradpath.pipeline.examples import notices
    from gradpath.runtime.files import lock_folder
    from gradpath.study.bench import Bench, Store
    from gradpath.study.outcome import reproduce

    own_model = experiments[0].own_model
    with lock_folder(folder):
        model = own_model() if own_model else opt.load(recipe, values)
        bench = Bench(model, study, Store(folder), published(model))
        if recipe.data is not None:
            cell = study.at(study.task_names[0])
            for line in notices(bench.task(cell, "train"), bench.task(cell, "test")):
                note(line)
        return reproduce(bench, experiments, folder, command=opt.command_line(), note=note)


def _study(recipe: Recipe, values: dict[str, Any], *, tasks: str | None, selections: str | None, default: str) -> Study:
    """The study of a grid, from a recipe and the values of the command's other options."""
    from gradpath.study import Study, check_methods, sparsities, words

    if values["grid"] == defaults.MIB_GRID:  # its areas are defined for rankings
        default = ",".join(defaults.MIB_RANKINGS)
    examples = recipe.examples or (None if recipe.data else defaults.EXAMPLES)
    return Study(
        recipe=Recipe(examples=examples, data=recipe.data, metric=recipe.metric, ablation=recipe.ablation),
        tasks=None if tasks is None else words(tasks),
        methods=check_methods(values["methods"]),
        selections=words(selections or default),
        sizes=None if values["sparsities"] is None else sparsities(values["sparsities"]),
        grid=values["grid"],
        seeds=(recipe.seed,),
        limits=opt.limits_of(values["batch_size"], values["memory"]),
    )


def _json_of(written: list[Written], *, has_files: bool = True) -> dict[str, Any]:
    """The object that ``--json`` prints: the record and the rows of each experiment, and its files."""
    experiments = {
        outcome.name: {
            "title": outcome.title,
            "files": list(map(str, files)) if has_files else [],
            "notes": list(outcome.notes),
            **outcome.facts,
            "rows": outcome.rows,
        }
        for outcome, files in ((x.outcome, x.files) for x in written)
    }
    return {**(written[0].record if written else {}), "experiments": experiments}
