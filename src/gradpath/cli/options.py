"""What commands share: options, of which those of the recipe come from its fields; and how results are printed."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from gradpath import defaults
from gradpath.errors import UsageError, check_choice, printable, whole_number
from gradpath.recipe import Recipe
from gradpath.runtime import distributed
from gradpath.runtime.progress import write_line

if TYPE_CHECKING:
    from gradpath.circuit import Circuit
    from gradpath.evaluation.result import Result
    from gradpath.model.transformer import Transformer
    from gradpath.sweep import Limits
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


class Count(click.types.IntParamType):
    """A whole number above 0."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        option = "a number" if param is None else param.opts[-1]
        return whole_number(option, int(value) if str(value).isdecimal() else value)


COUNT = Count()


def together(*options: Decorator) -> Decorator:
    """Several options as one decorator, listed by --help in this order."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def load(recipe: Recipe, loading: Mapping[str, Any], weights: str | None = None) -> Transformer:
    """The model of a recipe, with a line on stderr while it is being read.

    A recipe from a file names a model outside the working directory without its folder: it is loaded from where the
    model with these weights was last.
    """
    from gradpath.model.cache import remember_path, remembered_path
    from gradpath.model.load import load_model
    from gradpath.runtime.files import ELSEWHERE
    from gradpath.runtime.progress import waiting

    assert recipe.model is not None
    if recipe.model.startswith(ELSEWHERE):
        recipe = recipe.changed(model=remembered_path(weights))
    with waiting(f"loading {recipe.model}"):
        model = load_model(recipe.model, dtype=recipe.dtype, bos=recipe.bos, device=loading["device"])
        if model.name.startswith(ELSEWHERE):
            remember_path(model.digest, str(recipe.model))
        return model


def recipe_option(name: str, *, default: str | None = None) -> Decorator:
    """The option of a field of the recipe, with its help; ``default`` replaces what the help says of its default."""
    field = Recipe.model_fields[name]
    extra = field.json_schema_extra
    assert isinstance(extra, dict)
    text = Recipe.default_text(name) if default is None else default
    kinds = [kind for kind in get_args(field.annotation) or (field.annotation,) if kind is not type(None)]
    choices = [choice for choice in (get_args(kinds[0]) or kinds) if isinstance(choice, str)]
    flag = name.replace("_", "-")
    kind: Any = Choice([choice for choice in choices if choice != "swapped"]) if choices else kinds[0]
    help_text = f"{field.description}  [{text}]" if text else field.description
    if kind is bool:
        return click.option(f"--{flag}/--no-{flag}", default=None, help=help_text)
    metavar = str(extra.get("metavar") or "") or None
    return click.option(f"--{flag}", type=kind, metavar=metavar, help=help_text)


def recipe_options(*names: str, **defaults_: str) -> Decorator:
    """Options of several fields; ``defaults_`` are what the help says of the defaults of some."""
    return together(*(recipe_option(name, default=defaults_.get(name)) for name in names))


def typed(values: dict[str, Any]) -> dict[str, Any]:
    """Take the fields of the recipe that the user typed out of the values of the command's options."""
    fields = {name: values.pop(name) for name in Recipe.model_fields if name in values}
    return {name: value for name, value in fields.items() if value is not None}


model_option = recipe_option("model", default=defaults.MODEL)


def load_options(**defaults_: str) -> Decorator:
    """How a model is loaded; ``defaults_`` are those of ``dtype`` and ``bos``."""
    where = "Where to run: cpu, cuda, mps ...  [cpu; with torchrun, a GPU per process]"
    return together(click.option("--device", metavar="NAME", help=where), recipe_options("dtype", "bos", **defaults_))


batch_options = together(
    click.option(
        "--batch-size",
        type=COUNT,
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


def grid_options(*, methods: str, selections: str) -> Decorator:
    """Methods, selections and sparsities of a grid of measurements, with its defaults."""
    rankings = ",".join(defaults.MIB_RANKINGS)
    return together(
        click.option(
            "--methods",
            default=methods,
            metavar="A,B",
            help=f"Methods, with options after plus signs: eap-gp+stride=unit+steps=10.  [{methods}]",
        ),
        click.option("--sparsities", metavar="S,S", help="Sparsity levels.  [those of --grid]"),
        click.option(
            "--grid",
            type=Choice([defaults.GRID, defaults.MIB_GRID]),
            default=defaults.GRID,
            help="Sparsities of the paper (96.9 to 99.9%), or of the MIB benchmark with its CPR and CMD.  [paper]",
        ),
        click.option(
            "--selection",
            "selections",
            metavar="A,B",
            help=f"Selections.  [{selections}; with --grid {defaults.MIB_GRID} {rankings}]",
        ),
        batch_options,
    )


def limits_of(batch_size: int | None, memory: str | None) -> Limits:
    from gradpath.sweep import Limits, parse_bytes

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


def print_result(result: str | Mapping[str, Any]) -> None:
    """Print the result on stdout, as text or as one JSON object; of several processes only the first does."""
    if distributed.rank() == 0:
        click.echo(printable(result) if isinstance(result, str) else json.dumps(result, indent=1))


def note(text: str) -> None:
    """Print a message that is not the result on stderr; of several processes only the first does."""
    if distributed.rank() == 0:
        write_line(printable(text))


def numbers_of(circuit: Circuit, result: Result) -> dict[str, Any]:
    """The numbers of a measured circuit, for JSON."""
    return {
        "edges_total": circuit.graph.n_edges,
        "edges_requested": result.edges_requested,
        "edges_kept": result.edges_kept,
        **({} if circuit.core is None else {"edges_in_every_resample": len(circuit.core)}),
        "sparsity": 1 - result.edges_requested / circuit.graph.n_edges,
        "clean": result.clean,
        "corrupted": result.corrupted,
        "circuit": result.circuit,
        "faithfulness": result.faithfulness,
        "faithfulness_interval": result.interval,
        "error": result.error,
        "error_interval": result.error_interval,
        "accuracy": result.accuracy,
        "does_task": result.does_task,
        "clean_minus_corrupted_interval": result.gain_interval,
        "behaviour": result.behaviour,
    }


def lines_of(s: dict[str, Any], n: int) -> list[str]:
    """The same numbers for people, measured on n examples, with a warning where they mean little."""
    from gradpath.evaluation.result import interval_text

    steady = "edges_in_every_resample"
    none = "corrupted" if s["ablation"] == "corrupted" else f"all ablated ({s['ablation']})"
    word = {"yes": "model   ", "unclear": "NOTE    ", "no": "WARNING "}[s["does_task"]]
    lines = [
        f"  edges         {s['edges_kept']:,} after pruning, {s['edges_requested']:,} requested, "
        f"{s['edges_total']:,} in the model ({s['sparsity']:.2%} sparsity)",
        *([f"                {s[steady]:,} of them are in the circuit of every resample"] if steady in s else []),
        f"  metric        clean {s['clean']:.3f}, {none} {s['corrupted']:.3f}, circuit {s['circuit']:.3f}",
        f"  faithfulness  {s['faithfulness']:.1%}  ({interval_text(s['faithfulness_interval'], n, '.1%')})",
        f"  error         {s['error']:.3f}  ({interval_text(s['error_interval'], n, '.3f')})",
    ]
    lines.insert(len(lines) if s["does_task"] == "yes" else 0, f"  {word}      {s['behaviour']}")
    return lines
