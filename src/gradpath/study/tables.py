"""Tables of circuits for people: means over sizes, every size, and the differences between ways to a circuit.

A row is one circuit; a way is a method with a selection. Rows of several seeds are shown as means with their standard
deviation. Ways are then compared in pairs: each seed draws other examples, on which all ways are measured, so what
counts is the difference within a seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from statistics import mean, stdev
from typing import Any

from gradpath.report.style import task_title
from gradpath.study.bench import Row
from gradpath.study.outcome import grouped, markdown, mean_of, nfs, percent, signed

# What ways are compared by; of each, less is better.
QUANTITIES: dict[str, tuple[str, Callable[[Row], float]]] = {
    "error": ("error", lambda row: float(row["error"])),
    "distance": ("|1 - NFS|", lambda row: abs(1 - float(row["faithfulness"]))),
    "edges": ("edges", lambda row: float(row["edges_requested"])),
}


def way_of(row: Row) -> str:
    return f"{row['method']}, {row['selection']}" if row["selection"] else "random circuits"


def place_of(row: Row) -> str:
    return f"{task_title(row['task'])} in {row['model']}"


def by_seed(rows: Sequence[Row], value: Callable[[Row], float]) -> dict[int, float]:
    """The mean of a value over the rows of each seed."""
    return {seed: mean(map(value, group)) for seed, group in grouped(rows, "seed").items()}


def over_seeds(rows: Sequence[Row]) -> list[Row]:
    """One row for circuits that differ only in their seed: means, and standard deviations if there are several.

    The ends of an interval are then one standard deviation from the mean; of random circuits, the outermost ones.
    """
    merged = []
    for group in grouped(rows, "model", "task", "method", "selection", "size").values():
        names = [name for name in ("sparsity", "edges_requested", "edges_kept") if name in group[0]]
        row: Row = {**group[0], **{name: mean_of(group, name) for name in names}}
        for name in ("faithfulness", "error"):
            values = [*by_seed(group, itemgetter(name)).values()]
            row[name] = mean(values)
            if len(values) > 1:
                row[f"{name}_sd"] = stdev(values)
            for end, outermost, sign in (("low", min, -1), ("high", max, 1)):
                if len(values) > 1 and row["method"] != "random":
                    row[f"{name}_{end}"] = row[name] + sign * row[f"{name}_sd"]
                else:
                    ends = [float(x) for other in group if (x := other[f"{name}_{end}"]) is not None]
                    row[f"{name}_{end}"] = outermost(ends, default=None)
        merged.append(row)
    return merged


def compared(rows: Sequence[Row], quantities: Sequence[str]) -> list[Row]:
    """Every way minus the first one, on the same examples: a row for each model, task and way.

    Differences are those of means over sizes, one for each seed.
    """
    found = []
    for group in grouped(rows, "model", "task").values():
        first, *others = grouped(group, "method", "selection").values()
        for other in others:
            row: Row = {name: other[0][name] for name in ("model", "task", "method", "selection")}
            for name in quantities:
                ours, theirs = (by_seed(way, QUANTITIES[name][1]) for way in (other, first))
                difference = over_differences([ours[seed] - theirs[seed] for seed in theirs])
                row |= {f"{name}_{key}": value for key, value in difference.items()}
            found.append(row)
    return found


def over_differences(differences: Sequence[float]) -> dict[str, Any]:
    """The mean of the differences of several seeds, its standard error and the 95% interval of Student's t.

    It is ``clear`` if the interval excludes zero; ``ahead`` is the number of seeds with a difference below zero.
    """
    from scipy.stats import t

    n, centre = len(differences), mean(differences)
    error = stdev(differences) / math.sqrt(n)
    low, high = (centre + sign * float(t.ppf(0.975, n - 1)) * error for sign in (-1, 1))
    ahead = sum(x < 0 for x in differences)
    spread = {"difference": centre, "standard_error": error, "low": low, "high": high}
    return {**spread, "seeds": n, "ahead": ahead, "clear": not low <= 0 <= high}


def comparison_table(first: str, differences: Sequence[Row]) -> str:
    """A line per model, task and way with its differences from the first way; bold where they are clear."""
    several = "error_seeds" in differences[0]

    def cell(row: Row, name: str) -> str:
        difference, low, high = (row[f"{name}_{key}"] for key in ("difference", "low", "high"))
        form = ",.0f" if name == "edges" else ".3f"
        text = f"{difference:+{form}} [{low:+{form}}, {high:+{form}}]"
        if several:
            ahead = f"{row[f'{name}_ahead']} of {row[f'{name}_seeds']}"
            text = f"{difference:+{form}} ± {row[f'{name}_standard_error']:{form}}, {ahead}"
        return f"**{text}**" if row[f"{name}_clear"] else text

    names = [name for name in QUANTITIES if f"{name}_difference" in differences[0]]
    lines = [[f"{place_of(row)}: {way_of(row)}", *(cell(row, name) for name in names)] for row in differences]
    reading = f"Means over sizes minus those of {first}, on the same examples; below zero is better. "
    reading += (
        "The mean over seeds ± its standard error, and the number of seeds below zero. Bold: clear, the 95% interval "
        "of Student's t over seeds excludes zero."
        if several
        else "In brackets the 95% bootstrap interval of the difference; bold where it excludes zero."
    )
    table = markdown(["", *(QUANTITIES[name][0] for name in names)], lines)
    return f"## Compared with {first}\n\n{reading}\n\n{table}"


def means_table(rows: Sequence[Row], random: Sequence[Row], more: Mapping[str, Mapping[str, str]] | None = None) -> str:
    """Means over sizes: a line per way, a column per model and task; ``more``: headings, and cells by method."""
    places, more = [*grouped(rows, "model", "task")], more or {}

    def cell(group: Sequence[Row]) -> str:
        def number(name: str, form: Callable[[float], str]) -> str:
            values = [*by_seed(group, itemgetter(name)).values()]
            return " ± ".join([form(mean(values)), *([form(stdev(values))] if len(values) > 1 else [])])

        return f"{number('faithfulness', percent)} / {number('error', '{:.3f}'.format)}" if group else ""

    lines = []
    for group in grouped([*rows, *random], "method", "selection").values():
        at = grouped(group, "model", "task")
        every = [cell(group)] if len(places) > 1 else []
        cells = [column.get(group[0]["method"], "") for column in more.values()]
        lines.append([way_of(group[0]), *every, *(cell(at.get(place, [])) for place in places), *cells])
    headings = ["method, selection", *(["all"] if len(places) > 1 else [])]
    headings += [*(f"{task_title(task)}, {model}" for model, task in places), *more]
    return "## Means\n\nNFS in percent / error, as means over all sizes.\n\n" + markdown(headings, lines)


def size_tables(rows: Sequence[Row], random: Sequence[Row]) -> list[str]:
    """For each model and task the circuits: a line per size, a column per way."""

    def cell(row: Row) -> str:
        if "error_sd" in row:
            shares = f"{percent(row['faithfulness'])} ± {percent(row['faithfulness_sd'])}"
            text = f"{shares} / {row['error']:.3f} ± {row['error_sd']:.3f}"
        else:
            text = f"{nfs(row)} / {row['error']:.3f}"
        text += f" / {row['edges_kept']:,.0f}" if "edges_kept" in row else ""
        return text + (f"; paper {percent(row['paper'])} ({signed(row['difference'])})" if "paper" in row else "")

    tables, chance = [], grouped(random, "model", "task")
    for place, group in grouped(rows, "model", "task").items():
        ways = grouped([*group, *chance.get(place, [])], "method", "selection").values()
        lines = []
        for size, same in grouped(group, "size").items():
            edges = sorted({round(row["edges_requested"]) for row in same})
            at = [{row["size"]: row for row in way} for way in ways]
            requested = f"{edges[0]:,}" if len(edges) == 1 else f"{edges[0]:,} to {edges[-1]:,}"
            lines.append([size, requested, *(cell(way[size]) if size in way else "" for way in at)])
        head = f"## {place_of(group[0])}\n\n{examples_of(group[0])}. NFS in percent / error / edges left.\n\n"
        headings = ["size", "edges requested", *(way_of(way[0]) for way in ways)]
        tables.append(head + markdown(headings, lines))
    return tables


def examples_of(row: Row) -> str:
    """The numbers of examples that were attributed and measured, as text."""
    if not row.get("held_out", True):
        return f"{row['examples']} examples for both attribution and evaluation: nothing is held out"
    return f"{row['examples_attributed']} examples for attribution, {row['examples']} held out"
