"""``gradpath show``: a saved circuit as a page, a drawing or another graph format."""

from __future__ import annotations

from pathlib import Path

import click

from gradpath.cli import options as opt


@click.command(name="show")
@click.argument("circuit_file", type=opt.FILE, metavar="CIRCUIT.json")
@click.option("--out", type=opt.FILE, metavar="FILE", help="The file to write.  [CIRCUIT.html]")
def command(circuit_file: Path, out: Path | None) -> None:
    """Draw a saved circuit: .html (interactive), .svg, .png, .pdf, .dot or .graphml, by the suffix of --out.

    \b
    gradpath show out/ioi/circuit.json
    gradpath show out/ioi/circuit.json --out figure.svg
    """
    from gradpath.report import show

    target = out or circuit_file.with_suffix(".html")
    show(circuit_file, target)
    click.echo(target)
