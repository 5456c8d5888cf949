"""Faithfulness against sparsity: the paper's main figure and its three large tables.

For every task, method, way of selecting and sparsity: the share of the behaviour that the circuit keeps (NFS)
and the error per example, on examples that the scores have not seen, with intervals, and how many of the
edges asked for are left after pruning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

import torch

from gradpath import mib
from gradpath.ablation import CORRUPTED
from gradpath.experiments.bench import Bench
from gradpath.experiments.comparison import comparison
from gradpath.experiments.curves import draw_curves
from gradpath.experiments.figures import task_title
from gradpath.experiments.grid import CircuitJob, Job, circuit_cell
from gradpath.experiments.methods import Method
from gradpath.experiments.output import Outcome
from gradpath.experiments.registry import Experiment
from gradpath.experiments.request import default_tasks
from gradpath.experiments.table import markdown, percent, signed, with_interval

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


def circuit_row(bench: Bench, task: str, method: Method, how: str, sparsity: float) -> Row:
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
