"""Where a result comes from: all that is needed to make it again.

From a list of names to files: run what is left of the experiments, then write what they found.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradpath._version import __version__
from gradpath.errors import UsageError
from gradpath.grid.bench import Bench
from gradpath.grid.jobs import Job, Watch, run_jobs
from gradpath.grid.output import Outcome, write
from gradpath.runtime import distributed

if TYPE_CHECKING:
    from gradpath.grid.bench import Bench
    from gradpath.grid.jobs import Job
    from gradpath.grid.output import Outcome


@dataclass(frozen=True)
class Experiment:
    """What fills the cells, what is made of them, and for which models it makes no sense."""

    name: str
    jobs: Callable[[Bench], Sequence[Job]]
    outcome: Callable[[Bench], Outcome]
    refusal: Callable[[Bench], str | None] = lambda bench: None


_PACKAGES = ("torch", "transformers", "numpy", "safetensors", "tokenizers", "matplotlib")


def provenance(bench: Bench, command: str) -> dict[str, Any]:
    """Versions, commit, seed, model and everything that was asked for, as plain values."""
    return {
        "command": command,
        "version": __version__,
        "commit": commit(),
        "model": bench.model.name,
        "weights": bench.weights,
        "dtype": str(bench.model.dtype).removeprefix("torch."),
        "device": str(bench.model.device),
        "bos": bench.model.tokenizer is not None and bench.model.tokenizer.prepend is not None,
        "edges_total": bench.model.graph.n_edges,
        "seed": bench.request.seed,
        "asked": asked_for(bench),
        "versions": _versions(),
    }


def asked_for(bench: Bench) -> dict[str, Any]:
    """The request as JSON has it."""
    asked = asdict(bench.request)
    asked["methods"] = [method.label for method in bench.request.methods]
    del asked["memory"]  # makes batches smaller and changes no figure; the command has it
    asked["data"] = None if bench.request.data is None else str(bench.request.data)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asked.items()}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit of the checkout that this code runs from, with a plus sign if it was changed since."""
    here = Path(__file__).parent
    head = _git(here, "rev-parse", "HEAD")
    if head is None or _git(here, "ls-files", "--error-unmatch", "../_version.py") is None:
        return None  # installed, or in a checkout of something else
    return head + ("+" if _git(here, "status", "--porcelain", "--", "..") else "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


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
        distributed.on_first_rank(partial(_check_folder, bench, experiment.name, out, note))
    begin, started = time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    chosen = [x for x in experiments if _suits(bench, x, alone=len(experiments) == 1, note=note)]
    planned: list[Job] = [job for experiment in chosen for job in experiment.jobs(bench)]
    run_jobs(bench, planned, watch)
    about = provenance(bench, command)
    written = []
    for experiment in chosen:
        outcome = experiment.outcome(bench)
        record = {**about, "times": {"started": started, "seconds": round(time.monotonic() - begin, 2)}}
        names = distributed.on_first_rank(partial(_written, outcome, out, record))
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
