"""Where a result comes from: all that is needed to make it again."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gradpath._version import __version__
from gradpath.experiments.bench import Bench

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
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
