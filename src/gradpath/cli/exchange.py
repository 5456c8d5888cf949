"""Commands for other tools' files and for the Hugging Face hub: ``convert``, ``push`` and ``pull``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradpath import defaults
from gradpath.cli import options as opt
from gradpath.cli.progress import print_result
from gradpath.errors import InputError, UsageError
from gradpath.recipe import Recipe

if TYPE_CHECKING:
    from gradpath.circuit import Circuit
    from gradpath.scores import Scores

MIB = "mib"


@click.command(name="convert")
@click.argument("source", type=opt.FILE, metavar="IN")
@click.argument("target", type=opt.FILE, metavar="OUT")
@click.option("--to", metavar="FORMAT", help="The format of OUT (gradpath ls formats).  [from the name of OUT]")
@click.option("--scores", type=opt.FILE, metavar="FILE", help="Scores of all edges, to include in OUT.")
@click.option("--edges", type=int, metavar="N", help="Select a circuit of N edges from the scores, and prune it.")
@opt.recipe_option("selection", default=defaults.RANKING)
@click.option("--d-model", type=click.IntRange(min=1), metavar="N", help="The model's width, if IN has none.")
@opt.recipe_options("model", "data", model="that of the scores")
@opt.plugin_option
@opt.load_options
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
    from gradpath.pipeline.examples import draw
    from gradpath.selection import NeedsModelError, rank

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
    order = rank(scores, name, model, draw(model, recipe, recipe.attributed_split, data=recipe.data), sizes=counts)
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
