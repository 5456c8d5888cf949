"""The command line: one file per verb, each loaded when it is called, so that help is quick.

The result goes to stdout, progress and notices to stderr. Exit 0 is done, 1 failed, 2 wrong usage. An
error is one sentence; ``GRADPATH_DEBUG=1`` adds the traceback.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback

import click

from gradpath._version import __version__
from gradpath.errors import GradpathError, unknown

VERBS = {
    "find": "Score every edge, select a circuit and measure it.",
    "eval": "Measure a saved circuit again.",
    "show": "Draw a saved circuit: a page, a figure, or another format.",
    "curve": "Faithfulness against sparsity, for several methods.",
    "convert": "Scores and circuits to and from other tools' formats.",
    "reproduce": "A table or figure of the paper, on any model.",
    "check": "Is a model computed right? A verdict before you believe us.",
    "ls": "List models, tasks, methods and selections.",
}


class Verbs(click.Group):
    """A group whose commands are imported on use; their one-line help is known without."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            raise unknown("command", name, VERBS)
        module = importlib.import_module(f"gradpath.cli.{name}_verb")
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
        gradpath.main(arguments, prog_name="gradpath", standalone_mode=False)
        code = 0
    except click.exceptions.Exit as leave:
        code = leave.exit_code
    except click.ClickException as problem:
        _say(problem.format_message() + _help_hint(problem))
        code = problem.exit_code
    except GradpathError as problem:
        _say(str(problem))
        code = problem.exit_code
    except (KeyboardInterrupt, click.Abort):
        _say("stopped by the user; nothing was half written.")
        code = 130
    except BrokenPipeError:  # whoever read our output has gone: nothing is left to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except Exception as problem:
        _say(f"this is a bug, {type(problem).__name__}: {problem}. Report what GRADPATH_DEBUG=1 shows.")
        code = 1
    sys.exit(code)


def _say(message: str) -> None:
    if os.environ.get("GRADPATH_DEBUG"):
        traceback.print_exc()
    click.echo(f"gradpath: {' '.join(message.split())}", err=True)


def _help_hint(problem: click.ClickException) -> str:
    context = getattr(problem, "ctx", None)
    return f" See {context.command_path} --help." if context is not None else ""
