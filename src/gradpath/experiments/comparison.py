"""Every method and selection against one of them, task by task, on the same examples."""

from __future__ import annotations

from itertools import product

from gradpath.experiments.bench import Bench
from gradpath.experiments.contrast import Cell, Difference, error_difference
from gradpath.experiments.figures import task_title
from gradpath.experiments.grid import circuit_cell
from gradpath.experiments.methods import Method
from gradpath.experiments.request import default_tasks
from gradpath.experiments.table import markdown

Way = tuple[Method, str]  # how edges are scored, and how they are selected


def comparison(bench: Bench) -> str | None:
    """A table of differences in error from the strongest of the published methods, or None if it is alone."""
    asked = bench.request
    first, *others = _ways(bench)
    if not others:
        return None
    lines = []
    for task in default_tasks(asked):
        theirs = _cells(bench, task, first)
        found = [error_difference(_cells(bench, task, way), theirs) for way in others]
        lines.append([task_title(task), *(_said(difference) for difference in found)])
    title = f"## Error beside that of {_named(bench, first)}\n\n"
    reading = (
        f"Mean error over sparsities less that of {_named(bench, first)}, on the same examples, with the 95% "
        "bootstrap interval of the difference. Below zero is better; bold where the interval leaves no "
        "doubt.\n\n"
    )
    return title + reading + markdown(["task", *(_named(bench, way) for way in others)], lines)


def _ways(bench: Bench) -> list[Way]:
    """All that were asked for, first the one to compare with: EAP-IG by the first selection if there."""
    ways = [(method, how) for how, method in product(bench.request.hows, bench.request.methods)]
    return sorted(ways, key=lambda way: (way[1] != bench.request.hows[0], way[0].label != "eap-ig"))


def _cells(bench: Bench, task: str, way: Way) -> list[Cell]:
    return [circuit_cell(bench, task, *way, bench.edges(sparsity)) for sparsity in bench.sparsities(task)]


def _named(bench: Bench, way: Way) -> str:
    method, how = way
    return method.label if len(bench.request.hows) == 1 else f"{method.label}, {how}"


def _said(difference: Difference) -> str:
    text = f"{difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
    return f"**{text}**" if difference.is_clear else text
