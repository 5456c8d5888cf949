"""Run experiments and write their results, with a record of all that is needed to run them again."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gradpath._version import __version__
from gradpath.errors import UsageError
from gradpath.grid.bench import Bench
from gradpath.grid.jobs import Job, Watch, run_jobs
from gradpath.grid.output import Outcome, write
from gradpath.model.transformer import Transformer
from gradpath.runtime import distributed
from gradpath.runtime.files import recorded_path

_PACKAGES = ("torch", "transformers", "numpy", "safetensors", "tokenizers", "matplotlib")
Note = Callable[[str], None]


@dataclass(frozen=True)
class Experiment:
    """A table or figure.

    Args:
        name: The name that users type.
        jobs: The jobs that fill its cells.
        outcome: Makes the result from the finished cells.
        refusal: Why the experiment cannot be run on this bench, or None if it can.
        own_model: Loads the experiment's own model, for one that does not depend on --model.
    """

    name: str
    jobs: Callable[[Bench], Sequence[Job]]
    outcome: Callable[[Bench], Outcome]
    refusal: Callable[[Bench], str | None] = lambda bench: None
    own_model: Callable[[], Transformer] | None = None


@dataclass(frozen=True)
class Written:
    """An experiment's outcome, its record and its files."""

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
    note: Note = lambda text: None,
) -> list[Written]:
    """Run what is left of some experiments and write their results.

    Args:
        bench: The model, the request and the store.
        experiments: The experiments. One that cannot be run on this model is an error if it is the only one, and is
            skipped with a note otherwise.
        out: The folder to write to.
        command: The command line, for the record.
        watch: Shows the progress of all experiments together.
        note: Called with messages for the user.

    Returns:
        The results in the order of the experiments.
    """
    distributed.on_first_rank(lambda: _check_folder(bench, [x.name for x in experiments], out, note))
    begin, started = time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    chosen = [x for x in experiments if _can_run(bench, x, alone=len(experiments) == 1, note=note)]
    run_jobs(bench, [job for experiment in chosen for job in experiment.jobs(bench)], watch)
    about = _provenance(bench, command)
    written = []
    for experiment in chosen:
        outcome = experiment.outcome(bench)
        record = {**about, "times": {"started": started, "seconds": round(time.monotonic() - begin, 2)}}
        written.append(Written(outcome, record, write_outcome(outcome, out, record)))
    return written


def _check_folder(bench: Bench, names: Sequence[str], out: Path, note: Note) -> None:
    """Refuse to overwrite a table of another model. Cells never mix, whatever a folder contains."""
    for name in names:
        try:
            before = json.loads((out / f"{name}.json").read_text(encoding="utf-8"))
            weights, model, request = before["weights"], before["model"], before["asked"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        # Before 0.2.0 a digest was shorter, and covered a part of the weights.
        if len(weights) == len(bench.weights) and weights != bench.weights:
            raise UsageError(
                f"{out} contains {name} of another model, {model}, and {bench.model.name or 'this model'} was asked "
                "for. Give another folder with --out."
            )
        if request != _request_record(bench):
            note(f"{name} in {out} was made with other settings: its tables are written again, its cells are kept.")


def write_outcome(outcome: Outcome, out: Path, record: dict[str, Any]) -> list[Path]:
    """Write an outcome on the first rank; all ranks get the paths of its files."""
    return [Path(x) for x in distributed.on_first_rank(lambda: [str(file) for file in write(outcome, out, record)])]


def _can_run(bench: Bench, experiment: Experiment, *, alone: bool, note: Note) -> bool:
    refusal = experiment.refusal(bench)
    if refusal is not None and alone:
        raise UsageError(refusal)
    if refusal is not None:
        note(f"skipped {experiment.name}: {refusal}")
    return refusal is None


def _provenance(bench: Bench, command: str) -> dict[str, Any]:
    """Versions, commit, seed, model and request, as plain values."""
    first = environment(command)
    versions = first.pop("versions")
    return {
        **first,
        "model": bench.model.name,
        "weights": bench.weights,
        "dtype": str(bench.model.dtype).removeprefix("torch."),
        "device": str(bench.model.device),
        "bos": bench.model.tokenizer is not None and bench.model.tokenizer.prepend is not None,
        "edges_total": bench.model.graph.n_edges,
        "seed": bench.request.seed,
        "asked": _request_record(bench),
        "versions": versions,
    }


def environment(command: str) -> dict[str, Any]:
    """The command, the commit and the versions of what ran it."""
    return {"command": command, "version": __version__, "commit": commit(), "versions": _versions()}


def _request_record(bench: Bench) -> dict[str, Any]:
    record = asdict(bench.request)
    record["methods"] = [method.label for method in bench.request.methods]
    del record["memory"]  # makes batches smaller and changes no number; the command has it
    record["data"] = None if bench.request.data is None else recorded_path(bench.request.data)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in record.items()}


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


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
