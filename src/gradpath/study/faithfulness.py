"""Faithfulness against sparsity: the paper's main figure and its three large tables, and ``gradpath curve``.

For every task, method, selection and sparsity: the share of the behaviour that the circuit keeps (NFS) and the
error per example, on examples that were not attributed, with intervals, and the number of edges after pruning.
All methods and selections are compared with one of them on the same examples. On MIB's grid there are its areas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import chain, product

import torch

from gradpath import defaults
from gradpath.ablation import CORRUPTED
from gradpath.evaluation import mib
from gradpath.evaluation.result import Cell, Difference, distance_difference, error_difference
from gradpath.report.style import method_title, task_title
from gradpath.study.bench import Bench, Row
from gradpath.study.figures import draw_curves
from gradpath.study.outcome import (
    Experiment,
    Outcome,
    grouped,
    markdown,
    mean_of,
    nfs,
    percent,
    signed,
    spread,
    with_interval,
)

READING = (
    "NFS: normalized faithfulness in percent, (circuit - corrupted) / (clean - corrupted) on means, with its "
    "95% bootstrap interval over examples. Error: mean |circuit - clean| / mean |clean - corrupted|, 0 being "
    "the model's behaviour. Edges: left after pruning."
)
MIB_READING = (
    "CPR: area under the faithfulness over the shares of edges .001 to 1, on a linear scale; CMD: area under "
    "its distance from 1; both with 95% intervals. top ranks by |score|, signed by the score with its sign."
)
PRICE_READING = (
    "Forward, backward: passes that the scores take, as a mean over tasks. Units: one forward and one backward pass, "
    "a backward pass counting as two forward passes. Passes are over the positions from the first differing token "
    "on, those of literal eap-gp over the whole prompt."
)
# The two quantities that methods and selections are compared by.
DIFFERENCES: dict[str, Callable[[Sequence[Cell], Sequence[Cell]], Difference]] = {
    "Error": error_difference,
    "|1 - NFS|": distance_difference,
}
# Random circuits of the same sizes: the baseline of every curve.
RANDOM = tuple(f"random+seed={seed}" for seed in range(5))


def curve_rows(bench: Bench, task: str) -> list[Row]:
    """The rows of all circuits of the study on a task."""
    return bench.rows(list(bench.study.recipes(task, bench.sizes(task))))


def random_rows(bench: Bench, task: str, rows: Sequence[Row]) -> list[Row]:
    """For every size of some circuits the faithfulness and error of random ones: mean, worst and best."""
    study, sizes = bench.study, grouped([row for row in rows if row["edges_requested"]], "seed", "edges_requested")
    recipes = [
        study.at(task, study.methods[0], seed).changed(selection=selection, edges=n)
        for (seed, n), selection in product(sizes, RANDOM)
    ]
    measured, found = bench.rows(recipes), list[Row]()
    for i, group in enumerate(sizes.values()):
        names = ("task", "seed", "sparsity", "edges_requested", "examples", "examples_attributed", "held_out")
        row = {name: group[0][name] for name in names if name in group[0]}
        circuits = measured[i * len(RANDOM) : (i + 1) * len(RANDOM)]
        found.append({**row, "circuits": len(circuits), **spread(circuits, "faithfulness", "error")})
    return found


def outcome(bench: Bench, name: str = "faithfulness") -> Outcome:
    study, rows, random = bench.study, list[Row](), list[Row]()
    for task in study.task_names:
        own = curve_rows(bench, task)
        rows, random = rows + own, random + random_rows(bench, task, own)
    areas, random_areas = (_areas(bench), _random_areas(bench)) if study.measures_mib else ([], [])
    prices = price_rows(bench)
    notes = [READING, *([MIB_READING] if areas else []), PRICE_READING]
    if study.recipe.ablation != CORRUPTED:
        notes.append(
            f"Ablation: {study.recipe.ablation}. Corrupted is the run in which every node is ablated so; "
            "means are over the attributed examples."
        )
    if bench.paper is not None:
        notes.append(f"Paper: {bench.paper.source}; it does not say how its edges were selected.")
    log = study.grid == defaults.MIB_GRID
    parts = [
        _methods_table(rows, areas, prices),
        _areas_table(areas, random_areas) if areas else None,
        _means_table(rows),
        _random_table(random),
        comparison(bench),
    ]
    parts += [_task_section(group) for group in grouped(rows, "task", "selection").values()]
    return Outcome(
        name=name,
        title=f"Faithfulness against sparsity in {bench.title}",
        rows=rows,
        text="\n\n".join(part for part in parts if part),
        figures={name: lambda: draw_curves(rows, bench.title, log=log, areas=areas, random=random)},
        notes=tuple(notes),
        facts={"random": random, "prices": prices, **({"mib": areas, "mib_random": random_areas} if areas else {})},
    )


def _cells(bench: Bench, task: str, method: str, selection: str) -> Sequence[Cell]:
    """The cells of one curve."""
    return bench.measure(list(bench.study.recipes(task, bench.sizes(task), [method], [selection])))


def _areas(bench: Bench) -> list[Row]:
    """MIB's areas, one row per task, selection and method."""
    study = bench.study
    return [
        {"task": task, "method": method, "selection": name, **asdict(_areas_of(bench, task, method, name))}
        for task, name, method in product(study.task_names, study.selections, study.methods)
    ]


def _areas_of(bench: Bench, task: str, method: str, selection: str) -> mib.Areas:
    cells = _cells(bench, task, method, selection)
    clean, corrupted = (torch.tensor(cells[0][f"{end}_values"]) for end in ("clean", "corrupted"))
    return mib.areas(clean, corrupted, [torch.tensor(cell["values"]) for cell in cells])


def _random_areas(bench: Bench) -> list[Row]:
    """MIB's areas of random rankings, one row per task: mean, smallest and largest."""
    rows = []
    for task in bench.study.task_names:
        areas = [_areas_of(bench, task, bench.study.methods[0], selection) for selection in RANDOM]
        row: Row = {"task": task, "rankings": len(areas)}
        for name in ("cpr", "cmd"):
            values = [getattr(ranking, name) for ranking in areas]
            row |= {name: sum(values) / len(values), f"{name}_range": [min(values), max(values)]}
        rows.append(row)
    return rows


def _areas_table(rows: Sequence[Row], random: Sequence[Row]) -> str:
    def cells(row: Row, ends: str) -> list[str]:
        return [with_interval(row[name], *row[f"{name}_{ends}"]) for name in ("cpr", "cmd")]

    # Random rankings have no method: their line is the same under each.
    n = len(grouped(rows, "method"))
    lines = [[f"{task_title(row['task'])}, random", *cells(row, "range") * n] for row in random]
    reading = f"random: the mean of {random[0]['rankings']} random rankings, and the smallest and largest of them."
    table = _by_method("areas of MIB", ("CPR", "CMD"), rows, lambda group: cells(group[0], "interval"), lines)
    return f"## MIB\n\n{reading}\n\n{table}"


def _means_table(rows: Sequence[Row]) -> str:
    def cells(group: Sequence[Row]) -> list[str]:
        return [percent(mean_of(group, "faithfulness")), f"{mean_of(group, 'error'):.3f}"]

    return "## Means\n\n" + _by_method("mean over sparsities", ("NFS", "error"), rows, cells)


def _random_table(rows: Sequence[Row]) -> str:
    """The faithfulness and error of random circuits of the same sizes: a line per task, means over sparsities."""
    lines = []
    for task, group in grouped(rows, "task").items():
        line = [task_title(task)]
        for name, text in (("faithfulness", percent), ("error", lambda x: f"{x:.3f}")):
            low, value, high = (text(mean_of(group, key)) for key in (f"{name}_low", name, f"{name}_high"))
            line.append(f"{value} ({low} to {high})")
        lines.append(line)
    headings = [f"mean over sparsities, {rows[0]['circuits']} circuits each", "NFS (from, to)", "error (from, to)"]
    return "## Random circuits\n\nWith as many edges, drawn at random and pruned.\n\n" + markdown(headings, lines)


def price_rows(bench: Bench) -> list[Row]:
    """The passes that each method's scores took, as means over tasks."""
    rows, tasks = [], bench.study.task_names
    for method in bench.study.methods:
        prices = [bench.price(bench.study.at(task, method)) for task in tasks]
        row: Row = {"method": method}
        for kind in ("forward", "backward"):
            row[kind] = sum(price[kind] for price in prices) / len(tasks)
        row["units"] = (row["forward"] + 2 * row["backward"]) / 3
        rows.append(row)
    return rows


def _methods_table(rows: Sequence[Row], areas: Sequence[Row], prices: Sequence[Row]) -> str | None:
    """One line per method and selection: means over tasks and sparsities, and the price of the scores."""
    if len({(row["method"], row["selection"]) for row in rows}) <= 1:
        return None
    price, lines = {row["method"]: row for row in prices}, []
    cmd = grouped(areas, "method", "selection")
    for (method, selection), group in grouped(rows, "method", "selection").items():
        line = [f"{method_title(method)}, {selection}"]
        line += [percent(mean_of(group, "faithfulness")), f"{mean_of(group, 'error'):.3f}"]
        line += [f"{mean_of(cmd[method, selection], 'cmd'):.3f}"] if areas else []
        if method in price:
            line += [f"{price[method][key]:.4g}" for key in ("forward", "backward", "units")]
        lines.append(line)
    headings = ["mean over tasks and sparsities", "NFS", "error", *(["CMD"] if areas else [])]
    headings += ["forward", "backward", "units"] if prices else []
    return "## Methods\n\n" + markdown(headings, lines)


def _by_method(
    title: str,
    names: Sequence[str],
    rows: Sequence[Row],
    cells: Callable[[Sequence[Row]], list[str]],
    more: Sequence[list[str]] = (),
) -> str:
    """A table with a line per task and selection, and the ``cells`` of each method in it; then the lines ``more``."""
    lines = []
    for (task, selection), group in grouped(rows, "task", "selection").items():
        by_method = grouped(group, "method").values()
        lines.append([f"{task_title(task)}, {selection}", *chain.from_iterable(map(cells, by_method))])
    headings = [title, *(f"{label} {name}" for label in grouped(rows, "method") for name in names)]
    return markdown(headings, [*lines, *more])


def examples_of(row: Row) -> str:
    """The numbers of examples that were attributed and measured, as text."""
    if not row.get("held_out", True):
        return f"{row['examples']} examples for both attribution and evaluation: nothing is held out"
    return f"{row['examples_attributed']} examples for attribution, {row['examples']} held out"


def _task_section(rows: Sequence[Row]) -> str:
    """The circuits of one task and selection, a line per sparsity."""
    first = rows[0]
    head = f"## {task_title(first['task'])}, {first['selection']}\n\n{examples_of(first)}.\n\n"
    labels = {label: any("paper" in row for row in group) for label, group in grouped(rows, "method").items()}
    headings = ["sparsity", "edges requested"]
    for label, has_paper in labels.items():
        headings += [f"{label} NFS [95%]", "error", "edges"] + (["paper", "difference"] if has_paper else [])
    lines = []
    for sparsity, group in grouped(rows, "sparsity").items():
        line = [f"{100 * sparsity:.4g}%", f"{group[0]['edges_requested']:,}"]
        for row in {row["method"]: row for row in group}.values():
            line += [nfs(row), f"{row['error']:.3f}", f"{row['edges_kept']:,}"]
            line += [percent(row.get("paper")), signed(row.get("difference"))] if labels[row["method"]] else []
        lines.append(line)
    return head + markdown(headings, lines)


def comparison(bench: Bench) -> str | None:
    """Tables of the differences from EAP-IG with the first selection, in error and in |1 - NFS|.

    Without EAP-IG the baseline is the first method. None if there is nothing to compare.
    """
    study, selections = bench.study, bench.study.selections
    pairs = [(method, selection) for selection, method in product(selections, study.methods)]
    pairs.sort(key=lambda pair: (pair[1] != selections[0], pair[0] != "eap-ig"))
    if len(pairs) <= 1:
        return None
    first, *others = [method if len(selections) == 1 else f"{method}, {selection}" for method, selection in pairs]
    reading = (
        f"Means over sparsities minus those of {first}, on the same examples, with the 95% bootstrap interval of "
        "the difference. Below zero is better; bold where the interval excludes zero."
    )
    cells = {task: [_cells(bench, task, *pair) for pair in pairs] for task in study.task_names}

    def text(difference: Difference) -> str:
        value = with_interval(difference.value, difference.low, difference.high, "+.3f", "+.3f")
        return f"**{value}**" if difference.is_clear else value

    tables = []
    for name, difference in DIFFERENCES.items():
        lines = [
            [task_title(task), *(text(difference(x, baseline)) for x in compared)]
            for task, (baseline, *compared) in cells.items()
        ]
        tables.append(markdown([name, *others], lines))
    return "\n\n".join([f"## Compared with {first}", reading, *tables])


FAITHFULNESS = Experiment("faithfulness", outcome)
