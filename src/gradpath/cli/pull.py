"""``gradpath pull``: a circuit from the hub."""

from __future__ import annotations

from pathlib import Path

import click

from gradpath.cli import options as opt
from gradpath.cli.progress import Screen, print_result


@click.command(name="pull")
@click.argument("address", metavar="OWNER/NAME[@REVISION][/FOLDER]")
@click.option("--revision", metavar="NAME", help="A branch, tag or commit.  [main]")
@opt.out_option("Write to this folder.  [out/NAME]")
@opt.json_option
def command(address: str, revision: str | None, out: Path | None, as_json: bool) -> None:
    """Download a circuit from the Hugging Face hub, check its files and write them to a folder.

    Only JSON and safetensors files are downloaded. Each is checked, and either all of them are written or none.

    \b
    gradpath pull owner/smollm2-ioi
    gradpath pull owner/circuits@v1/ioi --out out/theirs
    """
    opt.check_folder(out)
    from gradpath.formats.hub import CIRCUIT, pull

    with Screen().waiting(f"downloading {address}"):
        folder, files = pull(address, out, revision)
    if as_json:
        print_result({"address": address, "folder": str(folder), "files": files})
    else:
        print_result(f"Wrote to {folder}: {', '.join(files)}\nMeasure it: gradpath eval {folder / CIRCUIT}")
