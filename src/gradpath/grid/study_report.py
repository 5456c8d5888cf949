"""Run a study, model by model, and write its report: all rows, tables for people, a figure and a page."""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from gradpath.grid.bench import Bench, Store
from gradpath.grid.experiment import (
    Note,
    Outcome,
    Row,
    Written,
    environment,
    grouped,
    markdown,
    mean_of,
    nfs,
    percent,
    spread,
    write_outcome,
)
from gradpath.grid.faithfulness import RANDOM, READING, draw_curves, examples_of, measured_row
from gradpath.grid.jobs import circuit_key, run_jobs
from gradpath.grid.study import Study
from gradpath.model.transformer import Transformer
from gradpath.report.style import task_title
from gradpath.runtime.files import write_atomically

LoadModel = Callable[[str], Transformer]
SEEDS = "With several seeds, numbers are means over them, and the ends of an interval are the lowest and the highest."


def run_study(study: Study, out: Path, load: LoadModel, *, command: str, note: Note = lambda text: None) -> Written:
    """Measure the missing circuits of a study, and write its report.

    Args:
        study: The study.
        out: The folder of its measurements and of its report.
        load: Loads a model by its name; one model is in memory at a time.
        command: The command line, for the record.
        note: Called with messages for the user.

    Returns:
        The report and its files.
    """
    started, begin = time.strftime("%Y-%m-%dT%H:%M:%S%z"), time.monotonic()
    rows, random, models = list[Row](), list[Row](), list[dict[str, Any]]()
    for name in study.models:
        model = load(name)
        label, counts = study.model_labels[name], study.counts(model.graph)
        if left_out := [size for size in study.sizes if size not in counts]:
            sizes = ", ".join(f"{size:,}" for size in left_out)
            note(f"{label} has {model.graph.n_edges:,} edges, so there are no circuits of {sizes} edges in it.")
        benches = list(study.benches(model, Store(out)))
        for bench in benches:
            run_jobs(bench, study.jobs(bench))
        for bench in benches:
            rows += _rows(study, bench, label)
            random += _random_rows(study, bench, label)
        about = {"name": label, "edges_total": model.graph.n_edges, "weights": model.digest}
        models.append({**about, "dtype": model.dtype_name, "device": str(model.device)})
        del model, benches
    outcome = study_outcome(study, rows, random)
    times = {"started": started, "seconds": round(time.monotonic() - begin, 2)}
    record = {**environment(command), "study": dict(study.plain), "models": models, "times": times}
    return Written(outcome, record, write_outcome(outcome, out, record))


def _rows(study: Study, bench: Bench, model: str) -> list[Row]:
    """One row per circuit of a bench."""
    rows, sizes = list[Row](), study.counts(bench.model.graph).values()
    for task, method, how in product(bench.request.task_names, study.methods, study.selections):
        measured = [measured_row(bench, task, method, how, n) for n in sizes]
        rows += [_row(study, bench, model, task, row) for row in measured]
    return rows


def _random_rows(study: Study, bench: Bench, model: str) -> list[Row]:
    """For every task and size the faithfulness and error of random circuits: mean, worst and best."""
    rows, request = [], bench.request
    for task in request.task_names:
        for n in dict.fromkeys(study.counts(bench.model.graph).values()):
            cells = [measured_row(bench, task, study.methods[0], how, n) for how in RANDOM]
            row = {**_row(study, bench, model, task, cells[0]), **spread(cells, "faithfulness", "error")}
            rows.append({**row, "method": "random", "how": "", "circuits": len(cells)})
    return rows


def _row(study: Study, bench: Bench, model: str, task: str, row: Row) -> Row:
    sparsity = 1 - row["edges_requested"] / bench.model.graph.n_edges
    name = task if bench.request.data is None else study.data_labels[bench.request.data]
    first = {"model": model, "task": name, "seed": bench.request.seed}
    return {**first, **{key: value for key, value in row.items() if key != "task"}, "sparsity": round(sparsity, 6)}


def over_seeds(rows: Sequence[Row]) -> list[Row]:
    """One row for circuits that differ only in their seed: means, and the outermost ends of their intervals."""
    merged = []
    for group in grouped(rows, "model", "task", "method", "how", "edges_requested").values():
        row = dict(group[0])
        for name in ("faithfulness", "error"):
            row[name] = mean_of(group, name)
            for end, outermost in (("low", min), ("high", max)):
                ends = [float(x) for other in group if (x := other[f"{name}_{end}"]) is not None]
                row[f"{name}_{end}"] = outermost(ends, default=None)
        merged.append(row)
    return merged


@dataclass(frozen=True)
class _Table:
    """A table of the report, to be written as Markdown and as HTML."""

    title: str
    text: str
    headings: list[str]
    lines: list[list[str]]

    @property
    def markdown(self) -> str:
        return f"## {self.title}\n\n{self.text}\n\n{markdown(self.headings, self.lines)}"

    @property
    def html(self) -> str:
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in self.headings)
        body = "\n".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>" for line in self.lines
        )
        title, text = html.escape(self.title), html.escape(self.text)
        return f"<h2>{title}</h2>\n<p>{text}</p>\n<table>\n<tr>{head}</tr>\n{body}\n</table>"


def study_outcome(study: Study, rows: list[Row], random: list[Row]) -> Outcome:
    """The report on measured rows."""
    means, random_means = over_seeds(rows), over_seeds(random)
    tables = [_means(means, random_means)] if means else []
    for place, group in grouped(means, "model", "task").items():
        tables.append(_sizes(group, grouped(random_means, "model", "task").get(place, [])))
    notes = [READING, *([SEEDS] if len(study.seeds) > 1 else [])]
    return Outcome(
        name="study",
        title=study.title,
        rows=rows,
        text="\n\n".join(table.markdown for table in tables) or "No circuit was measured.",
        figures={"study": lambda: _figure(study, means, random_means)} if means else {},
        notes=tuple(notes),
        facts={"random": random},
        files=lambda draft: [_write_page(study, tables, notes, draft)],
    )


def _name(row: Row) -> str:
    return f"{row['method']}, {row['how']}" if row["how"] else "random circuits"


def _pair(faithfulness: float, error: float) -> str:
    return f"{percent(faithfulness)} / {error:.3f}"


def _means(rows: Sequence[Row], random: Sequence[Row]) -> _Table:
    """A line per method and selection, a column per model and task: means over sizes."""
    places = list(grouped(rows, "model", "task"))

    def cell(group: Sequence[Row]) -> str:
        return _pair(mean_of(group, "faithfulness"), mean_of(group, "error")) if group else ""

    lines = []
    for group in grouped([*rows, *random], "method", "how").values():
        at = grouped(group, "model", "task")
        lines.append([_name(group[0]), *(cell(at.get(place, [])) for place in places)])
    headings = ["method, selection", *(f"{task_title(task)}, {model}" for model, task in places)]
    return _Table("Means", "NFS in percent / error, as means over all sizes and seeds.", headings, lines)


def _sizes(rows: Sequence[Row], random: Sequence[Row]) -> _Table:
    """The circuits of one model and task: a line per method and selection, a column per size."""
    sizes = list(grouped(sorted(rows, key=lambda row: row["edges_requested"]), "edges_requested"))
    lines = []
    for group in grouped([*rows, *random], "method", "how").values():
        at = {row["edges_requested"]: row for row in group}
        lines.append([_name(group[0]), *(f"{nfs(at[n])} / {at[n]['error']:.3f}" if n in at else "" for n in sizes)])
    title = f"{task_title(rows[0]['task'])} in {rows[0]['model']}"
    text = f"{examples_of(rows[0])}. NFS in percent [95%] / error."
    return _Table(title, text, ["method, selection", *(f"{n:,} edges" for n in sizes)], lines)


def _figure(study: Study, rows: Sequence[Row], random: Sequence[Row]) -> Any:
    """A panel per model and task, with curves over sparsity."""
    several = len({row["model"] for row in rows}) > 1

    def panel(row: Row) -> Row:
        return {**row, "task": f"{task_title(row['task'])}, {row['model']}"} if several else row

    ordered = sorted((panel(row) for row in rows), key=lambda row: -row["sparsity"])  # stable: panels keep their order
    first = {row["task"]: i for i, row in enumerate(map(panel, reversed(rows)))}
    ordered.sort(key=lambda row: -first[row["task"]])
    chance = sorted((panel(row) for row in random), key=lambda row: -row["sparsity"])
    return draw_curves(ordered, study.title if several else rows[0]["model"], log=False, random=chance)


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #8884; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } svg { max-width: 100%; height: auto; background: white; }
"""


def _write_page(study: Study, tables: Sequence[_Table], notes: Sequence[str], draft: Path) -> Path:
    """Write ``study.html``: the figure and all tables, in one file that makes no request."""
    figure = draft / "study.svg"
    svg = figure.read_text(encoding="utf-8") if figure.exists() else ""
    parts = [
        "<!doctype html>",
        '<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{html.escape(study.title)} · gradpath</title><style>{_STYLE}</style>",
        f"<h1>{html.escape(study.title)}</h1>",
        *(f"<p>{html.escape(note)}</p>" for note in notes),
        svg[max(0, svg.find("<svg")) :],  # without the XML declaration
        *(table.html for table in tables),
        "</html>",
    ]
    write_atomically(draft / "study.html", "\n".join(parts) + "\n")
    return draft / "study.html"


@dataclass(frozen=True)
class Remaining:
    """What is left to do in one model; random circuits are not counted."""

    model: str
    circuits: int
    missing: int


def remaining(study: Study, out: Path, load: LoadModel) -> list[Remaining]:
    """Count the circuits that are not measured yet, model by model."""
    counts = []
    for name in study.models:
        model = load(name)
        sizes = study.counts(model.graph).values()
        keys = [
            (bench, circuit_key(bench, task, method, how, n))
            for bench in study.benches(model, Store(out))
            for task, method, how in product(bench.request.task_names, study.methods, study.selections)
            for n in sizes
        ]
        missing = sum(bench.store.cell(key) is None for bench, key in keys)
        counts.append(Remaining(study.model_labels[name], len(keys), missing))
        del model, keys
    return counts
