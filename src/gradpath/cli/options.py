"""The options that several verbs share, and the objects that they become."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gradpath import defaults
from gradpath.errors import UsageError, check_choice

if TYPE_CHECKING:
    from gradpath.limits import Limits
    from gradpath.model.transformer import Transformer
    from gradpath.scores import Provenance

Object = TypeVar("Object")
Decorator = Callable[[Any], Any]

FILE = click.Path(path_type=Path)


class CircuitFile(click.Path):
    """A circuit's file, or the folder with its circuit.json, or its address on the hub.

    An address stays a string: a Path would change its slashes.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value).startswith("hf://"):
            return value
        path = Path(super().convert(value, param, ctx))  # type: ignore[arg-type]
        return path / "circuit.json" if path.is_dir() else path


CIRCUIT = CircuitFile(path_type=Path)


class Choice(click.Choice[str]):
    """One of a few names. For an unknown one, the error suggests the closest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name = "" if param is None else param.human_readable_name.strip("[]")
        check_choice(f"--{name}" if isinstance(param, click.Option) else name, value, self.choices)
        return str(value)


def together(*options: Decorator) -> Decorator:
    """Several options as one decorator, listed by --help in this order."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def pick(kind: type[Object], values: dict[str, Any]) -> Object:
    """Take the fields of a dataclass out of the values of the command's options."""
    return kind(**{field.name: values.pop(field.name) for field in fields(kind) if field.name in values})  # type: ignore[arg-type]


@dataclass(frozen=True)
class ModelOptions:
    """Which model to load, and how."""

    model: str
    device: str | None = None
    device_map: str | None = None
    dtype: str | None = None
    bos: bool | None = None
    trust_remote_code: bool = False

    def load(self) -> Transformer:
        """The model, with a line on stderr while it is being read."""
        from gradpath.model.cache import remember_path
        from gradpath.model.load import load_model
        from gradpath.runtime.files import ELSEWHERE
        from gradpath.runtime.progress import waiting

        with waiting(f"loading {self.model}"):
            model = load_model(
                self.model,
                device=self.device,
                device_map=self.device_map,
                dtype=self.dtype,
                bos=self.bos,
                trust_remote_code=self.trust_remote_code,
            )
            if model.name.startswith(ELSEWHERE):
                remember_path(model.digest, self.model)
            return model


def as_recorded(loading: ModelOptions, provenance: Provenance) -> ModelOptions | None:
    """How to load the model of scores or of a circuit; None if none is recorded.

    Options that were given come first. A model outside the working directory is loaded from where it was last. Scores
    and circuits are measured with the BOS token and in the precision that they were found with.
    """
    from gradpath.model.cache import remembered_path
    from gradpath.runtime.files import ELSEWHERE

    name = loading.model or provenance.model
    if name is None:
        return None
    path = remembered_path(provenance.weights) if name.startswith(ELSEWHERE) and not loading.model else None
    bos = provenance.bos if loading.bos is None else loading.bos
    return replace(loading, model=path or name, bos=bos, dtype=loading.dtype or provenance.dtype)


model_option = click.option(
    "--model", default=defaults.MODEL, show_default=True, help="Hub name, folder, .gguf file, smollm2 or gemma3-270m."
)
load_options = together(
    click.option(
        "--device", metavar="NAME", help="Where to run: cpu, cuda, mps ...  [cpu; with torchrun, a GPU per process]"
    ),
    click.option(
        "--device-map",
        metavar="auto|A,B",
        help="Spread the layers of a large model over all GPUs of the machine, or over those named.",
    ),
    click.option("--dtype", metavar="TYPE", help="float32, bfloat16 or float16.  [float32]"),
    click.option("--bos/--no-bos", default=None, help="Prepend the BOS token to prompts.  [depends on the family]"),
    click.option("--trust-remote-code", is_flag=True, help="Let a hub model run its own code."),
)

task_option = click.option(
    "--task", help=f"A built-in task (gradpath ls tasks).  [{defaults.TASK}, unless --data is given]"
)
data_option = click.option("--data", type=FILE, metavar="FILE", help="Your own pairs (.csv, .jsonl).")
seed_option = click.option(
    "--seed", type=int, default=defaults.SEED, show_default=True, help="Seed for drawing the examples."
)
batch_options = together(
    click.option(
        "--batch-size",
        type=click.IntRange(min=1),
        help="Maximum number of examples in a batch.  [depends on prompt length and free memory]",
    ),
    click.option(
        "--memory", metavar="SIZE", help="Memory to use, e.g. 8GB.  [the weights, and half of the free memory]"
    ),
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")


def out_option(about: str) -> Decorator:
    return click.option("--out", type=FILE, metavar="DIR", help=about)


def _run_plugin(context: click.Context, parameter: click.Parameter, files: tuple[Path, ...]) -> None:
    if files and not context.resilient_parsing:
        from gradpath.registry import load_plugin

        for file in files:
            load_plugin(file)


plugin_option = click.option(
    "--plugin",
    type=FILE,
    multiple=True,
    metavar="FILE.py",
    is_eager=True,  # what it registers can be named by the other options
    expose_value=False,
    callback=_run_plugin,
    help="Run a Python file of your own that adds methods, selections, tasks, metrics ...",
)


def examples_option(about: str, *, data: bool = True) -> Decorator:
    """How many examples to use; ``data`` if the command has --data, of which all are used by default."""
    default = f"  [{defaults.EXAMPLES}{'; all of --data' if data else ''}]"
    return click.option("--examples", type=click.IntRange(min=1), help=about + default)


def examples_or_default(examples: int | None, data: Path | None) -> int | None:
    """The number of examples: None for all of the user's own data."""
    return defaults.EXAMPLES if examples is None and data is None else examples


def metric_option(default: str) -> Decorator:
    """The metric; ``default`` says which one is used without it."""
    return click.option(
        "--metric",
        metavar="NAME|FILE.py:FUNCTION",
        help=f"How the behaviour is measured (gradpath ls metrics), or a function of your own.  [{default}]",
    )


def ablation_option(default: str | None) -> Decorator:
    return click.option(
        "--ablation",
        metavar=f"[{'|'.join(defaults.ABLATIONS)}]",
        default=default,
        show_default=default is not None,
        callback=_check_ablation,
        help="How ablated edges are replaced." + ("" if default else "  [the circuit's own]"),
    )


def _check_ablation(context: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    if name is not None and name not in defaults.ABLATIONS:  # it may be one that a plug-in adds
        from gradpath.ablation import ABLATIONS

        ABLATIONS.find(name)
    return name


def grid_options(*, methods: str, how: str, data: bool) -> Decorator:
    """Methods, selections, sparsities and examples of a grid of measurements, with its defaults."""
    rankings = ",".join(defaults.MIB_RANKINGS)
    return together(
        click.option(
            "--methods",
            default=methods,
            show_default=True,
            metavar="A,B",
            help="Methods, with options after plus signs: eap-gp+stride=unit+steps=10.",
        ),
        click.option("--sparsities", metavar="S,S", help="Sparsity levels.  [those of --grid]"),
        click.option(
            "--grid",
            type=Choice([defaults.GRID, defaults.MIB_GRID]),
            default=defaults.GRID,
            show_default=True,
            help="Sparsities of the paper (96.9 to 99.9%), or of the MIB benchmark with its CPR and CMD.",
        ),
        click.option("--how", metavar="A,B", help=f"Selections.  [{how}; with --grid {defaults.MIB_GRID} {rankings}]"),
        examples_option("Pairs for attribution; the same number is held out for evaluation.", data=data),
        seed_option,
        batch_options,
    )


def limits_of(batch_size: int | None, memory: str | None) -> Limits:
    from gradpath.limits import Limits, parse_bytes

    return Limits(batch_size, None if memory is None else parse_bytes(memory))


def check_folder(out: Path | None) -> None:
    """Refuse, before a model is loaded, a folder that cannot be written to."""
    if out is None:
        return
    nearest = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not nearest.is_dir():
        raise UsageError(f"--out has to be a folder: {nearest} is a file.")


def command_line() -> str:
    """The command line as files record it, without the folders of this machine."""
    from gradpath.runtime.files import recorded_path

    words = [word.partition("=") if word.startswith("-") else ("", "", word) for word in sys.argv[1:]]
    return shlex.join(["gradpath", *(name + equals + recorded_path(value) for name, equals, value in words)])
