"""The command line: one file per verb, each loaded when it is called, so that help is quick.

The result goes to stdout, progress and notices to stderr. Exit 0 is done, 1 failed, 2 wrong usage, 130
stopped by Ctrl-C, 143 by SIGTERM. An error is one sentence; ``GRADPATH_DEBUG=1`` adds the traceback. Of
several processes (``ranks``) the first says what all know.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from gradpath._version import __version__
from gradpath.errors import GradpathError, UsageError, unknown
from gradpath.runtime import distributed

VERBS = {
    "find": "Score every edge, select a circuit and measure it.",
    "eval": "Measure a saved circuit again.",
    "show": "Draw a saved circuit: a page, a figure, or another format.",
    "curve": "Faithfulness against sparsity, for several methods.",
    "convert": "Scores and circuits to and from other tools' formats.",
    "reproduce": "A table or figure of the paper, on any model.",
    "check": "Is a model computed right? A verdict before you believe us.",
    "ls": "List models, tasks, methods, selections and formats.",
}


class Verbs(click.Group):
    """A group whose commands are imported on use; their one-line help is known without."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            raise unknown("command", name, VERBS)
        module = importlib.import_module(f"gradpath.cli.{name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gradpath")
def gradpath() -> None:
    """Find circuits in language models with EAP, EAP-IG and EAP-GP.

    \b
    gradpath find --model smollm2 --task ioi --out out/ioi
    gradpath eval out/ioi/circuit.json --examples 200
    gradpath ls methods
    """


def main(arguments: list[str] | None = None) -> None:
    """Run a command and leave with its exit code; nobody should ever meet a bare traceback."""
    try:
        with _terminating():
            gradpath.main(arguments, prog_name="gradpath", standalone_mode=False)
        code = 0
    except click.exceptions.Exit as leave:
        code = leave.exit_code
    except click.ClickException as problem:
        _say(problem.format_message() + _help_hint(problem), known_to_all=True)
        code = problem.exit_code
    except GradpathError as problem:
        _say(str(problem), known_to_all=problem.shared or isinstance(problem, UsageError))
        code = problem.exit_code
    except (KeyboardInterrupt, click.Abort):
        _say(f"stopped by the user; {KEPT}", known_to_all=True)
        code = 128 + signal.SIGINT
    except Terminated:
        why = " (as torchrun does when another process of the run has ended)" if distributed.world() > 1 else ""
        _say(f"stopped by SIGTERM{why}; {KEPT}", known_to_all=False)
        code = 128 + signal.SIGTERM
    except BrokenPipeError:  # whoever read our output has gone: nothing is left to say
        _drop_output()
        code = 1
    except OSError as problem:
        _drop_output()
        where = f" ({problem.filename})" if problem.filename else ""
        _say(f"the system refused to go on: {problem.strerror or problem}{where}. Free what it lacks.")
        code = 1
    except Exception as problem:
        shared = getattr(problem, "shared", False)
        bug = f"this is a bug, {type(problem).__name__}: {problem}. Report what GRADPATH_DEBUG=1 shows."
        _say(bug, known_to_all=shared)
        code = 1
    sys.exit(code)


KEPT = "nothing was half written; curve and reproduce with --out go on where they were."


class Terminated(BaseException):
    """SIGTERM has come: what is open is closed on the way out, as for Ctrl-C."""


@contextmanager
def _terminating() -> Iterator[None]:
    """Turn SIGTERM, which a scheduler sends before it kills, into an exception for as long as this lasts."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _drop_output() -> None:
    """Nothing more can be written to stdout: what its buffer holds must not fail once more at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(message: str, *, known_to_all: bool = False) -> None:
    """One sentence on stderr; what every process of a run would say is said by the first."""
    if os.environ.get("GRADPATH_DEBUG"):
        traceback.print_exc()
    if distributed.rank() and known_to_all:
        return
    who = (
        f" (process {distributed.rank()} of {distributed.world()})"
        if distributed.world() > 1 and not known_to_all
        else ""
    )
    click.echo(f"gradpath{who}: {' '.join(message.split())}", err=True)


def _help_hint(problem: click.ClickException) -> str:
    context = getattr(problem, "ctx", None)
    return f" See {context.command_path} --help." if context is not None else ""
