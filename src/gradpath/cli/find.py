"""``gradpath find``: score every edge, select a circuit, measure it on held-out examples."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradpath import defaults
from gradpath.cli import options as opt
from gradpath.cli.options import lines_of, note, numbers_of, print_result
from gradpath.errors import UsageError, unknown_option
from gradpath.recipe import Recipe
from gradpath.registry import option_value
from gradpath.runtime import distributed

if TYPE_CHECKING:
    from gradpath.evaluation.result import Result
    from gradpath.pipeline.found import Found


@click.command(name="find")
@opt.model_option
@opt.recipe_options("task", "data", "clean", "corrupted", "answer", "wrong", "method", "steps")
@click.option(
    "-o", "--option", "options", multiple=True, metavar="NAME=VALUE", help="An option of the method or selection."
)
@opt.recipe_options(
    "faithfulness",
    "edges",
    "sparsity",
    "nodes",
    "selection",
    "resamples",
    "metric",
    "first_token",
    "examples",
    "split",
    "ablation",
    "seed",
)
@opt.batch_options
@opt.plugin_option
@opt.out_option("Folder for the scores, the circuit and the report.  [a new one, named after model and task]")
@click.option("--dry-run", is_flag=True, help="Say what the run takes in memory and passes, and run nothing.")
@opt.json_option
@opt.load_options
def find_command(
    options: tuple[str, ...],
    batch_size: int | None,
    memory: str | None,
    out: Path | None,
    dry_run: bool,
    as_json: bool,
    **values: Any,
) -> None:
    """Score every edge of a model on a task, select a circuit and measure how much it keeps.

    \b
    gradpath find --model smollm2 --task ioi --faithfulness 0.85 --out out/ioi
    gradpath find --model smollm2 --task ioi --method eap-gp --selection top --steps 5
    gradpath find --model ./my-model --data pairs.csv --edges 500 --json
    gradpath find --clean "The capital of France is" --corrupted "The capital of Italy is" --answer " Paris"
    """
    begin = time.monotonic()
    opt.check_folder(out)
    from gradpath.pipeline import checked, run_find
    from gradpath.pipeline.found import default_folder
    from gradpath.runtime.files import lock_folder

    typed = {"model": defaults.MODEL, **opt.typed(values)}
    method_options, selection = _parse_options(options, typed.get("method", defaults.METHOD), typed.get("selection"))
    recipe = Recipe(**{**typed, "options": method_options, "selection": selection})
    data, limits = recipe.data, opt.limits_of(batch_size, memory)
    recipe = checked(recipe, data, recipe.metric)
    if dry_run:
        from gradpath.model.load import load_shape
        from gradpath.pipeline.forecast import forecast, forecast_text

        shape = load_shape(str(recipe.model), dtype=recipe.dtype, bos=recipe.bos)
        told = forecast(shape, recipe, limits)
        print_result(told if as_json else forecast_text(told))
        return
    with lock_folder(out):
        model, command_line = opt.load(recipe, values), opt.command_line()
        found = run_find(model, recipe, data=data, metric=recipe.metric, limits=limits, note=note)
        summary = _summary(found, time.monotonic() - begin)

        def save() -> str:
            folder = out or default_folder(model, found.attributed)
            found.save(folder, command=command_line, seconds=summary["seconds"])
            return str(folder)

        folder = Path(distributed.on_first_rank(save))
    # Files have the model's name without the folders of this machine.
    printed = {**summary, "model": recipe.model, "out": str(folder)}
    print_result(printed if as_json else _text(printed, folder))


def _parse_options(texts: tuple[str, ...], method: str, selection: str | None) -> tuple[dict[str, Any], str | None]:
    """``-o stride=unit`` as options of the method, or as part of the selection: ``acdc+threshold=0.01``."""
    from gradpath.attribution.methods import METHODS
    from gradpath.selection import SELECTIONS

    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"an option is written NAME=VALUE, such as stride=unit: got {text!r}.")
        options[name] = option_value(value)
    name_of_selection = (selection or "").partition("+")[0]
    known = SELECTIONS[name_of_selection].defaults if name_of_selection in SELECTIONS else {}
    if known and method in METHODS:
        owners = {f"the method {method!r}": METHODS[method].defaults, f"the selection {name_of_selection!r}": known}
        for name in options:
            if not any(name in its_options for its_options in owners.values()):
                raise unknown_option(name, owners)
    for name in [name for name in options if name in known]:
        value = options.pop(name)
        selection = f"{selection}+{name}={value if isinstance(value, str) else json.dumps(value)}"
    return options, selection


def _summary(found: Found, seconds: float) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    recipe, facts = found.circuit.recipe or Recipe(), found.scores.facts
    return {
        "version": facts.version,
        "model": recipe.model,
        "task": recipe.task,
        "method": recipe.method,
        "steps": recipe.steps,
        "options": recipe.options,
        "ablation": recipe.ablation,
        "selection": found.circuit.selection,
        "metric": found.measured.record.metric,
        "seed": recipe.seed,
        "examples": facts.examples,
        "examples_measured": len(found.measured),
        "held_out": found.measured is not found.attributed,
        **numbers_of(found.circuit, found.result),
        "small": None if found.small is None else _small(found.small, found.small_text),
        "batch_size": facts.batch_size,
        "passes": facts.passes,
        "seconds": round(seconds, 2),
    }


def _small(result: Result, text: str) -> dict[str, Any]:
    return {
        "edges_requested": result.edges_requested,
        "edges_kept": result.edges_kept,
        "faithfulness": result.faithfulness,
        "faithfulness_interval": result.interval,
        "text": text,
    }


def _text(s: dict[str, Any], out: Path) -> str:
    """The result for people."""
    examples = f"{s['examples']} for attribution, {s['examples_measured']} held out"
    if not s["held_out"]:
        examples = f"{s['examples']} for both attribution and evaluation: nothing is held out"
    steps = f"{s['steps']} step{'' if s['steps'] == 1 else 's'}"
    lines = [
        f"The {s['task']} circuit of {s['model']}, found by {s['method']} ({steps}, {s['selection']}):",
        *lines_of(s, s["examples_measured"]),
        *([f"  small         {s['small']['text']}: --edges {s['small']['edges_requested']}"] if s["small"] else []),
        f"  examples      {examples}",
        f"  took          {s['seconds']:.0f} s",
    ]
    lines.append(f"Wrote {out / 'scores.safetensors'} and {out / 'circuit.json'}")
    page = out / "report.html"
    if page.exists():
        lines.append(f"Open {page} in a browser.")
    return "\n".join(lines)
