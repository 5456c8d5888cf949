"""``gradpath ls``: the names that the other verbs take."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from gradpath.cli.options import json_option, plugin_option
from gradpath.cli.progress import print_result

if TYPE_CHECKING:
    from gradpath.attribution.methods import Method
    from gradpath.formats import Format

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


def _first_line(metric: Callable[..., object]) -> str:
    return (metric.__doc__ or "").partition("\n")[0].replace("``", "")


def _about(entry: Any) -> str:
    return str(entry.about)


def _format(entry: Format) -> str:
    return f"{entry.about} [{entry.suffix}]"


def _method(method: Method) -> str:
    options = ", ".join(f"{name}={value}" for name, value in method.defaults.items())
    return method.about + (f" [{options}]" if options else "")


def _entries(where: str, about: Callable[[Any], str]) -> Callable[[], Rows]:
    """The rows of a registry, which is imported when it is listed; ``about`` describes an entry."""

    def rows() -> Rows:
        module, _, name = where.partition(":")
        registry = getattr(importlib.import_module(f"gradpath.{module}"), name)
        return [{"name": key, "about": about(entry)} for key, entry in registry.items()]

    return rows


LISTS: dict[str, tuple[str, Callable[[], Rows]]] = {
    "models": ("Models and model families that can be loaded.", _models),
    "tasks": ("Built-in tasks, for --task.", _tasks),
    "methods": ("How edges are scored, for --method.", _entries("attribution.methods:METHODS", _method)),
    "selections": ("How edges are selected, for --how.", _entries("selection:SELECTIONS", _about)),
    "metrics": ("How the behaviour is measured, for --metric.", _entries("tasks.metrics:METRICS", _first_line)),
    "ablations": (
        "What edges outside the circuit carry, for --ablation.",
        _entries("ablation:ABLATIONS", lambda x: x.about),
    ),
    "experiments": ("Tables and figures, for reproduce.", _entries("paper:EXPERIMENTS", _about)),
    "formats": ("Files that convert reads and writes.", _entries("formats:FORMATS", _format)),
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
    width = max(len(row["name"]) for row in rows)
    lines = [f"{row['name']:<{width}}  {row['about']}" for row in rows]
    print_result({what or "lists": rows} if as_json else "\n".join(lines))
