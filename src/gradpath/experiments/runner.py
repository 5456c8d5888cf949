"""From a list of names to files: run what is left of the experiments, then write what they found."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gradpath import ranks
from gradpath.errors import UsageError
from gradpath.experiments.bench import Bench
from gradpath.experiments.grid import Job, Watch, run_jobs
from gradpath.experiments.output import Outcome, write
from gradpath.experiments.provenance import asked_for, provenance
from gradpath.experiments.registry import Experiment


@dataclass(frozen=True)
class Written:
    """One experiment's outcome, its record and the files it is in."""

    outcome: Outcome
    record: dict[str, Any]
    files: list[Path]


def reproduce(
    bench: Bench,
    experiments: Sequence[Experiment],
    out: Path,
    *,
    command: str,
    watch: Watch | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> list[Written]:
    """Run the experiments on one bar and write each into ``out``.

    An experiment that makes no sense for this model is an error if it was asked for alone; among several it
    is left out with a note.
    """
    for experiment in experiments:
        ranks.from_first(partial(_check_folder, bench, experiment.name, out, note))
    begin, started = time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    chosen = [x for x in experiments if _suits(bench, x, alone=len(experiments) == 1, note=note)]
    planned: list[Job] = [job for experiment in chosen for job in experiment.jobs(bench)]
    run_jobs(bench, planned, watch)
    about = provenance(bench, command)
    written = []
    for experiment in chosen:
        outcome = experiment.outcome(bench)
        record = {**about, "times": {"started": started, "seconds": round(time.monotonic() - begin, 2)}}
        names = ranks.from_first(partial(_written, outcome, out, record))
        written.append(Written(outcome, record, [Path(name) for name in names]))
    return written


def _written(outcome: Outcome, out: Path, record: dict[str, Any]) -> list[str]:
    return [str(file) for file in write(outcome, out, record)]


def _check_folder(bench: Bench, name: str, out: Path, note: Callable[[str], None]) -> None:
    """Cells never mix, whatever a folder holds, but a table of another model would be written over."""
    try:
        before = json.loads((out / f"{name}.json").read_text(encoding="utf-8"))
        weights, model, asked = before["weights"], before["model"], before["asked"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if weights != bench.weights:
        raise UsageError(
            f"{out} holds {name} of another model, {model}, and {bench.model.name or 'this model'} was asked "
            "for. Give another folder with --out."
        )
    if asked != asked_for(bench):
        note(f"{name} in {out} was made with other settings: its tables are written anew, its cells kept.")


def _suits(bench: Bench, experiment: Experiment, *, alone: bool, note: Callable[[str], None]) -> bool:
    refusal = experiment.refusal(bench)
    if refusal is None:
        return True
    if alone:
        raise UsageError(refusal)
    note(f"left out {experiment.name}: {refusal}")
    return False
