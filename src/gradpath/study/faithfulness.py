"""Faithfulness (NFS) and error of circuits of several sizes: rows, tables, the figure and the page of ``curve``.

A row is one circuit; a way is a method with a selection. Beside every curve are random circuits of the same sizes. All
ways are compared with one of them on the same examples. On MIB's grid there are its areas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from itertools import product
from operator import itemgetter
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import torch

from gradpath import defaults
from gradpath.ablation import CORRUPTED
from gradpath.evaluation import mib
from gradpath.evaluation.result import Cell, distance_difference, error_difference
from gradpath.recipe import Recipe
from gradpath.report import Chosen, CurvePoint, MethodRun, Report, write
from gradpath.report.data import CHANCE, IN_PAGE, READABLE, SAVED
from gradpath.report.payload import LIMIT
from gradpath.report.style import GREY, INK, LINES, MUTED, colour, fit, marker, method_title, task_title, tiled
from gradpath.study.bench import Bench, Row
from gradpath.study.outcome import Experiment, Outcome, grouped, markdown, mean_of, nfs, percent, signed, with_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

READING = (
    "NFS: normalized faithfulness in percent, (circuit - corrupted) / (clean - corrupted) on means, with its "
    "95% interval over examples. Error: mean |circuit - clean| / mean |clean - corrupted|, 0 being "
    "the model's behaviour. Edges: left after pruning."
)
MIB_READING = (
    "CPR: area under the faithfulness over the shares of edges .001 to 1, on a linear scale; CMD: area under "
    "its distance from 1; both with 95% intervals. top ranks by |score|, signed by the score with its sign."
)
# Random circuits of the same sizes: the baseline of every curve.
RANDOM = tuple(f"random+seed={seed}" for seed in range(5))
SEARCHED = ("", "faithfulness")  # sizes that differ between circuits: fields of a recipe
AREAS = ("cpr", "cmd")
# What ways are compared by; of each, less is better.
QUANTITIES: dict[str, tuple[str, Callable[[Row], float]]] = {
    "error": ("error", lambda row: float(row["error"])),
    "distance": ("|1 - NFS|", lambda row: abs(1 - float(row["faithfulness"]))),
    "edges": ("edges", lambda row: float(row["edges_requested"])),
}
SELECTION_TITLES = {
    "top": "top-n edges by |score|",
    "greedy": "greedy from the logits",
    "signed": "top-n edges by score, the sign counted",
    "refined": "refined on the circuit itself",
    "learned": "learned as weights of edges",
}


def measured_rows(
    bench: Bench, task: str, recipes: Sequence[Recipe], names: Mapping[str, str]
) -> tuple[list[Row], list[Row]]:
    """The rows of circuits on a task, and those of random ones of the same sizes; ``names`` are columns of all rows."""
    rows = [{**row, "size": _size(x), **names} for x, row in zip(recipes, bench.rows(recipes), strict=True)]
    # In a part of a study, random circuits of a size that all methods share are those of the first method.
    first = bench.study.methods[0]
    own = [row for x, row in zip(recipes, rows, strict=True) if row["method"] == first or (x.size or "") in SEARCHED]
    return rows, [{**row, **names} for row in _random_rows(bench, task, own)]


def _size(recipe: Recipe) -> str:
    """The requested size of a circuit in tables."""
    if recipe.edges is not None:
        return f"{recipe.edges:,} edges"
    if recipe.sparsity is not None:
        return f"{100 * recipe.sparsity:.4g}% sparsity"
    return "as in find" if recipe.faithfulness is None else f"faithfulness {recipe.faithfulness:.0%}"


def _random_rows(bench: Bench, task: str, rows: Sequence[Row]) -> list[Row]:
    """For every size of some circuits the faithfulness and error of random ones: mean, worst and best."""
    sizes = grouped([row for row in rows if row["edges_requested"]], "seed", "edges_requested")
    recipes = [
        # A cell belongs to scores: to those of the first circuit of this size.
        bench.study.at(task, group[0]["method"], seed).changed(selection=selection, edges=n)
        for ((seed, n), group), selection in product(sizes.items(), RANDOM)
    ]
    measured, found = bench.rows(recipes), list[Row]()
    names = ["task", "seed", "size", "sparsity", "edges_requested", "examples", "examples_attributed", "held_out"]
    for i, (first, *_) in enumerate(sizes.values()):
        row: Row = {name: first[name] for name in names if name in first} | {"method": "random", "selection": ""}
        circuits = measured[i * len(RANDOM) : (i + 1) * len(RANDOM)]
        row["circuits"] = len(circuits)
        for name in ("faithfulness", "error"):
            values = [float(circuit[name]) for circuit in circuits]
            row |= {name: mean(values), f"{name}_low": min(values), f"{name}_high": max(values)}
        found.append(row)
    return found


def outcome(bench: Bench, name: str = "faithfulness") -> Outcome:
    """All circuits of a study in one model."""
    study, rows, random = bench.study, list[Row](), list[Row]()
    for task in study.task_names:
        own, chance = measured_rows(bench, task, list(study.recipes(task, bench.sizes(task))), {"model": bench.title})
        rows, random = rows + own, random + chance
    # EAP-IG with the first selection is what the others are compared with, if it is among them.
    ways = [(method, selection) for selection, method in product(study.selections, study.methods)]
    ways.sort(key=lambda way: (way[1] != study.selections[0], way[0] != "eap-ig"))
    if name == "curve":  # one task: the way with the smallest error
        errors = {way: mean_of(group, "error") for way, group in grouped(rows, "method", "selection").items()}
        ways.sort(key=lambda way: errors[way])
    areas = _areas(bench) if study.measures_mib else []
    notes = [MIB_READING] if areas else []
    if study.recipe.ablation != CORRUPTED:
        notes.append(
            f"Ablation: {study.recipe.ablation}. Corrupted is the run in which every node is ablated so; "
            "means are over the attributed examples."
        )
    if bench.paper is not None:
        notes.append(f"Paper: {bench.paper.source}; it does not say how its edges were selected.")
    return report(
        name,
        f"Faithfulness against sparsity in {bench.title}",
        rows,
        random,
        compared=[row for task in study.task_names for row in _differences(bench, task, ways)],
        baseline=", ".join(ways[0]),
        areas=areas,
        notes=notes,
        log=study.grid == defaults.MIB_GRID,
    )


def report(
    name: str,
    title: str,
    rows: list[Row],
    random: list[Row],
    *,
    compared: Sequence[Row],
    baseline: str,
    areas: Sequence[Row] = (),
    notes: Sequence[str] = (),
    log: bool = False,
) -> Outcome:
    """The tables and the figure of measured rows, and of random circuits of the same sizes.

    ``compared`` are the differences of ways from the first one, ``baseline``, and ``areas`` those of MIB. With ``log``
    the figure has the share of edges on a logarithmic axis, instead of the sparsity.
    """
    means, chance = over_seeds(rows), over_seeds(random)
    tables = [_means_table(rows, random)] if rows else []
    tables += [_areas_table(areas)] if areas else []
    tables += [_comparison_table(baseline, compared)] if compared else []
    seeds = len(grouped(rows, "seed"))
    return Outcome(
        name=name,
        title=title,
        rows=rows,
        text="\n\n".join([*tables, *_size_tables(means, chance)]) or "No circuit was measured.",
        figures={name: lambda: _figure(title, means, chance, seeds, log)} if means else {},
        notes=(READING, *notes),
        facts={
            "random": random,
            "compared": compared,
            "baseline": baseline,  # of the comparison
            **({"over_seeds": means} if seeds > 1 else {}),
            **({"mib": areas} if areas else {}),
        },
    )


def _cells(bench: Bench, task: str, method: str, selection: str) -> Sequence[Cell]:
    """The cells of one curve."""
    return bench.measure(list(bench.study.recipes(task, bench.sizes(task), [method], [selection])))


def _differences(bench: Bench, task: str, ways: Sequence[tuple[str, str]]) -> list[Row]:
    """Every way minus the first one: means over sizes, with bootstrap intervals over the examples that both ran on."""
    baseline, *others = (_cells(bench, task, *way) for way in ways)
    rows = []
    for (method, selection), cells in zip(ways[1:], others, strict=True):
        row: Row = {"model": bench.title, "task": task, "method": method, "selection": selection}
        for name, function in (("error", error_difference), ("distance", distance_difference)):
            found = function(cells, baseline)
            row |= {f"{name}_difference": found.value, f"{name}_low": found.low, f"{name}_high": found.high}
            row[f"{name}_clear"] = found.is_clear
        rows.append(row)
    return rows


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


def _areas_table(rows: Sequence[Row]) -> str:
    lines = [
        [f"{task_title(row['task'])}: {way_of(row)}", *(with_interval(row[x], *row[f"{x}_interval"]) for x in AREAS)]
        for row in rows
    ]
    return "## MIB\n\n" + markdown(["", *map(str.upper, AREAS)], lines)


def way_of(row: Row) -> str:
    return f"{row['method']}, {row['selection']}" if row["selection"] else "random circuits"


def _place_of(row: Row) -> str:
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


def _means_table(rows: Sequence[Row], random: Sequence[Row]) -> str:
    """Means over sizes: a line per way, a column per model and task."""
    places = [*grouped(rows, "model", "task")]

    def cell(group: Sequence[Row]) -> str:
        def number(name: str, form: Callable[[float], str]) -> str:
            values = [*by_seed(group, itemgetter(name)).values()]
            return " ± ".join([form(mean(values)), *([form(stdev(values))] if len(values) > 1 else [])])

        return f"{number('faithfulness', percent)} / {number('error', '{:.3f}'.format)}" if group else ""

    lines = []
    for group in grouped([*rows, *random], "method", "selection").values():
        at = grouped(group, "model", "task")
        every = [cell(group)] if len(places) > 1 else []
        lines.append([way_of(group[0]), *every, *(cell(at.get(place, [])) for place in places)])
    headings = ["method, selection", *(["all"] if len(places) > 1 else [])]
    headings += [f"{task_title(task)}, {model}" for model, task in places]
    return "## Means\n\nNFS in percent / error, as means over all sizes.\n\n" + markdown(headings, lines)


def _comparison_table(first: str, differences: Sequence[Row]) -> str:
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
    lines = [[f"{_place_of(row)}: {way_of(row)}", *(cell(row, name) for name in names)] for row in differences]
    reading = f"Means over sizes minus those of {first}, on the same examples; below zero is better. "
    reading += (
        "The mean over seeds ± its standard error, and the number of seeds below zero. Bold: clear, the 95% interval "
        "of Student's t over seeds excludes zero."
        if several
        else "In brackets the 95% bootstrap interval of the difference; bold where it excludes zero."
    )
    table = markdown(["", *(QUANTITIES[name][0] for name in names)], lines)
    return f"## Compared with {first}\n\n{reading}\n\n{table}"


def _size_tables(rows: Sequence[Row], random: Sequence[Row]) -> list[str]:
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
        head = f"## {_place_of(group[0])}\n\n{examples_of(group[0])}. NFS in percent / error / edges left.\n\n"
        headings = ["size", "edges requested", *(way_of(way[0]) for way in ways)]
        tables.append(head + markdown(headings, lines))
    return tables


def examples_of(row: Row) -> str:
    """The numbers of examples that were attributed and measured, as text."""
    if not row.get("held_out", True):
        return f"{row['examples']} examples for both attribution and evaluation: nothing is held out"
    return f"{row['examples_attributed']} examples for attribution, {row['examples']} held out"


def _figure(title: str, rows: Sequence[Row], random: Sequence[Row], seeds: int, log: bool) -> Figure:
    """A panel per model and task, with curves over sparsity."""
    several = len({row["model"] for row in rows}) > 1

    def panel(row: Row) -> Row:
        return {**row, "task": f"{task_title(row['task'])}, {row['model']}"} if several else row

    groups = grouped([panel(row) for row in rows], "task").values()
    ordered = [row for group in groups for row in sorted(group, key=lambda row: -row["sparsity"])]
    chance = sorted((panel(row) for row in random), key=lambda row: -row["sparsity"])
    band = "95% interval" if seeds == 1 else f"standard deviation over {seeds} seeds"
    return draw_curves(ordered, title if several else rows[0]["model"], log=log, random=chance, band=band)


def draw_curves(
    rows: Sequence[Row], model: str, *, log: bool, random: Sequence[Row] = (), band: str = "95% interval"
) -> Figure:
    """NFS against sparsity: panels are tasks, colours are methods, line styles are selections.

    The grey band is from the worst to the best of the random circuits; ``band`` says what the others are. Open circles
    are the paper's numbers.
    """
    tasks = grouped(rows, "task")
    figure, axes, columns = tiled(len(tasks), (4.2, 3.3), (1.2, 1.3))
    for (task, group), ax in zip(tasks.items(), axes, strict=False):
        _curve_panel(ax, group, [row for row in random if row["task"] == task], log)
    figure.suptitle(f"Normalized faithfulness of circuits in {model}", fontsize=12, color=INK)
    handles = _curve_handles(rows, random, band)
    figure.legend(handles=handles, loc="outside lower center", ncols=2 * columns, fontsize=8.5, frameon=False)
    return figure


def _curve_panel(ax: Axes, rows: Sequence[Row], random: Sequence[Row], log: bool) -> None:
    def x_of(rows: Sequence[Row]) -> list[float]:
        return [100 * (1 - row["sparsity"]) if log else 100 * row["sparsity"] for row in rows]

    def ends_of(row: Row) -> list[float]:  # not drawn where there is no interval
        ends = (row[f"faithfulness_{end}"] for end in ("low", "high"))
        return [math.nan if end is None else 100 * end for end in ends]

    def band(rows: Sequence[Row], **style: Any) -> None:
        low, high = ([ends_of(row)[at] for row in rows] for at in (0, 1))
        ax.fill_between(x_of(rows), low, high, **style)

    labels, selections = list(grouped(rows, "method")), list(grouped(rows, "selection"))
    ax.axhline(100, color=MUTED, linewidth=0.8, linestyle=":")
    for label, selection in product(labels, selections):
        curve = [row for row in rows if (row["method"], row["selection"]) == (label, selection)]
        y, paint, main = [100 * row["faithfulness"] for row in curve], colour(label, labels), selection == selections[0]
        style: dict[str, Any] = {
            "color": paint,
            "marker": marker(label, labels),
            "linestyle": LINES.get(selection, ":"),
        }
        style |= {"markersize": 4, "linewidth": 1.6} if main else {"markersize": 3, "linewidth": 1.1}
        ax.plot(x_of(curve), y, **style, clip_on=False)  # whole markers at the end of the axis
        if main:
            band(curve, color=paint, alpha=0.13, linewidth=0)
            if len(curve) == 1:  # a band has no width at one size
                ax.plot(2 * x_of(curve), ends_of(curve[0]), color=paint, marker="_", markersize=9, linewidth=1.2)
            if paper := [row for row in curve if "paper" in row]:
                y = [100 * row["paper"] for row in paper]
                ax.scatter(x_of(paper), y, s=34, facecolors="none", edgecolors=paint, linewidths=1.1)
    kind = "held-out examples" if rows[0].get("held_out", True) else "examples"
    ax.set_title(f"{task_title(rows[0]['task'])}  ({rows[0]['examples']} {kind})", color=INK)
    ax.set_xlabel("edges kept (% of all edges)" if log else "edge sparsity (% of edges left out)")
    ax.set_ylabel("NFS (% of clean - corrupted)")
    if log:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    fit(ax, rows)
    band(random, color=GREY, alpha=0.35, linewidth=0.8, zorder=0)
    if not log:
        first, last = ax.get_xlim()  # no circuit leaves out fewer edges than none, or more than all
        ax.set_xlim(min(100.0, last), max(0.0, first))


def _curve_handles(rows: Sequence[Row], random: Sequence[Row], band: str) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    labels, selections = list(grouped(rows, "method")), list(grouped(rows, "selection"))
    handles: list[Any] = []
    for x in labels:
        handles.append(Line2D([], [], color=colour(x, labels), marker=marker(x, labels), label=method_title(x)))
    for name in selections:
        title = SELECTION_TITLES.get(name, name) + (f" (band: {band})" if name == selections[0] else "")
        handles.append(Line2D([], [], color=INK, linestyle=LINES.get(name, ":"), label=title))
    if any("paper" in row for row in rows):
        circle: dict[str, Any] = {"marker": "o", "linestyle": "", "markerfacecolor": "none"}
        handles.append(Line2D([], [], color=INK, label="the paper's figure", **circle))
    if random:
        handles.append(Patch(color=GREY, alpha=0.35, label=f"{random[0]['circuits']} random circuits"))
    return handles


FAITHFULNESS = Experiment("faithfulness", outcome)


def write_page(bench: Bench, outcome: Outcome, command: str, folder: Path) -> list[Path]:
    """Write ``report.html``: all methods side by side, opened on the last circuit of the first of them."""
    rows = outcome.rows
    runs = _runs(bench, outcome)
    report = Report(
        title=f"{rows[0]['task']} in {bench.model.name}",
        model=bench.model.name,
        task=rows[0]["task"],
        runs=runs,
        chosen=_chosen(rows, runs[0]),
        command=command,
        about={"examples measured": rows[0]["examples"], "seed": rows[0]["seed"]},
    )
    write(report, folder / "report.html")
    return [folder / "report.html"]


def _point(selection: str, row: Row) -> CurvePoint:
    names = ("edges_requested", "edges_kept", "faithfulness", "faithfulness_low", "faithfulness_high", "error")
    return CurvePoint(selection, *(row[name] for name in names))


def _runs(bench: Bench, outcome: Outcome) -> list[MethodRun]:
    """The scores, the points of the curve and the circuits of every method."""
    rows, study, selection = outcome.rows, bench.study, outcome.rows[0]["selection"]
    [task] = study.task_names
    sizes, runs = [row["edges_requested"] for row in outcome.facts["random"]], list[MethodRun]()
    chance = [study.at(task, study.methods[0]).changed(selection=name, edges=n) for name in RANDOM for n in sizes]
    chance_points = [_point(CHANCE, row) for row in bench.rows(chance)]
    for method in study.methods:
        points = [_point(row["selection"], row) for row in rows if row["method"] == method]
        mib_rows = [row for row in outcome.facts.get("mib", ()) if row["method"] == method]
        areas = {row["selection"]: mib.Areas(*(row[field.name] for field in fields(mib.Areas))) for row in mib_rows}
        recipes = list(study.recipes(task, bench.sizes(task), [method], [selection]))
        run = MethodRun(bench.scores(recipes[0]), points + chance_points, name=method, areas=areas)
        if selection not in IN_PAGE:
            order = bench.order(recipes[0], {bench.edge_count(recipe) for recipe in recipes})
            run = replace(run, circuit=order.circuit(len(order), prune=False), smallest=order.smallest)
        runs.append(run)
    return runs


def _chosen(rows: Sequence[Row], run: MethodRun) -> Chosen:
    """The circuit that the page opens with."""
    selection = rows[0]["selection"]
    shown = selection if selection in IN_PAGE else SAVED if run.circuit is not None else "top"
    # A page of half of all edges would be large and would show nothing.
    sizes = [row["edges_requested"] for row in rows if 0 < row["edges_requested"] <= LIMIT] or [LIMIT]
    return Chosen(edges=max((n for n in sizes if n <= READABLE), default=min(sizes)), how=shown, found=False)
