"""``gradpath ls``: the names that the other verbs take."""

from __future__ import annotations

import json
from collections.abc import Callable

import click

from gradpath.cli.options import json_option, plugin_option

Rows = list[dict[str, str]]


def _models() -> Rows:
    from gradpath.model.families import registered
    from gradpath.model.packaged import PACKAGED

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


def _methods() -> Rows:
    from gradpath.attribution.methods import METHODS

    def options(defaults: dict[str, object]) -> str:
        shown = ", ".join(f"{name}={value}" for name, value in defaults.items())
        return f" [{shown}]" if shown else ""

    return [{"name": x.name, "about": x.about + options(x.defaults)} for x in METHODS.values()]


def _selections() -> Rows:
    from gradpath.selection import SELECTIONS

    return [{"name": x.name, "about": x.about} for x in SELECTIONS.values()]


def _metrics() -> Rows:
    from gradpath.tasks.metrics import METRICS

    return [{"name": name, "about": _first_line(metric)} for name, metric in METRICS.items()]


def _ablations() -> Rows:
    from gradpath.ablation import ABLATIONS

    return [{"name": name, "about": x.about} for name, x in ABLATIONS.items()]


def _experiments() -> Rows:
    from gradpath.paper import EXPERIMENTS

    return [{"name": name, "about": x.about} for name, x in EXPERIMENTS.items()]


def _formats() -> Rows:
    from gradpath.formats import FORMATS

    return [{"name": name, "about": f"{x.about} [{x.suffix}]"} for name, x in FORMATS.items()]


def _first_line(function: Callable[..., object]) -> str:
    return (function.__doc__ or "").partition("\n")[0].replace("``", "")


LISTS: dict[str, tuple[str, Callable[[], Rows]]] = {
    "models": ("Models and model families that can be loaded.", _models),
    "tasks": ("Built-in tasks, for --task.", _tasks),
    "methods": ("How edges are scored, for --method.", _methods),
    "selections": ("How edges are selected, for --how.", _selections),
    "metrics": ("How the behaviour is measured, for --metric.", _metrics),
    "ablations": ("What edges outside the circuit carry, for --ablation.", _ablations),
    "experiments": ("Tables and figures, for reproduce.", _experiments),
    "formats": ("Files that convert reads and writes.", _formats),
}


@click.command(name="ls")
@click.argument("what", type=click.Choice(list(LISTS)), required=False)
@json_option
@plugin_option
def command(what: str | None, as_json: bool) -> None:
    """List models, tasks, methods, selections, metrics, ablations, experiments or file formats.

    \b
    gradpath ls
    gradpath ls methods
    gradpath ls tasks --json
    """
    rows = LISTS[what][1]() if what else [{"name": name, "about": about} for name, (about, _) in LISTS.items()]
    if as_json:
        click.echo(json.dumps({what or "lists": rows}, indent=1))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        click.echo(f"{row['name']:<{width}}  {row['about']}")
