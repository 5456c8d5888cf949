"""Run a study, model by model, and write its report: all rows, tables for people, a figure and a page."""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradpath.model.transformer import Transformer
from gradpath.report.style import task_title
from gradpath.runtime.files import write_atomically
from gradpath.study.bench import Bench, Row, Store
from gradpath.study.faithfulness import READING, curve_rows, draw_curves, examples_of, random_rows
from gradpath.study.file import StudyFile
from gradpath.study.outcome import (
    Note,
    Outcome,
    Written,
    environment,
    grouped,
    markdown,
    mean_of,
    nfs,
    percent,
    write_outcome,
)
from gradpath.study.spec import Size

LoadModel = Callable[[str], Transformer]
SEEDS = "With several seeds, numbers are means over them, and the ends of an interval are the lowest and the highest."


def run_study(file: StudyFile, out: Path, load: LoadModel, *, command: str, note: Note = lambda text: None) -> Written:
    """Measure the missing circuits of a study, and write its report.

    Args:
        file: The study.
        out: The folder of its measurements and of its report.
        load: Loads a model by its name; one model is in memory at a time.
        command: The command line, for the record.
        note: Called with messages for the user.

    Returns:
        The report and its files.
    """
    started, begin = time.strftime("%Y-%m-%dT%H:%M:%S%z"), time.monotonic()
    rows, random, models = list[Row](), list[Row](), list[dict[str, Any]]()
    for name in file.models:
        bench, label = _bench(file, load(name), out), file.model_labels[name]
        if left_out := [str(size) for _, size in _too_large(file, bench)]:
            total = f"{bench.model.graph.n_edges:,}"
            note(f"{label} has {total} edges, so there are no circuits of {', '.join(left_out)} edges in it.")
        for task in bench.study.task_names if bench.study.sizes else ():
            names = {"model": label, "task": file.task_labels[task]}
            measured = curve_rows(bench, task)
            rows += [{**row, **names} for row in measured]
            chance = {"method": "random", "selection": ""}
            random += [{**row, **names, **chance} for row in random_rows(bench, task, measured)]
        about = {"name": label, "edges_total": bench.model.graph.n_edges, "weights": bench.model.digest}
        models.append({**about, "dtype": bench.model.dtype_name, "device": str(bench.model.device)})
        del bench
    outcome = study_outcome(file, rows, random)
    times = {"started": started, "seconds": round(time.monotonic() - begin, 2)}
    record = {**environment(command), "study": dict(file.plain), "models": models, "times": times}
    return Written(outcome, record, write_outcome(outcome, out, record))


def _too_large(file: StudyFile, bench: Bench) -> list[Size]:
    """The sizes that the model has not enough edges for."""
    return [size for size in file.study.sizes or () if size[0] == "edges" and size[1] > bench.model.graph.n_edges]


def _bench(file: StudyFile, model: Transformer, out: Path) -> Bench:
    """The study on a model, without sizes that it is too small for."""
    bench = Bench(model, file.study, Store(out))
    too_large = _too_large(file, bench)
    sizes = tuple(size for size in file.study.sizes or () if size not in too_large)
    return replace(bench, study=replace(file.study, sizes=sizes))


def over_seeds(rows: Sequence[Row]) -> list[Row]:
    """One row for circuits that differ only in their seed: means, and the outermost ends of their intervals."""
    merged = []
    for group in grouped(rows, "model", "task", "method", "selection", "edges_requested").values():
        row = dict(group[0])
        for name in ("faithfulness", "error"):
            row[name] = mean_of(group, name)
            for end, outermost in (("low", min), ("high", max)):
                ends = [float(x) for other in group if (x := other[f"{name}_{end}"]) is not None]
                row[f"{name}_{end}"] = outermost(ends, default=None)
        merged.append(row)
    return merged


def study_outcome(file: StudyFile, rows: list[Row], random: list[Row]) -> Outcome:
    """The report on measured rows."""
    means, random_means = over_seeds(rows), over_seeds(random)
    tables = [_means(means, random_means)] if means else []
    for place, group in grouped(means, "model", "task").items():
        tables.append(_sizes(group, grouped(random_means, "model", "task").get(place, [])))
    notes = [READING, *([SEEDS] if len(file.study.seeds) > 1 else [])]
    return Outcome(
        name="study",
        title=file.title,
        rows=rows,
        text="\n\n".join(tables) or "No circuit was measured.",
        figures={"study": lambda: _figure(file.title, means, random_means)} if means else {},
        notes=tuple(notes),
        facts={"random": random},
        files=lambda draft: [_write_page(file.title, tables, notes, draft)],
    )


def _name(row: Row) -> str:
    return f"{row['method']}, {row['selection']}" if row["selection"] else "random circuits"


def _means(rows: Sequence[Row], random: Sequence[Row]) -> str:
    """A line per method and selection, a column per model and task: means over sizes."""
    places = list(grouped(rows, "model", "task"))

    def cell(group: Sequence[Row]) -> str:
        return f"{percent(mean_of(group, 'faithfulness'))} / {mean_of(group, 'error'):.3f}" if group else ""

    lines = []
    for group in grouped([*rows, *random], "method", "selection").values():
        at = grouped(group, "model", "task")
        lines.append([_name(group[0]), *(cell(at.get(place, [])) for place in places)])
    headings = ["method, selection", *(f"{task_title(task)}, {model}" for model, task in places)]
    return "## Means\n\nNFS in percent / error, as means over all sizes and seeds.\n\n" + markdown(headings, lines)


def _sizes(rows: Sequence[Row], random: Sequence[Row]) -> str:
    """The circuits of one model and task: a line per method and selection, a column per size."""
    sizes = list(grouped(sorted(rows, key=lambda row: row["edges_requested"]), "edges_requested"))
    lines = []
    for group in grouped([*rows, *random], "method", "selection").values():
        at = {row["edges_requested"]: row for row in group}
        lines.append([_name(group[0]), *(f"{nfs(at[n])} / {at[n]['error']:.3f}" if n in at else "" for n in sizes)])
    title = f"{task_title(rows[0]['task'])} in {rows[0]['model']}"
    head = f"## {title}\n\n{examples_of(rows[0])}. NFS in percent [95%] / error.\n\n"
    return head + markdown(["method, selection", *(f"{n:,} edges" for n in sizes)], lines)


def _figure(title: str, rows: Sequence[Row], random: Sequence[Row]) -> Any:
    """A panel per model and task, with curves over sparsity."""
    several = len({row["model"] for row in rows}) > 1

    def panel(row: Row) -> Row:
        return {**row, "task": f"{task_title(row['task'])}, {row['model']}"} if several else row

    ordered = sorted((panel(row) for row in rows), key=lambda row: -row["sparsity"])  # stable: panels keep their order
    first = {row["task"]: i for i, row in enumerate(map(panel, reversed(rows)))}
    ordered.sort(key=lambda row: -first[row["task"]])
    chance = sorted((panel(row) for row in random), key=lambda row: -row["sparsity"])
    return draw_curves(ordered, title if several else rows[0]["model"], log=False, random=chance)


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #8884; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } svg { max-width: 100%; height: auto; background: white; }
"""


def _write_page(title: str, tables: Sequence[str], notes: Sequence[str], draft: Path) -> Path:
    """Write ``study.html``: the figure and all tables, in one file that makes no request."""
    figure = draft / "study.svg"
    svg = figure.read_text(encoding="utf-8") if figure.exists() else ""
    parts = [
        "<!doctype html>",
        '<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{html.escape(title)} · gradpath</title><style>{_STYLE}</style>",
        f"<h1>{html.escape(title)}</h1>",
        *map(_html, notes),
        svg[max(0, svg.find("<svg")) :],  # without the XML declaration
        *(_html(part) for table in tables for part in table.split("\n\n")),
        "</html>",
    ]
    write_atomically(draft / "study.html", "\n".join(parts) + "\n")
    return draft / "study.html"


def _html(part: str) -> str:
    """A heading, a paragraph or a table in Markdown as HTML."""
    part = html.escape(part)
    if part.startswith("## "):
        return f"<h2>{part[3:]}</h2>"
    if not part.startswith("| "):
        return f"<p>{part}</p>"
    head, _, *body = (line[2:-2].replace("\\|", "|").split(" | ") for line in part.splitlines())
    rows = [["th", head], *(["td", line] for line in body)]
    lines = ["<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in cells) + "</tr>" for tag, cells in rows]
    return "\n".join(["<table>", *lines, "</table>"])


def remaining(file: StudyFile, out: Path, load: LoadModel) -> list[Row]:
    """The number of circuits of each model, and how many are not measured yet; random circuits are not counted."""
    counts = list[Row]()
    for name in file.models:
        bench = _bench(file, load(name), out)
        study = bench.study
        recipes = [recipe for task in study.task_names for recipe in study.recipes(task, study.sizes or ())]
        missing = len(bench.missing(recipes))
        counts.append({"model": file.model_labels[name], "circuits": len(recipes), "missing": missing})
        del bench
    return counts
