"""Experiments: run them, and write their tables and figures.

An experiment ``NAME`` writes into the folder ``OUT``::

    NAME.csv    one row per measurement, numbers in full
    NAME.md     the tables, with the paper's numbers where there are any
    NAME.json   the rows, and a record of everything needed to run it again (versions, seed, command, times)
    NAME.png    the figure, and NAME.svg for print

CSV and Markdown are the same for every run of the same study, except for times that are results themselves.
"""

from __future__ import annotations

import csv
import importlib.metadata
import io
import json
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradpath._version import __version__
from gradpath.errors import UsageError
from gradpath.model.transformer import Transformer
from gradpath.report.style import save
from gradpath.runtime import distributed
from gradpath.runtime.files import recorded_path, write_atomically, write_together
from gradpath.study.bench import Bench, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Column = tuple[str, Callable[[Row], object]]  # the heading, and a row's cell
_PACKAGES = ("torch", "transformers", "numpy", "safetensors", "tokenizers", "matplotlib")


def grouped(rows: Sequence[Row], *columns: str) -> dict[Any, list[Row]]:
    """Group rows by their value in one column, or by their values in several, in order of appearance.

    >>> grouped([{"task": "ioi", "n": 1}, {"task": "sva", "n": 2}, {"task": "ioi", "n": 3}], "task")["ioi"]
    [{'task': 'ioi', 'n': 1}, {'task': 'ioi', 'n': 3}]
    """
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        values = tuple(row[column] for column in columns)
        groups.setdefault(values if len(columns) > 1 else values[0], []).append(row)
    return groups


def mean_of(rows: Sequence[Row], column: str) -> float:
    return sum(float(row[column]) for row in rows) / len(rows)


def table(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """A Markdown table with a line for each row."""
    return markdown([heading for heading, _ in columns], [[cell(row) for _, cell in columns] for row in rows])


def markdown(headings: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    """A Markdown table; the first column is text, the others are numbers.

    >>> print(markdown(["task", "NFS"], [["ioi", "80.1"]]))
    | task | NFS |
    |---|---:|
    | ioi | 80.1 |
    """
    body = ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in [headings, *lines]]
    body.insert(1, "|---|" + "---:|" * (len(headings) - 1))
    return "\n".join(body)


def percent(share: float | None, digits: int = 1) -> str:
    """A share in percent, without the sign of a zero.

    >>> percent(-0.00001)
    '0.0'
    """
    if share is None:
        return ""
    text = f"{100 * share:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def signed(share: float | None) -> str:
    """A difference in percentage points."""
    return "" if share is None else f"{100 * share:+.1f}"


def with_interval(value: float, low: float, high: float, form: str = ".3f", ends: str = ".2f") -> str:
    """``0.801 [0.74, 0.86]``."""
    return f"{value:{form}} [{low:{ends}}, {high:{ends}}]"


def interval_column(heading: str, name: str, ends: str = ".2f") -> Column:
    """A column of values with their intervals."""
    return heading, lambda row: with_interval(row[name], row[f"{name}_low"], row[f"{name}_high"], ends=ends)


def nfs(row: Row) -> str:
    """The faithfulness of a row in percent with its interval, ``80.1 [74, 86]``, if it has one."""
    if row["faithfulness_low"] is None:
        return percent(row["faithfulness"])
    low, high = (percent(row[f"faithfulness_{end}"], 0) for end in ("low", "high"))
    return f"{percent(row['faithfulness'])} [{low}, {high}]"


@dataclass(frozen=True)
class Outcome:
    """The result of an experiment."""

    name: str  # also of its files
    title: str
    rows: list[Row]  # the table for programs
    text: str  # the tables for people, in Markdown
    figures: Mapping[str, Callable[[], Figure]] = field(default_factory=dict)  # by the stems of their files
    notes: tuple[str, ...] = ()  # paragraphs that explain the tables
    facts: Mapping[str, Any] = field(default_factory=dict)  # further numbers for the JSON record
    files: Callable[[Path], list[Path]] = lambda folder: []  # writes further files, and returns their paths

    @property
    def page(self) -> str:
        return "\n\n".join(part for part in (f"# {self.title}", self.text, *self.notes) if part) + "\n"


def write_outcome(outcome: Outcome, folder: Path, record: Mapping[str, Any]) -> list[Path]:
    """Write all files of an outcome, or none, on the first rank; all ranks get their paths."""

    def write() -> list[str]:
        with write_together(folder) as draft:
            csv_file, page, json_file = (draft / f"{outcome.name}.{suffix}" for suffix in ("csv", "md", "json"))
            write_atomically(csv_file, _csv_text(outcome.rows))
            others = [file for stem, figure in outcome.figures.items() for file in save(figure(), draft / stem)]
            others += outcome.files(draft)
            images = "".join(f"\n![{file.stem}]({file.name})\n" for file in others if file.suffix == ".png")
            write_atomically(page, outcome.page + images)
            content = {"experiment": outcome.name, "title": outcome.title, **record}
            content |= {"notes": list(outcome.notes), **outcome.facts, "rows": outcome.rows}
            write_atomically(json_file, json.dumps(content, indent=1) + "\n")
        return [file.name for file in (csv_file, page, json_file, *others)]

    return [folder / name for name in distributed.on_first_rank(write)]


def _csv_text(rows: Sequence[Row]) -> str:
    """All rows, with the columns of all of them; a missing value is an empty cell."""
    out = io.StringIO()
    writer = csv.DictWriter(out, dict.fromkeys(name for row in rows for name in row), lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


Note = Callable[[str], None]


@dataclass(frozen=True)
class Experiment:
    """A table or figure."""

    name: str  # that users type
    outcome: Callable[[Bench], Outcome]  # measures what is not in the store
    refusal: Callable[[Bench], str | None] = lambda bench: None  # why it cannot be run on this bench
    own_model: Callable[[], Transformer] | None = None  # of an experiment that does not depend on --model


@dataclass(frozen=True)
class Written:
    """An experiment's outcome, its record and its files."""

    outcome: Outcome
    record: dict[str, Any]
    files: list[Path]


def reproduce(
    bench: Bench, experiments: Sequence[Experiment], out: Path, *, command: str, note: Note = lambda text: None
) -> list[Written]:
    """Run experiments and write their results; finished measurements are not repeated.

    An experiment that cannot be run on this model is an error if it is the only one, and else left out with a note.
    """
    distributed.on_first_rank(lambda: _check_folder(bench, [x.name for x in experiments], out, note))
    begin, started = time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    runnable = []
    for experiment in experiments:
        refusal = experiment.refusal(bench)
        if refusal is None:
            runnable.append(experiment)
        elif len(experiments) == 1:
            raise UsageError(refusal)
        else:
            note(f"skipped {experiment.name}: {refusal}")
    about = _record_of(bench, command)
    written = []
    for experiment in runnable:
        outcome = experiment.outcome(bench)
        record = {**about, "times": {"started": started, "seconds": round(time.monotonic() - begin, 2)}}
        written.append(Written(outcome, record, write_outcome(outcome, out, record)))
    return written


def _check_folder(bench: Bench, names: Sequence[str], out: Path, note: Note) -> None:
    """Refuse to overwrite a table of another model. Cells of different models never mix, even in one folder."""
    for name in names:
        try:
            before = json.loads((out / f"{name}.json").read_text(encoding="utf-8"))
            weights, model, study = before["weights"], before["model"], before["study"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if weights != bench.model.digest:
            raise UsageError(
                f"{out} contains {name} of another model, {model}, but {bench.model.name or 'this model'} was "
                "requested. Give another folder with --out."
            )
        if study != _study_record(bench):
            note(f"{name} in {out} was made with other settings: its tables are written again, its cells are kept.")


def _record_of(bench: Bench, command: str) -> dict[str, Any]:
    """Versions, commit, seed, model and study, as plain values."""
    return {
        **environment(command),
        "model": bench.model.name,
        "weights": bench.model.digest,
        "dtype": bench.model.dtype_name,
        "device": str(bench.model.device),
        "bos": bench.model.tokenizer is not None and bench.model.tokenizer.prepend is not None,
        "edges_total": bench.model.graph.n_edges,
        "seed": bench.study.seeds[0],
        "study": _study_record(bench),
    }


def environment(command: str) -> dict[str, Any]:
    """The command, the commit, and the versions of Python and of the packages."""
    versions = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {"command": command, "version": __version__, "commit": commit(), "versions": versions}


def _study_record(bench: Bench) -> dict[str, Any]:
    """The fields of the study, as JSON has them."""
    study = bench.study
    fields = {name: getattr(study, name) for name in study.__dataclass_fields__ if name not in ("recipe", "limits")}
    # The memory makes batches smaller and changes no number; the command line has it.
    fields |= {**study.recipe.recorded, "batch_size": study.limits.batch_size}
    fields["data"] = None if study.recipe.data is None else recorded_path(study.recipe.data)
    record: dict[str, Any] = json.loads(json.dumps(fields))
    return record


def commit() -> str | None:
    """The commit of the checkout that this code runs from, with a plus sign if files were changed since."""
    head = _git("rev-parse", "HEAD")
    if head is None or _git("ls-files", "--error-unmatch", "../_version.py") is None:
        return None  # installed, or in a checkout of something else
    return head + ("+" if _git("status", "--porcelain", "--", "..") else "")


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
