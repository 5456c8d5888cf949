"""``gradpath push``: a circuit to the hub."""

from __future__ import annotations

from pathlib import Path

import click

from gradpath.cli import options as opt
from gradpath.cli.progress import Screen, print_result


@click.command(name="push")
@click.argument("circuit_dir", type=opt.FILE, metavar="CIRCUIT_DIR")
@click.argument("address", metavar="OWNER/NAME[/FOLDER]")
@click.option("--private", is_flag=True, help="Make the repository private, if it is new.")
@click.option("--revision", metavar="BRANCH", help="The branch to commit to, created if necessary.  [main]")
@click.option("--message", metavar="TEXT", help="The commit message.  [a description of the circuit]")
@opt.json_option
def command(
    circuit_dir: Path, address: str, private: bool, revision: str | None, message: str | None, as_json: bool
) -> None:
    """Upload the folder that find --out wrote, with a card that says how the circuit was made.

    JSON and safetensors files are uploaded. A README.md in the folder is used instead of the card. You need to be
    logged in (hf auth login), or to have a token in HF_TOKEN.

    \b
    gradpath push out/ioi owner/smollm2-ioi
    gradpath push out/ioi owner/circuits/ioi --private --message "IOI in SmolLM2"
    """
    from gradpath.formats.hub import push

    with Screen().waiting(f"uploading to {address}"):
        url, files = push(circuit_dir, address, private=private, revision=revision, message=message)
    lines = [f"Uploaded {', '.join(files)}", url]
    print_result({"address": address, "url": url, "files": files} if as_json else "\n".join(lines))
