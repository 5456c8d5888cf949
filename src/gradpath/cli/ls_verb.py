"""``gradpath ls``: what there is to choose from."""

from __future__ import annotations

import json

import click

from gradpath.cli.options import json_option


@click.command(name="ls")
@click.argument("what", type=click.Choice(["models", "tasks", "methods", "selections", "formats"]))
@json_option
def command(what: str, as_json: bool) -> None:
    """List model families, tasks, methods, ways to select edges or file formats."""
    kinds = {"models": _models, "tasks": _tasks, "methods": _methods, "selections": _selections}
    rows = {**kinds, "formats": _formats}[what]()
    if as_json:
        click.echo(json.dumps({what: rows}, indent=1))
        return
    names = max(len(row["name"]) for row in rows)
    for row in rows:
        click.echo(f"{row['name']:<{names}}  {row['about']}")


def _models() -> list[dict[str, str]]:
    from gradpath.model.families import registered
    from gradpath.model.packaged import PACKAGED

    own = [
        {
            "name": x.name,
            "about": f"{x.hub_name} ({x.about}), from pip's {x.installed_by} if installed, else the hub",
        }
        for x in PACKAGED.values()
    ]
    families = [
        {"name": x.name, "about": f"{x.members} ({x.supports})", "members": x.members, "supports": x.supports}
        for x in registered()
    ]
    return [*own, *families]


def _tasks() -> list[dict[str, str]]:
    from gradpath.tasks import describe_tasks

    return [
        {**task, "about": f"{task['summary']}. Metric: {task['metric']}. {task['citation']}"}
        for task in describe_tasks()
    ]


def _methods() -> list[dict[str, str]]:
    from gradpath.methods import METHODS

    def options(defaults: dict[str, object]) -> str:
        shown = ", ".join(f"{name}={value}" for name, value in defaults.items())
        return f" [{shown}]" if shown else ""

    return [{"name": path.name, "about": path.about + options(path.defaults)} for path in METHODS.values()]


def _selections() -> list[dict[str, str]]:
    from gradpath.measured import WAYS

    return [{"name": name, "about": (order.__doc__ or "").partition("\n")[0]} for name, order in WAYS.items()]


def _formats() -> list[dict[str, str]]:
    from gradpath.formats import FORMATS

    return [{"name": name, "about": f"{x.about} [{x.suffix}]"} for name, x in FORMATS.items()]
