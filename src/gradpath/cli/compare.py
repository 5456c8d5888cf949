"""``gradpath compare``: which edges and nodes two saved circuits share, in numbers and in one drawing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradpath.cli import options as opt
from gradpath.cli.progress import Screen, print_result
from gradpath.errors import UsageError

if TYPE_CHECKING:
    from gradpath.circuit import Circuit


@click.command(name="compare")
@click.argument("file_a", type=opt.CIRCUIT, metavar="A.json")
@click.argument("file_b", type=opt.CIRCUIT, metavar="B.json")
@click.option("--out", type=opt.FILE, metavar="FILE.html", help="Write a page that shows both in one drawing.")
@opt.plugin_option
@opt.json_option
def command(file_a: str | Path, file_b: str | Path, out: Path | None, as_json: bool) -> None:
    """Compare two saved circuits of the same model, or of models of the same shape.

    \b
    gradpath compare out/ioi/circuit.json out/sva/circuit.json
    gradpath compare out/eap/circuit.json out/eap-ig/circuit.json --out compare.html
    """
    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--out has to be a page, a file that ends in .html: got {out.name!r}.")
    from gradpath.circuit import load_circuit
    from gradpath.report.compare import write_comparison

    a, b = load_circuit(file_a), load_circuit(file_b)
    if a.spans != b.spans:
        Screen().note("The edges of these circuits are at different parts of the prompt: parts are ignored.")
        a, b = a.anywhere(), b.anywhere()
    comparison = a.compare(b)
    if out is not None:
        write_comparison(comparison, out, _names(file_a, file_b))
    if as_json:
        files = {"file_a": str(file_a), "file_b": str(file_b), "out": None if out is None else str(out)}
        print_result({**files, **comparison.to_json()})
        return
    wrote = "" if out is None else f"\nOpen {out} in a browser."
    print_result(f"A  {_described(file_a, a)}\nB  {_described(file_b, b)}\n{comparison}{wrote}")


def _names(file_a: str | Path, file_b: str | Path) -> tuple[str, str]:
    """The names of both files for the page, with the folder that each is in if they would be the same."""
    from gradpath.runtime.files import ELSEWHERE, readable, recorded_path

    names = recorded_path(file_a), recorded_path(file_b)
    if names[0] != names[1]:
        return names
    a, b = (readable(f"{ELSEWHERE}{Path(file).absolute().parent.name}/{Path(file).name}") for file in (file_a, file_b))
    return a, b


def _described(file: str | Path, circuit: Circuit) -> str:
    made = circuit.provenance
    facts = [made.task, made.model and f"in {made.model}", made.method and f"by {made.method}", made.how]
    return " ".join([f"{file}:", *(fact for fact in facts if fact)])
