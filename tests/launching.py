"""Starting commands as users do: in this process, or in processes of their own, one or several."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner

import gradpath

TESTS = Path(__file__).parent
LIMIT = 600  # seconds: a run that hangs fails


def environment(**more: str) -> dict[str, str]:
    """This process's own, with the package and the helpers of the tests in reach, and no ranks of its own."""
    ours = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    paths = [str(Path(gradpath.__file__).parents[1]), str(TESTS)]
    return {**ours, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "COLUMNS": "200", **more}


def torchrun(n_ranks: int, *command: Any) -> list[str]:
    """The command line that starts so many ranks on this machine, at a port that is free."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_ranks)),
        *map(str, command),
    ]


def gradpath_command(*arguments: Any) -> list[str]:
    return [sys.executable, "-m", "gradpath", *map(str, arguments)]


def finished(command: list[str], **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT, env=environment(**environ), check=False
    )


@dataclass(frozen=True)
class Ran:
    """What a command gave back."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The last line on stderr, which is the error."""
        return self.err.strip().splitlines()[-1]


def run_here(*arguments: Any) -> Ran:
    """Run the command line in this process, exit codes and streams apart."""
    from gradpath import cli

    @click.command(context_settings={"ignore_unknown_options": True})
    @click.argument("given", nargs=-1, type=click.UNPROCESSED)
    def shell(given: tuple[str, ...]) -> None:
        cli.main(list(given))

    result = CliRunner().invoke(shell, ["--", *map(str, arguments)])
    return Ran(result.exit_code, result.stdout, result.stderr)
