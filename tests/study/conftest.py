"""A tiny GPT-2 as a folder, and every experiment run on it once through the command line."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jaxtyping import install_import_hook
from launching import Ran, run_here
from tiny_folder import save_tiny

import gradpath.study.faithfulness  # without checks: only the modules below have shapes in their signatures

with install_import_hook("gradpath", "beartype.beartype"):
    import gradpath.paper.saturation
    import gradpath.paper.steps  # noqa: F401

from gradpath.model.load import load_model
from gradpath.model.transformer import Transformer

SETTINGS = ("--examples", 6, "--batch-size", 4, "--tasks", "ioi,greater-than")
GRID = ("--sparsities", "0.5,0.8", "--steps", "3-5")


@pytest.fixture(scope="session")
def run() -> Callable[..., Ran]:
    return run_here


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of two heads: 46 edges."""
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny-gpt2")


@pytest.fixture(scope="session")
def shaped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many layers and heads as GPT-2 small, and nothing else of it."""
    return save_tiny(tmp_path_factory.mktemp("models") / "gpt2-shaped", layers=12, heads=12, width=24)


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> Transformer:
    return load_model(str(tiny_folder))


@dataclass(frozen=True)
class Everything:
    """``reproduce all`` on the tiny model: what it said, and what it wrote."""

    ran: Ran
    out: Path

    def rows(self, name: str, **where: Any) -> list[dict[str, str]]:
        """The rows of an experiment's CSV in which the columns have these values."""
        with (self.out / f"{name}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        return [row for row in rows if all(row[key] == str(value) for key, value in where.items())]

    def record(self, name: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.out / f"{name}.json").read_text())
        return content


@pytest.fixture(scope="session")
def everything(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Everything:
    out = tmp_path_factory.mktemp("reproduced")
    asked = ("--model", tiny_folder, *SETTINGS, *GRID, "--out", out)
    return Everything(run_here("reproduce", "all", *asked), out)
