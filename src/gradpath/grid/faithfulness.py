"""Faithfulness against sparsity: the paper's main figure and its three large tables.

For every task, method, way of selecting and sparsity: the share of the behaviour that the circuit keeps (NFS)
and the error per example, on examples that the scores have not seen, with intervals, and how many of the
edges asked for are left after pruning.

Every method and selection against one of them, task by task, on the same examples.

The figure of faithfulness against sparsity: panels are tasks, colours methods, line styles selections.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from typing import TYPE_CHECKING, Any

import torch

from gradpath.ablation import CORRUPTED
from gradpath.evaluation import mib
from gradpath.evaluation.bootstrap import Cell, Difference, distance_difference, error_difference
from gradpath.grid.bench import Bench
from gradpath.grid.jobs import CircuitJob, Job, circuit_cell
from gradpath.grid.output import Outcome, markdown, percent, signed, with_interval
from gradpath.grid.request import MethodSpec, default_tasks
from gradpath.grid.runner import Experiment
from gradpath.report.style import INK, LINES, MUTED, colour, marker, method_title, panels, task_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Row = dict[str, Any]

READING = (
    "NFS: normalized faithfulness in percent, (circuit - corrupted) / (clean - corrupted) on means, with its "
    "95% bootstrap interval over examples. Error: mean |circuit - clean| / mean |clean - corrupted|, 0 being "
    "the model's behaviour. Edges: left after pruning."
)

MIB_READING = (
    "CPR: area under the faithfulness over the shares of edges .001 to 1, on a linear scale; CMD: area under "
    "its distance from 1; both with 95% intervals. top ranks by |score|, signed by the score with its sign."
)


def jobs(bench: Bench) -> list[Job]:
    """One job per task and method: all its circuits are measured with one set-up."""
    asked = bench.request
    return [
        CircuitJob(task, (method,), asked.hows, tuple(bench.edges(s) for s in bench.sparsities(task)))
        for task in default_tasks(asked)
        for method in asked.methods
    ]


def outcome(bench: Bench, name: str = "faithfulness") -> Outcome:
    rows = table(bench)
    found = mib_rows(bench) if bench.request.measures_mib else []
    notes = [READING, MIB_READING] if found else [READING]
    if bench.request.ablation != CORRUPTED:
        notes.append(
            f"Ablation: {bench.request.ablation}. Corrupted is the run in which every node is ablated so; "
            "means are over the examples to attribute."
        )
    if bench.paper is not None:
        notes.append(f"Paper: {bench.paper.source}; it does not say how its edges were selected.")
    return Outcome(
        name=name,
        title=f"Faithfulness against sparsity in {bench.title}",
        rows=rows,
        text="\n\n".join(_parts(bench, rows, found)),
        figures={name: lambda: draw_curves(rows, bench.title, log=bench.request.grid == "mib", areas=found)},
        notes=tuple(notes),
        facts={"mib": found} if found else {},
    )


def _parts(bench: Bench, rows: Sequence[Row], areas: Sequence[Row]) -> list[str]:
    compared = comparison(bench)
    first = [_mib_table(areas)] if areas else []
    return [*first, _summary(rows), *([compared] if compared else []), *_by_task(rows)]


def table(bench: Bench) -> list[Row]:
    asked = bench.request
    return [
        circuit_row(bench, task, method, how, sparsity)
        for task in default_tasks(asked)
        for how in asked.hows
        for method in asked.methods
        for sparsity in bench.sparsities(task)
    ]


def circuit_row(bench: Bench, task: str, method: MethodSpec, how: str, sparsity: float) -> Row:
    """One measured circuit, with the paper's figure beside it where it has one."""
    cell = circuit_cell(bench, task, method, how, bench.edges(sparsity))
    row: Row = {"task": task, "method": method.label, "steps": method.steps, "how": how, "sparsity": sparsity}
    row |= {name: cell[name] for name in ("edges_asked", "edges_kept", "clean", "corrupted", "circuit")}
    for name in ("faithfulness", "error"):
        row[name] = cell[name]
        row[f"{name}_low"], row[f"{name}_high"] = cell[f"{name}_interval"]
    row["examples"] = len(bench.task(task, "test"))
    row["examples_attributed"] = len(bench.task(task, "train"))
    paper = None if bench.paper is None else bench.paper.faithfulness(task, sparsity, method.label)
    if paper is not None:
        row |= {"paper": paper, "difference": row["faithfulness"] - paper}
    return row


def mib_rows(bench: Bench) -> list[Row]:
    """MIB's areas, one row per task, selection and method, from the cells of its circuits."""
    asked, rows = bench.request, list[Row]()
    for task in default_tasks(asked):
        for how, method in product(asked.hows, asked.methods):
            counts = [bench.edges(sparsity) for sparsity in bench.sparsities(task)]
            cells = [circuit_cell(bench, task, method, how, n) for n in counts]
            clean, corrupted = (torch.tensor(cells[0][f"{end}_values"]) for end in ("clean", "corrupted"))
            found = mib.areas(clean, corrupted, [torch.tensor(cell["values"]) for cell in cells])
            rows.append({"task": task, "method": method.label, "how": how, **asdict(found)})
    return rows


def _mib_table(rows: Sequence[Row]) -> str:
    """CPR and CMD, one line per task and selection."""

    def cell(row: Row, name: str) -> str:
        low, high = row[f"{name}_interval"]
        return f"{row[name]:.3f} [{low:.2f}, {high:.2f}]"

    labels = list(dict.fromkeys(row["method"] for row in rows))
    lines = []
    for task, how in dict.fromkeys((row["task"], row["how"]) for row in rows):
        own = {row["method"]: row for row in rows if (row["task"], row["how"]) == (task, how)}
        cells = [cell(own[label], name) for label in labels for name in ("cpr", "cmd")]
        lines.append([f"{task_title(task)}, {how}", *cells])
    headings = ["areas of MIB", *(f"{label} {what}" for label in labels for what in ("CPR", "CMD"))]
    return "## MIB\n\n" + markdown(headings, lines)


def _summary(rows: Sequence[Row]) -> str:
    """Means over the sparsities, one line per task and selection."""
    labels = list(dict.fromkeys(row["method"] for row in rows))
    lines = []
    for task, how in dict.fromkeys((row["task"], row["how"]) for row in rows):
        line = [f"{task_title(task)}, {how}"]
        for label in labels:
            own = [row for row in rows if (row["task"], row["how"], row["method"]) == (task, how, label)]
            line += [percent(_mean(own, "faithfulness")), f"{_mean(own, 'error'):.3f}"]
        lines.append(line)
    headings = ["mean over sparsities", *(f"{label} {what}" for label in labels for what in ("NFS", "error"))]
    return "## Means\n\n" + markdown(headings, lines)


def _mean(rows: Sequence[Row], name: str) -> float:
    return sum(float(row[name]) for row in rows) / len(rows)


def _by_task(rows: Sequence[Row]) -> list[str]:
    parts = []
    for task, how in dict.fromkeys((row["task"], row["how"]) for row in rows):
        own = [row for row in rows if (row["task"], row["how"]) == (task, how)]
        head = f"## {task_title(task)}, {how}\n\n{own[0]['examples_attributed']} examples to attribute, "
        head += f"{own[0]['examples']} others to measure.\n\n"
        parts.append(head + _one_task(own))
    return parts


def _one_task(rows: Sequence[Row]) -> str:
    labels = list(dict.fromkeys(row["method"] for row in rows))
    beside = {label for label in labels if any("paper" in row for row in rows if row["method"] == label)}
    headings = ["sparsity", "edges asked"]
    for label in labels:
        headings += [f"{label} NFS [95%]", "error", "edges"]
        headings += ["paper", "difference"] if label in beside else []
    lines = []
    for sparsity in dict.fromkeys(row["sparsity"] for row in rows):
        own = {row["method"]: row for row in rows if row["sparsity"] == sparsity}
        line = [f"{100 * sparsity:.4g}%", f"{own[labels[0]]['edges_asked']:,}"]
        for label in labels:
            line += _cells(own[label], label in beside)
        lines.append(line)
    return markdown(headings, lines)


def _cells(row: Mapping[str, Any], beside: bool) -> list[str]:
    interval = (row["faithfulness_low"], row["faithfulness_high"])
    cells = [with_interval(row["faithfulness"], interval), f"{row['error']:.3f}", f"{row['edges_kept']:,}"]
    return cells + ([percent(row.get("paper")), signed(row.get("difference"))] if beside else [])


EXPERIMENT = Experiment("faithfulness", jobs, outcome)

Way = tuple[MethodSpec, str]  # how edges are scored, and how they are selected


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
        (task, way): _cells_of(bench, task, way) for task in default_tasks(bench.request) for way in (first, *others)
    }
    reading = (
        f"Means over sparsities less those of {_named(bench, first)}, on the same examples, with the 95% "
        "bootstrap interval of the difference. Below zero is better; bold where the interval leaves no doubt."
    )
    tables = []
    for name, difference in FIGURES.items():
        lines = [
            [task_title(task), *(_difference_text(difference(cells[task, way], cells[task, first])) for way in others)]
            for task in default_tasks(bench.request)
        ]
        tables.append(markdown([name, *(_named(bench, way) for way in others)], lines))
    return "\n\n".join([f"## Beside {_named(bench, first)}", reading, *tables])


def _ways(bench: Bench) -> list[Way]:
    """All that were asked for, first the one to compare with: EAP-IG by the first selection if there."""
    ways = [(method, how) for how, method in product(bench.request.hows, bench.request.methods)]
    return sorted(ways, key=lambda way: (way[1] != bench.request.hows[0], way[0].label != "eap-ig"))


def _cells_of(bench: Bench, task: str, way: Way) -> list[Cell]:
    return [circuit_cell(bench, task, *way, bench.edges(sparsity)) for sparsity in bench.sparsities(task)]


def _named(bench: Bench, way: Way) -> str:
    method, how = way
    return method.label if len(bench.request.hows) == 1 else f"{method.label}, {how}"


def _difference_text(difference: Difference) -> str:
    text = f"{difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
    return f"**{text}**" if difference.is_clear else text


Rows = Sequence[Mapping[str, Any]]


def draw_curves(rows: Rows, model: str, *, log: bool, areas: Rows = ()) -> Figure:
    """NFS with its interval. The paper's own figures, where rows have them, are open circles.

    ``areas`` are MIB's, which each panel then lists for its lines.
    """
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    columns = min(3, len(tasks))
    lines = math.ceil(len(tasks) / columns)
    figure, axes = panels(lines, columns, (4.2 * columns + 1.2, 3.3 * lines + 1.3))
    for task, ax in zip(tasks, axes, strict=False):
        _curve_panel(ax, [row for row in rows if row["task"] == task], log)
        _list_areas(ax, [row for row in areas if row["task"] == task])
    for ax in axes[len(tasks) :]:
        ax.set_visible(False)
    figure.suptitle(f"Normalized faithfulness of circuits in {model}", fontsize=12, color=INK)
    figure.legend(
        handles=_curve_legend(rows), loc="outside lower center", ncols=2 * columns, fontsize=8.5, frameon=False
    )
    return figure


def _curve_panel(ax: Axes, rows: Rows, log: bool) -> None:
    labels = list(dict.fromkeys(row["method"] for row in rows))
    hows = list(dict.fromkeys(row["how"] for row in rows))
    ax.axhline(100, color=MUTED, linewidth=0.8, linestyle=":")
    for label in labels:
        for how in hows:
            own = [row for row in rows if (row["method"], row["how"]) == (label, how)]
            look = {"color": colour(label, labels), "marker": marker(label, labels)}
            _curve(ax, own, {**look, "linestyle": LINES.get(how, ":")}, band=how == hows[0], log=log)
    first = rows[0]
    ax.set_title(f"{task_title(first['task'])}  ({first['examples']} held-out examples)", color=INK)
    ax.set_xlabel("edges kept (% of all edges)" if log else "edge sparsity (% of edges left out)")
    ax.set_ylabel("NFS (% of clean - corrupted)")
    if log:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    else:
        ax.invert_xaxis()
    fit(ax, rows)


def _curve(ax: Axes, rows: Rows, look: dict[str, Any], *, band: bool, log: bool) -> None:
    x = [100 * (1 - row["sparsity"]) if log else 100 * row["sparsity"] for row in rows]
    y = [100 * row["faithfulness"] for row in rows]
    size: Any = {"markersize": 4, "linewidth": 1.6} if band else {"markersize": 3, "linewidth": 1.1}
    ax.plot(x, y, **look, **size)
    if band:
        low, high = ([100 * row[f"faithfulness_{end}"] for row in rows] for end in ("low", "high"))
        ax.fill_between(x, low, high, color=look["color"], alpha=0.13, linewidth=0)
        paper = [(at, 100 * row["paper"]) for at, row in zip(x, rows, strict=True) if "paper" in row]
        if paper:
            at, value = zip(*paper, strict=True)
            ax.scatter(at, value, s=34, facecolors="none", edgecolors=look["color"], linewidths=1.1)


def _list_areas(ax: Axes, areas: Rows) -> None:
    """CPR and CMD of every line, beside a piece of it."""
    from matplotlib.lines import Line2D

    labels = list(dict.fromkeys(row["method"] for row in areas))
    handles = [
        Line2D(
            [],
            [],
            color=colour(row["method"], labels),
            linestyle=LINES.get(row["how"], ":"),
            label=f"CPR {row['cpr']:.2f}  CMD {row['cmd']:.2f}",
        )
        for row in areas
    ]
    if handles:
        ax.legend(handles=handles, fontsize=7, loc="best")


def fit(ax: Axes, rows: Rows) -> None:
    """Show the curves: an interval that is far out, as at a handful of edges, must not flatten them."""
    values = [100 * row["faithfulness"] for row in rows]
    low, high = min(0.0, *values), max(105.0, *values)
    room = 0.06 * (high - low)
    ax.set_ylim(low - room, high + room)


def _curve_legend(rows: Rows) -> list[Any]:
    from matplotlib.lines import Line2D

    labels = list(dict.fromkeys(row["method"] for row in rows))
    hows = list(dict.fromkeys(row["how"] for row in rows))
    handles = [Line2D([], [], color=colour(x, labels), marker=marker(x, labels), label=method_title(x)) for x in labels]
    names = {"top": "top-n edges by |score|", "greedy": "greedy from the logits"}
    names["signed"] = "top-n edges by score, the sign counted"
    names |= {"balanced": "balanced by sign", "refined": "refined on the circuit itself"}
    names |= {"ratio": "six positive edges to four", "stable": "of a stable sign"}
    names["exchanged"] = "refined, then edges exchanged"
    for how in hows:
        shown = names.get(how, how) + (" (band: 95% interval)" if how == hows[0] else "")
        handles.append(Line2D([], [], color=INK, linestyle=LINES.get(how, ":"), label=shown))
    if any("paper" in row for row in rows):
        circle: dict[str, Any] = {"marker": "o", "linestyle": "", "markerfacecolor": "none"}
        handles.append(Line2D([], [], color=INK, label="the paper's figure", **circle))
    return handles
