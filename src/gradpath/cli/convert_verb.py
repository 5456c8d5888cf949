"""``gradpath convert``: scores and circuits to and from other tools' formats."""

from __future__ import annotations

from pathlib import Path

import click

from gradpath.errors import UsageError


@click.command(name="convert")
@click.argument("source", type=click.Path(path_type=Path), metavar="IN")
@click.argument("target", type=click.Path(path_type=Path), metavar="OUT")
@click.option("--to", metavar="FORMAT", help="See gradpath ls formats.  [by the name of OUT]")
@click.option(
    "--scores", type=click.Path(path_type=Path), metavar="FILE", help="All edges' scores, to go along."
)
@click.option(
    "--edges", type=int, metavar="N", help="Choose a circuit of N edges from the scores, and prune it."
)
@click.option("--how", help="How edges are chosen (gradpath ls selections).  [top]")
@click.option(
    "--d-model", type=click.IntRange(min=1), metavar="N", help="The model's width, if IN does not say."
)
def command(
    source: Path,
    target: Path,
    to: str | None,
    scores: Path | None,
    edges: int | None,
    how: str | None,
    d_model: int | None,
) -> None:
    """Turn a file with scores, a circuit or both into another format.

    The formats go by the names: .json (a circuit of ours; what is read may be of EAP-IG), .safetensors
    (scores), .eap-ig.json and .pt (the EAP-IG library's Graph, MIB's submissions), .graphml, .dot and .csv.

    \b
    gradpath convert out/ioi/circuit.json ioi.eap-ig.json --scores out/ioi/scores.safetensors
    gradpath convert importances.json circuit.json --edges 500
    gradpath convert out/ioi/circuit.json circuit.graphml
    """
    if how is not None and edges is None:
        raise UsageError("--how says how --edges are chosen: say how many, too.")
    from gradpath.formats import Content, format_of, read, write
    from gradpath.selection import select

    format_ = format_of(target, to)
    content = read(source)
    if scores is not None:
        content = Content(read(scores).need_scores(), content.circuit)
    if edges is not None:
        every = content.need_scores()
        content = Content(every, select(every, edges, how=how or "top"))
    write(content, target, format_, d_model=d_model)
    click.echo(target)
