"""Commands about the installation: ``ls`` lists the names that commands take, ``check`` tests what is computed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from gradpath import defaults
from gradpath.cli import options as opt
from gradpath.cli.progress import print_result
from gradpath.recipe import Recipe
from gradpath.registry import first_line

if TYPE_CHECKING:
    import torch

    from gradpath.attribution.methods import Method
    from gradpath.model.transformer import Transformer
    from gradpath.selfcheck import Speed


Rows = list[dict[str, str]]


def _models() -> Rows:
    from gradpath.model.cache import PACKAGED
    from gradpath.model.families import registered

    packaged = [
        {"name": x.name, "about": f"{x.hub_name} ({x.about}), from the package {x.installed_by}, or the hub"}
        for x in PACKAGED.values()
    ]
    families = [
        {"name": x.name, "about": f"{x.members} ({x.supports})", "members": x.members, "supports": x.supports}
        for x in registered()
    ]
    return [*packaged, *families]


def _tasks() -> Rows:
    from gradpath.tasks import describe_tasks

    return [
        {**task, "about": f"{task['summary']}. Metric: {task['metric']}. {task['citation']}"}
        for task in describe_tasks()
    ]


def _method(method: Method) -> str:
    options = ", ".join(f"{name}={value}" for name, value in method.defaults.items())
    return method.about + (f" [{options}]" if options else "")


def _entries(where: str, about: Callable[[Any], str] = lambda entry: entry.about) -> Callable[[], Rows]:
    """The rows of a registry, "module:NAME", which is imported when it is listed; ``about`` describes an entry."""

    def rows() -> Rows:
        module, _, name = where.partition(":")
        registry = getattr(importlib.import_module(f"gradpath.{module}"), name)
        return [{"name": key, "about": about(entry)} for key, entry in registry.items()]

    return rows


LISTS: dict[str, tuple[str, Callable[[], Rows]]] = {
    "models": ("Models and model families that can be loaded.", _models),
    "tasks": ("Built-in tasks, for --task.", _tasks),
    "methods": ("How edges are scored, for --method.", _entries("attribution.methods:METHODS", _method)),
    "selections": ("How edges are selected, for --how.", _entries("selection:SELECTIONS")),
    "metrics": ("How the behaviour is measured, for --metric.", _entries("tasks.metrics:METRICS", first_line)),
    "ablations": ("How ablated edges are replaced, for --ablation.", _entries("ablation:ABLATIONS")),
    "experiments": ("Tables and figures, for reproduce.", _entries("paper:EXPERIMENTS")),
    "formats": (
        "Files that convert reads and writes.",
        _entries("formats:FORMATS", lambda x: f"{x.about} [{x.suffix}]"),
    ),
}


@click.command(name="ls")
@click.argument("what", type=opt.Choice(list(LISTS)), metavar="[LIST]", required=False)
@opt.json_option
@opt.plugin_option
def ls_command(what: str | None, as_json: bool) -> None:
    """List models, tasks, methods, selections, metrics, ablations, experiments or file formats.

    \b
    gradpath ls
    gradpath ls methods
    gradpath ls tasks --json
    """
    rows = LISTS[what][1]() if what else [{"name": name, "about": about} for name, (about, _) in LISTS.items()]
    width = max(len(row["name"]) for row in rows)
    lines = [f"{row['name']:<{width}}  {row['about']}" for row in rows]
    print_result({what or "lists": rows} if as_json else "\n".join(lines))


@click.command(name="check")
@opt.model_option
@click.option(
    "--task", default=defaults.TASK, show_default=True, help="The task to take prompts from (gradpath ls tasks)."
)
@click.option("--examples", type=click.IntRange(min=1), default=2, show_default=True, help="How many pairs of prompts.")
@opt.plugin_option
@opt.json_option
@opt.load_options
def check_command(task: str, examples: int, as_json: bool, **values: Any) -> None:
    """Check a model's logits, scores and circuits against transformers and a plain, slow reference.

    With --device, scores and circuits are also compared with those on the CPU, and a table shows how fast both are.

    \b
    gradpath check --model smollm2
    gradpath check --model ./my-model --dtype bfloat16
    gradpath check --model smollm2 --device cuda --examples 20
    """
    from gradpath.model.load import load_original
    from gradpath.runtime.progress import waiting
    from gradpath.selfcheck import Speed, checks, device_checks
    from gradpath.tasks import load_task
    from gradpath.tasks.load import check_task

    check_task(task)
    recipe = Recipe(**{"model": defaults.MODEL, **opt.typed(values)})
    model, loaded = str(recipe.model), opt.load(recipe, values)
    prompts = load_task(task, loaded, n=examples)
    with waiting("loading it with transformers"):
        original = load_original(model, loaded.dtype, trust_remote_code=values["trust_remote_code"])
    done, speeds = [], list[Speed]()
    steps = [checks(loaded, prompts, original), device_checks(loaded, prompts) if values["device"] else ()]
    for check in chain(*steps):
        if isinstance(check, Speed):
            speeds.append(check)
            continue
        done.append(check)
        if not as_json:
            sign = "ok    " if check.passed else "WRONG "
            print_result(f"{sign} {check.what}: deviation {check.off:.1e} (limit {check.limit:.0e})")
    passed = all(check.passed for check in done)
    if as_json:
        rows = [{**vars(check), "passed": check.passed} for check in done]
        summary = {"model": model, "dtype": str(loaded.dtype), "passed": passed, "checks": rows}
        if speeds:
            summary |= {"device": _device_name(loaded.device), "seconds": [vars(speed) for speed in speeds]}
        print_result(summary)
    else:
        if speeds:
            print_result(_speed_table(speeds, loaded))
        failed = "failed the checks: do not use its scores, and please report this."
        print_result(f"{model} {'passed all checks.' if passed else failed}")
    sys.exit(0 if passed else 1)


def _speed_table(speeds: Sequence[Speed], model: Transformer) -> str:
    """How long each computation takes on the CPU and on the device."""
    import torch

    name, dtype = _device_name(model.device), model.dtype_name
    rows = [f"{x.what:<44} {x.cpu:>9.2f} s {x.device:>9.2f} s {x.cpu / x.device:>7.1f} x" for x in speeds]
    head = f"{'':<44} {'CPU':>11} {model.device!s:>11} {'faster':>9}"
    where = f"{name}, torch {torch.__version__}, {torch.get_num_threads()} CPU threads, {dtype}"
    return "\n".join(["", head, *rows, where, ""])


def _device_name(device: torch.device) -> str:
    """The name of a GPU if PyTorch knows it, or of the device."""
    import torch

    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(device) if device.type == "cpu" or name is None else str(name(device))
