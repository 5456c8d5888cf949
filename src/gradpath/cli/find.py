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
from gradpath.errors import unknown_option
from gradpath.recipe import PROMPT, Recipe
from gradpath.registry import parse_options
from gradpath.runtime import distributed

if TYPE_CHECKING:
    from gradpath.evaluation.result import Result
    from gradpath.model.transformer import Transformer
    from gradpath.pipeline.found import Found
    from gradpath.sweep import Limits
    from gradpath.tasks.task import Pairs

PROCESS = 300 << 20  # bytes of a process with PyTorch and transformers, before it has a model
ASSUMED = 20, 10  # tokens of a prompt, and from the first difference on, where there is no tokenizer


@click.command(name="find")
@opt.model_option
@opt.recipe_options("task", "data", "clean", "corrupted", "answer", "wrong", "method", "steps")
@click.option(
    "-o",
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the method or selection, as in stride=unit.",
)
@opt.recipe_options("faithfulness", "edges", "sparsity", "nodes", "selection", "resamples", "metric", "first_token")
@opt.recipe_options("examples", "split", "ablation", "seed")
@opt.batch_options
@opt.plugin_option
@opt.out_option("Folder for the scores, the circuit and the report.  [a new one, named after model and task]")
@click.option("--dry-run", is_flag=True, help="Say what the run takes in memory and passes, and run nothing.")
@opt.json_option
@opt.load_options()
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

        # The weights are not loaded where a configuration is at hand: the answer for a large model takes seconds.
        shape = load_shape(str(recipe.model), dtype=recipe.dtype, bos=recipe.bos)
        told = _forecast(shape, recipe, limits)
        print_result(told if as_json else _forecast_text(told))
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

    options = parse_options(texts)
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
    from gradpath.attribution.methods import find_method

    examples = f"{s['examples']} for attribution, {s['examples_measured']} held out"
    if not s["held_out"]:
        examples = f"{s['examples']} for both attribution and evaluation: nothing is held out"
    steps = (
        f"{s['steps']} step{'' if s['steps'] == 1 else 's'}, " if "steps" in find_method(s["method"]).defaults else ""
    )
    lines = [
        f"The {s['task']} circuit of {s['model']}, found by {s['method']} ({steps}{s['selection']}):",
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


def _forecast(model: Transformer, recipe: Recipe, limits: Limits) -> dict[str, Any]:
    """What the run of a recipe takes in memory and passes, without running the model."""
    from gradpath.attribution.methods import recorded_method
    from gradpath.sweep import bytes_of_weights, least_bytes, peak_bytes

    method, options = recorded_method(recipe)
    attributed, held_out = (_pairs(model, recipe, split) for split in (recipe.attributed_split, recipe.measured_split))
    points = method.points(options)
    weights = bytes_of_weights(model)
    peaks = [PROCESS + peak_bytes(model, attributed, points, device) for device in ("cpu", "gpu")]
    least = PROCESS + least_bytes(model, attributed)
    if limits.memory is not None:
        peaks = [max(least, min(peak, PROCESS + limits.memory)) for peak in peaks]
    # While it is loaded, a model of a folder or the hub is in memory twice; a packaged one is mapped from its cache.
    loading = PROCESS + (2 if model.embedding.is_meta else 1) * weights
    return {
        "model": recipe.model,
        "edges_total": model.graph.n_edges,
        "layers": model.graph.n_layers,
        "heads": model.graph.n_heads,
        "d_model": model.arch.d_model,
        "dtype": model.dtype_name,
        "task": recipe.task or recipe.data or (defaults.TASK if recipe.clean is None else PROMPT),
        "method": recipe.method,
        "selection": recipe.selection,
        "examples": len(attributed),
        "examples_measured": len(held_out),
        "tokens": int(attributed.last.max()) + 1,
        "tokens_from_first_difference": int((attributed.last + 1 - attributed.first).max()),
        "tokens_assumed": model.tokenizer is None,
        "weight_bytes": weights,
        "loading_bytes": loading,
        "cpu_bytes": max(peaks[0], loading),
        "gpu_bytes": peaks[1],
        "least_bytes": least,
        "forward_passes": method.passes(model, options),
        "points": points,
    }


def _pairs(model: Transformer, recipe: Recipe, split: str) -> Pairs:
    """The examples as token ids; of a model without a tokenizer, as many of an assumed length."""
    import torch

    from gradpath.tasks.load import draw_task
    from gradpath.tasks.task import Task, encode

    if model.tokenizer is None:
        n, (tokens, rows) = recipe.examples or defaults.EXAMPLES, ASSUMED
        clean = torch.zeros(n, tokens, dtype=torch.long, device="cpu")
        corrupted = clean.clone()
        corrupted[:, tokens - rows :] = 1
        return encode(Task(clean, corrupted, torch.tensor([[0, 1]] * n, device="cpu")), None)
    if recipe.clean is not None:
        labels = torch.tensor([[0, 1]], device="cpu")
        return encode(Task([recipe.clean], [str(recipe.corrupted)], labels), model.tokenizer)
    task = draw_task(model, Recipe(**{**recipe.recorded, "metric": None}), split, data=recipe.data)  # kl runs the model
    return encode(task, model.tokenizer)


def _forecast_text(told: dict[str, Any]) -> str:
    """The forecast for people."""
    from gradpath.sweep import size_text

    sizes = {name: size_text(told[f"{name}_bytes"]) for name in ("weight", "loading", "cpu", "gpu", "least")}
    tokens = f"up to {told['tokens']} tokens, {told['tokens_from_first_difference']} from the first difference on"
    if told["tokens_assumed"]:
        tokens = f"{told['tokens']} tokens assumed, since the model has no tokenizer here"
    forward = told["forward_passes"]
    return "\n".join(
        [
            f"{told['method']} on {told['task']} in {told['model']} would take:",
            f"  model         {told['edges_total']:,} edges: {told['layers']} layers of {told['heads']} heads, width "
            f"{told['d_model']:,}, {told['dtype']}",
            f"  examples      {told['examples']:,} for attribution, {told['examples_measured']:,} for evaluation",
            f"  prompts       {tokens}",
            f"  loading       about {sizes['loading']} of the machine's memory for weights of {sizes['weight']}",
            f"  on a CPU      about {sizes['cpu']}",
            f"  on a GPU      from {sizes['least']} on; where more is free, larger batches take up to {sizes['gpu']}",
            f"  budget        --memory sets one, of at least {sizes['least']}",
            f"  attribution   {forward:,.3g} forward passes and at least {told['points']:,} backward "
            f"pass{'' if told['points'] == 1 else 'es'}, for each example",
            f"  selection     {told['selection'] or 'nodes'}, which may run circuits; each is a forward pass or less",
            "No weight was read and nothing was written." if told["tokens_assumed"] else "Nothing was written.",
        ]
    )
