"""``gradpath show``: a saved circuit as a page, a drawing or another graph format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradpath.cli import options as opt

if TYPE_CHECKING:
    from gradpath.report.figure import Attention


@click.command(name="show")
@click.argument("circuit_file", type=opt.CIRCUIT, metavar="CIRCUIT.json")
@click.option("--out", type=opt.FILE, metavar="FILE", help="The file to write.  [CIRCUIT.html]")
@click.option("--notes", type=opt.FILE, metavar="NOTES.json", help="Names, colours and groups, saved in the report.")
@click.option("--edges", type=click.IntRange(min=1), metavar="N", help="Draw only the first N edges of the file.")
@click.option("--rows", is_flag=True, help="Draw a figure with the circuit's nodes only, in rows by depth.")
@click.option(
    "--attention",
    multiple=True,
    metavar="HEAD",
    help="Add the attention pattern of a head on one example to the figure; may be repeated. Loads the model.",
)
@opt.plugin_option
def command(
    circuit_file: str | Path,
    out: Path | None,
    notes: Path | None,
    edges: int | None,
    rows: bool,
    attention: tuple[str, ...],
) -> None:
    """Draw a saved circuit: .html (interactive), .svg, .png, .pdf, .dot or .graphml, by the suffix of --out.

    \b
    gradpath show out/ioi/circuit.json
    gradpath show out/ioi/circuit.json --out figure.svg
    gradpath show out/ioi/circuit.json --edges 200 --notes notes.json --attention a23.h0 --out figure.pdf
    """
    from gradpath.circuit import is_hub_address
    from gradpath.report import show

    own = Path(Path(circuit_file).name if is_hub_address(circuit_file) else circuit_file)
    target = out or own.with_suffix(".html")
    patterns = _patterns(circuit_file, attention) if attention else None
    show(circuit_file, target, notes=notes, edges=edges, rows=rows, attention=patterns)
    click.echo(target)


def _patterns(circuit_file: str | Path, heads: tuple[str, ...]) -> Attention:
    """The attention of some heads on the first held-out example of the circuit's task."""
    from gradpath.cli.saved import open_circuit
    from gradpath.model.inspection import token_text
    from gradpath.model.tokenizer import prompt_ids

    drawn: Any = {"task": None, "data": None, "metric": None, "examples": 1, "seed": 0, "split": "test"}
    saved = open_circuit(circuit_file, {"model": None, **drawn, "ablation": None})
    model, prompt = saved.model, saved.task.clean[:1]
    tokens = [token_text(model, token) for token in prompt_ids(prompt, model.tokenizer)[0]]
    return {head: (model.attention(prompt, head)[0], tokens) for head in heads}
