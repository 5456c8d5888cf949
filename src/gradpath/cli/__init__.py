"""The command line. A command's file is imported when it is called, so that help is quick.

Results go to stdout, progress and notices to stderr. The exit code is 0 for success, 1 for a failure, 2 for
wrong usage, 130 after Ctrl-C and 143 after SIGTERM. An error is one sentence; ``GRADPATH_DEBUG=1`` adds the
traceback. In a distributed run the first process prints the errors that all processes share.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

import click

from gradpath._version import __version__
from gradpath.errors import GradpathError, GradpathWarning, UsageError, printable, unknown
from gradpath.runtime import distributed, set_threads
from gradpath.runtime.progress import bars, write_line

# Each command with its file and what it does.
VERBS = {
    "find": ("find", "Score every edge, select a circuit and measure it."),
    "eval": ("circuits", "Measure a saved circuit again."),
    "test": ("circuits", "Stress-test a saved circuit."),
    "explain": ("circuits", "Explain each node of a saved circuit."),
    "show": ("circuits", "Draw a saved circuit as a page, a figure or a graph file."),
    "compare": ("circuits", "Compare two saved circuits, in numbers and in one drawing."),
    "curve": ("grids", "Measure faithfulness against sparsity, for several methods."),
    "run": ("grids", "Run a study: models, tasks, methods, selections and sizes, from a file."),
    "convert": ("tools", "Convert scores and circuits to and from other tools' formats."),
    "push": ("tools", "Upload a circuit to the Hugging Face hub."),
    "pull": ("tools", "Download a circuit from the Hugging Face hub."),
    "reproduce": ("grids", "Reproduce a table or figure of the paper, on any model."),
    "check": ("tools", "Check that gradpath computes a model correctly."),
    "ls": ("tools", "List models, tasks, methods, selections and formats."),
}
CONTINUED = ("curve", "run", "reproduce")  # commands whose measurements are kept while they run


class Verbs(click.Group):
    """A group that imports a command only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            raise unknown("command", name, VERBS)
        set_threads()  # before torch is imported, and only where a command is used
        command: click.Command = getattr(importlib.import_module(f"gradpath.cli.{VERBS[name][0]}"), f"{name}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in VERBS.items()])


@click.group(
    cls=Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="gradpath")
@click.pass_context
def gradpath(context: click.Context) -> None:
    """Find circuits in language models with EAP, EAP-IG and EAP-GP.

    \b
    gradpath find --model smollm2 --task ioi --out out/ioi
    gradpath eval out/ioi/circuit.json --examples 200
    gradpath ls methods
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit with its code. Every failure ends in one sentence on stderr."""
    try:
        _check_folder()
        with _sigterm_as_exception(), _warnings_as_lines(), bars():
            gradpath.main(arguments, prog_name="gradpath", standalone_mode=False)
        code = 0
    except click.exceptions.Exit as problem:
        code = problem.exit_code
    except click.ClickException as problem:
        context = getattr(problem, "ctx", None)
        hint = "" if context is None else f" See {context.command_path} --help."
        _print_error(problem.format_message() + hint, shared=True)
        code = problem.exit_code
    except GradpathError as problem:
        message = problem.as_typed() if isinstance(problem, UsageError) else str(problem)
        _print_error(message, shared=problem.shared or isinstance(problem, UsageError), lines=True)
        code = problem.exit_code
    except (KeyboardInterrupt, click.Abort):
        _print_error(f"stopped by the user; {_after_stop(arguments)}", shared=True)
        code = 128 + signal.SIGINT
    except Terminated:
        reason = " (as torchrun does when another process of the run has ended)" if distributed.world() > 1 else ""
        _print_error(f"stopped by SIGTERM{reason}; {_after_stop(arguments)}")
        code = 128 + signal.SIGTERM
    except BrokenPipeError:  # the reader of our output has closed it
        _discard_output()
        code = 1
    except OSError as problem:
        _discard_output()
        where = f" ({problem.filename})" if problem.filename else ""
        _print_error(f"the operating system reported: {problem.strerror or problem}{where}. Fix that and run it again.")
        code = 1
    except Exception as problem:
        message = (
            f"this is a bug in gradpath ({type(problem).__name__}: {problem}). "
            "Please report it, with the output of the same command with GRADPATH_DEBUG=1."
        )
        _print_error(message, shared=getattr(problem, "shared", False))
        code = 1
    _exit(code)


def _exit(code: int) -> NoReturn:
    """End the process.

    Threads of ``torch.distributed`` that still run would sometimes abort one of several processes while Python shuts
    down, after all its work is done. So these end at once.
    """
    communication = sys.modules.get("torch.distributed")
    if distributed.world() > 1 and communication is not None and communication.is_initialized():
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _check_folder() -> None:
    """Refuse a working directory that no longer exists: MKL would end the process with its own error."""
    try:
        os.getcwd()
    except OSError as problem:
        raise GradpathError(
            f"the working directory cannot be used ({problem.strerror}): it was removed, or its permissions changed. "
            "Change to another one and run the command again."
        ) from None


def _after_stop(arguments: list[str] | None) -> str:
    """What a command that was stopped has left behind, and what happens when it is run again."""
    command = next(iter(sys.argv[1:] if arguments is None else arguments), None)
    again = "continue where it stopped, if it has --out" if command in CONTINUED else "start over"
    return f"no partial files were written; rerun to {again}."


class Terminated(BaseException):
    """SIGTERM was received. Files and locks are closed as for Ctrl-C."""


@contextmanager
def _sigterm_as_exception() -> Iterator[None]:
    """Raise ``Terminated`` at the first SIGTERM, which schedulers send before they kill; ignore further ones."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Show gradpath's warnings as one line, without the place in the code that Python adds."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_line(message: Warning | str, category: type[Warning], *place: Any, **other: Any) -> None:
            if issubclass(category, GradpathWarning):
                write_line(f"gradpath: {message}")
            else:
                show(message, category, *place, **other)

        warnings.showwarning = show_line
        yield


def _discard_output() -> None:
    """Redirect stdout to the null device, so that flushing its buffer at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_error(message: str, *, shared: bool = False, lines: bool = False) -> None:
    """Print a message to stderr, in one line unless ``lines``. Only the first process prints an error shared by all."""
    if os.environ.get("GRADPATH_DEBUG"):
        traceback.print_exc()
    rank, world = distributed.rank(), distributed.world()
    if rank == 0 or not shared:
        process = "" if shared or world == 1 else f" (process {rank} of {world})"
        first, *details = message.splitlines() if lines else [" ".join(printable(message).split())]
        click.echo("\n".join([f"gradpath{process}: {first}", *details]), err=True)
