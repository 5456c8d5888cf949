"""Options and helpers that several verbs share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from gradpath.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., Any])


def model_options(command: Command) -> Command:
    """How to load and run the model."""
    for option in reversed(
        [
            click.option(
                "--device", metavar="NAME", help="Where to run: cpu, cuda, mps ... [the model's own]"
            ),
            click.option(
                "--device-map",
                metavar="auto|A,B",
                help="Put the layers of a large model on all GPUs of the machine, or on those named.",
            ),
            click.option("--dtype", metavar="TYPE", help="float32, bfloat16 or float16.  [float32]"),
            click.option(
                "--bos/--no-bos", default=None, help="Put the BOS token in front of prompts.  [by family]"
            ),
            click.option("--trust-remote-code", is_flag=True, help="Let a hub model run code of its own."),
        ]
    ):
        command = option(command)
    return command


batch_options = (
    click.option("--batch-size", type=click.IntRange(min=1), default=20, show_default=True),
    click.option("--memory", metavar="SIZE", help="Make batches smaller to stay within, e.g. 8GB."),
)


def data_options(command: Command) -> Command:
    """Which examples to use, and how many at a time."""
    for option in reversed(
        [
            click.option(
                "--data",
                type=click.Path(path_type=Path),
                metavar="FILE",
                help="Your own pairs (.csv, .jsonl).",
            ),
            *batch_options,
            click.option("--seed", type=int, default=0, show_default=True, help="Chooses the examples."),
        ]
    ):
        command = option(command)
    return command


ABLATIONS = ("corrupted", "zero", "mean", "mean-positional")


def ablation_option(otherwise: str | None) -> Callable[[Command], Command]:
    """What stands in for the edges that are left out."""
    return click.option(
        "--ablation",
        type=click.Choice(ABLATIONS),
        default=otherwise,
        show_default=otherwise is not None,
        help="What edges outside of a circuit carry." + ("" if otherwise else "  [the circuit's own]"),
    )


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")


def memory_budget(text: str | None) -> int | None:
    from gradpath.memory import parse_bytes

    return None if text is None else parse_bytes(text)


def method_option(texts: tuple[str, ...]) -> dict[str, Any]:
    """``-o stride=matched -o start=true`` as a dictionary of values."""
    options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(
                f"a method's option is written NAME=VALUE, such as stride=matched: got {text!r}."
            )
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def load(model: str, *, device: str | None, dtype: str | None, bos: bool | None, **others: Any) -> Any:
    """The model, with a line on stderr while it is being read."""
    from gradpath.cli.progress import waiting
    from gradpath.model.load import load_model

    with waiting(f"loading {model}"):
        return load_model(model, device=device, dtype=dtype, bos=bos, **others)
