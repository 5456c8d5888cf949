"""``gradpath reproduce``: a table or figure of the paper, on any model."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradpath.cli.grid_options import DEFAULT_HOW, Bar, check_out, grid_options
from gradpath.cli.options import json_option, load, memory_budget, model_options
from gradpath.experiments.registry import ABOUT, find_experiment

if TYPE_CHECKING:
    from gradpath.experiments.runner import Written

NAMES = "\n".join(f"{name:<13} {about}" for name, about in ABOUT.items())


@click.command(
    name="reproduce",
    help=f"""Make a table or figure of the paper again, on any model; a run that was stopped goes on.

    \b
    {NAMES.replace(chr(10), chr(10) + "    ")}
    all           Every one of them.

    \b
    gradpath reproduce faithfulness --model smollm2 --tasks ioi,sva --out out/smollm2
    gradpath reproduce all --model gpt2 --out out/gpt2
    """,
)
@click.argument("name", metavar="NAME")
@click.option(
    "--model",
    default="smollm2",
    show_default=True,
    help="Hub name, folder, .gguf file, smollm2 or gemma3-270m.",
)
@click.option("--tasks", metavar="A,B", help="Some of the six tasks.  [those of the paper's table or figure]")
@grid_options
@click.option("--steps", default="3-20", show_default=True, metavar="K-K", help="Of the heat map (steps).")
@click.option("--edge", metavar="EDGE", help="Whose gradient to follow (saturation).  [the strongest]")
@click.option(
    "--sample",
    type=click.IntRange(min=2),
    default=300,
    show_default=True,
    help="Edges to patch one by one (exact); all of them if there are no more.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Cells and results.  [out/reproduce/MODEL]"
)
@json_option
@model_options
def command(
    name: str,
    model: str,
    tasks: str | None,
    methods: str,
    sparsities: str | None,
    grid: str,
    how: str | None,
    examples: int,
    seed: int,
    batch_size: int,
    memory: str | None,
    steps: str,
    edge: str | None,
    sample: int,
    out: Path | None,
    as_json: bool,
    **load_options: Any,
) -> None:
    if name != "all":
        find_experiment(name)
    check_out(out)
    from gradpath.cli.progress import note, result
    from gradpath.experiments.bench import Bench
    from gradpath.experiments.methods import parse_methods
    from gradpath.experiments.request import Request, numbers, whole_numbers, words
    from gradpath.experiments.runner import reproduce
    from gradpath.experiments.store import Store
    from gradpath.files import held

    request = Request(
        tasks=None if tasks is None else words(tasks),
        methods=parse_methods(methods),
        hows=words(how or DEFAULT_HOW[grid]),
        sparsities=None if sparsities is None else numbers(sparsities, "--sparsities"),
        grid=grid,
        steps=whole_numbers(steps, "--steps"),
        examples=examples,
        seed=seed,
        batch_size=batch_size,
        memory=memory_budget(memory),
        edge=edge,
        sample=sample,
    )
    experiments = [find_experiment(one) for one in (ABOUT if name == "all" else [name])]
    folder = out or Path("out") / "reproduce" / (Path(model).name or "model")
    with held(folder):
        bench = Bench(load(model, **load_options), request, Store(folder))
        with Bar() as bar:
            written = reproduce(bench, experiments, folder, command=typed(), watch=bar, note=note)
    result(as_object(written) if as_json else told(written))


def typed() -> str:
    """What was typed, to be typed again."""
    return shlex.join(["gradpath", *sys.argv[1:]])


def as_object(written: list[Written]) -> str:
    """One JSON object: the record and rows of each experiment, and where its files are."""
    found = {}
    for one in written:
        entry = {"title": one.outcome.title, "files": [str(file) for file in one.files]}
        facts = {"notes": list(one.outcome.notes), **one.outcome.facts, "rows": one.outcome.rows}
        found[one.outcome.name] = {**entry, **facts}
    record = written[0].record if written else {}
    return json.dumps({**record, "experiments": found}, indent=1)


def told(written: list[Written]) -> str:
    """The tables for people, and where they are."""
    parts = []
    for one in written:
        kept = "Kept in " + ", ".join(str(file) for file in one.files) if one.files else ""
        parts += [one.outcome.page, kept]
    return "\n".join(parts)
