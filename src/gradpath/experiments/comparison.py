"""Every method and selection against one of them, task by task, on the same examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from gradpath.experiments.bench import Bench
from gradpath.experiments.contrast import Cell, Difference, distance_difference, error_difference
from gradpath.experiments.figures import task_title
from gradpath.experiments.grid import circuit_cell
from gradpath.experiments.methods import Method
from gradpath.experiments.request import default_tasks
from gradpath.experiments.table import markdown

Way = tuple[Method, str]  # how edges are scored, and how they are selected


# The two figures of a circuit, and what the difference of two means is called.
FIGURES: dict[str, Callable[[Sequence[Cell], Sequence[Cell]], Difference]] = {
    "Error": error_difference,
    "|1 - NFS|": distance_difference,
}


def comparison(bench: Bench) -> str | None:
    """Tables of differences from EAP-IG, in error and in the distance of NFS from 1; None if it is alone."""
    first, *others = _ways(bench)
    if not others:
        return None
    cells = {
        (task, way): _cells(bench, task, way)
        for task in default_tasks(bench.request)
        for way in (first, *others)
    }
    reading = (
        f"Means over sparsities less those of {_named(bench, first)}, on the same examples, with the 95% "
        "bootstrap interval of the difference. Below zero is better; bold where the interval leaves no doubt."
    )
    tables = []
    for name, difference in FIGURES.items():
        lines = [
            [task_title(task), *(_said(difference(cells[task, way], cells[task, first])) for way in others)]
            for task in default_tasks(bench.request)
        ]
        tables.append(markdown([name, *(_named(bench, way) for way in others)], lines))
    return "\n\n".join([f"## Beside {_named(bench, first)}", reading, *tables])


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
