"""``gradpath reproduce``: a table or figure of the paper, on any model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradpath import defaults
from gradpath.cli import options as opt
from gradpath.cli.progress import GridBar, Screen, print_result
from gradpath.errors import UsageError
from gradpath.paper import ABOUT, OWN_MODELS, find_experiment

if TYPE_CHECKING:
    from gradpath.grid.request import Request
    from gradpath.grid.runner import Written

NAMES = "\n".join(f"{name:<13} {about}" for name, about in ABOUT.items())
SELECTIONS = "top,greedy"


def _sample(text: str) -> int:
    """The number of edges to patch; 0 stands for all of them."""
    if text == "all":
        return 0
    if not text.isdigit() or int(text) < 2:
        raise UsageError(f"--sample is a number of edges of at least 2, or all: got {text!r}.")
    return int(text)


@click.command(
    name="reproduce",
    help=f"""Make a table or figure of the paper, on any model. An interrupted run continues where it stopped.

    \b
    {NAMES.replace(chr(10), chr(10) + "    ")}
    all           All of the above except truth, which has its own models.

    \b
    gradpath reproduce faithfulness --model smollm2 --tasks ioi,sva --out out/smollm2
    gradpath reproduce all --model gpt2 --out out/gpt2
    gradpath reproduce truth --out out/truth
    """,
)
@click.argument("name", metavar="NAME")
@opt.model_option
@click.option("--tasks", metavar="A,B", help="Some of the six tasks.  [those of the paper's table or figure]")
@opt.grid_options(methods=defaults.PAPER_METHODS, how=SELECTIONS, data=False)
@click.option("--steps", default="3-20", show_default=True, metavar="K-K", help="Numbers of steps (steps only).")
@click.option("--edge", metavar="EDGE", help="The edge to follow (saturation only).  [the strongest]")
@click.option(
    "--sample",
    metavar="N|all",
    default="300",
    show_default=True,
    callback=lambda _, option, text: _sample(text),
    help="Edges to patch one by one (exact only).",
)
@opt.plugin_option
@opt.out_option("Write measurements and results to this folder.  [out/reproduce/MODEL]")
@opt.json_option
@opt.load_options
def command(name: str, how: str | None, out: Path | None, as_json: bool, **given: Any) -> None:
    if name != "all":
        find_experiment(name)  # before a model is loaded
    opt.check_folder(out)
    from gradpath.grid.bench import Bench
    from gradpath.grid.runner import reproduce
    from gradpath.grid.store import Store
    from gradpath.paper import published
    from gradpath.runtime.files import lock_folder

    loading = opt.pick(opt.ModelOptions, given)
    request = request_of(how=opt.grid_selections(how, given["grid"], SELECTIONS), **given)
    if request.unsized and name != "faithfulness":
        raise UsageError(
            f"{request.unsized[0]} decides itself how many edges it keeps, and {name} needs circuits of given sizes: "
            "use it with curve or reproduce faithfulness."
        )
    experiments = [
        find_experiment(one) for one in ([x for x in ABOUT if x not in OWN_MODELS] if name == "all" else [name])
    ]
    own_model = experiments[0].own_model
    folder = out or Path("out") / "reproduce" / (name if own_model else Path(loading.model).name or "model")
    with lock_folder(folder):
        model = own_model() if own_model else loading.load()
        bench = Bench(model, request, Store(folder), published(model))
        with GridBar() as bar:
            written = reproduce(bench, experiments, folder, command=opt.command_line(), watch=bar, note=Screen().note)
    print_result(as_json_object(written) if as_json else as_text(written))


def request_of(
    *,
    tasks: str | None,
    methods: str,
    how: str,
    sparsities: str | None,
    batch_size: int | None,
    memory: str | None,
    steps: str | None = None,
    **given: Any,
) -> Request:
    """The request of a grid, from the texts that were typed."""
    from gradpath.grid.request import Request, numbers, parse_methods, parse_selections, whole_numbers, words

    limits = opt.limits_of(batch_size, memory)
    given["examples"] = opt.examples_or_default(given["examples"], given.get("data"))
    if steps is not None:
        given["steps"] = whole_numbers(steps, "--steps")
    return Request(
        tasks=None if tasks is None else words(tasks),
        methods=parse_methods(methods),
        hows=parse_selections(how),
        sparsities=None if sparsities is None else numbers(sparsities, "--sparsities"),
        batch_size=limits.batch_size,
        memory=limits.memory,
        **given,
    )


def as_json_object(written: list[Written]) -> dict[str, Any]:
    """The object that ``--json`` prints: the record and the rows of each experiment, and its files."""
    experiments = {}
    for one in written:
        entry = {"title": one.outcome.title, "files": [str(file) for file in one.files]}
        facts = {"notes": list(one.outcome.notes), **one.outcome.facts, "rows": one.outcome.rows}
        experiments[one.outcome.name] = {**entry, **facts}
    record = written[0].record if written else {}
    return {**record, "experiments": experiments}


def as_text(written: list[Written]) -> str:
    """The tables for people, and their files."""
    parts = []
    for one in written:
        files = "Wrote " + ", ".join(str(file) for file in one.files) if one.files else ""
        parts += [one.outcome.page, files]
    return "\n".join(parts)
