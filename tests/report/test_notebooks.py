"""The notebooks run from top to bottom, and what is stored in them is fit to be read."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from run_notebook import code_cells

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
RUNNER = Path(__file__).with_name("run_notebook.py")


def test_there_are_notebooks_for_what_people_come_for() -> None:
    assert {file.stem for file in NOTEBOOKS} == {"compare", "own_path", "own_task", "tour"}


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebook_is_stored_with_its_results_and_no_more(file: Path) -> None:
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert any("data" in output for output in outputs)
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert "site-packages" not in json.dumps(outputs)
    assert file.stat().st_size < 700_000
    for code in code_cells(file):
        ast.parse(code)


@pytest.mark.slow
@pytest.mark.smollm2
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebook_runs_from_top_to_bottom(file: Path, tmp_path: Path) -> None:
    quiet = {**os.environ, "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
    told = subprocess.run(
        [sys.executable, str(RUNNER), str(file)], cwd=tmp_path, env=quiet, capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr
