"""The wheel: holds what it should, and runs on its own in an environment that has never seen the source."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import gradpath

ROOT = Path(__file__).parents[2]
VERSION = re.compile(r'^(?:__version__|version)\s*[=:]\s*"?([\d.]+)"?', re.MULTILINE)


def test_version_comes_from_one_place():
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dynamic"] == ["version"]
    package = [file for file in (ROOT / "src").rglob("*.py") if VERSION.search(file.read_text())]
    assert package == [ROOT / "src" / "gradpath" / "_version.py"]
    # The citation is read by services that run nothing, so it has to say it once more.
    assert VERSION.findall((ROOT / "CITATION.cff").read_text()) == [gradpath.__version__]
    assert f"## {gradpath.__version__}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing that an earlier build left behind can get in."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "tests"):  # the tests are there, and have to stay out
        shutil.copytree(ROOT / name, copy / name, ignore=unwanted)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run([*command, "--wheel-dir", str(copy / "dist"), str(copy)])
    (built,) = (copy / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own with the wheel in it; only other people's packages are borrowed."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    (home,) = (folder / "lib").glob("python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    run([*pip, "--no-deps", "--no-index", str(wheel)])
    # Paths in a .pth file come after the environment's own, and no .pth in them is read: the editable
    # install of the source is not to be found through them.
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (home / "borrowed.pth").write_text("\n".join(borrowed))
    return folder


def run(command: list[str], **options: object) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@pytest.mark.slow
def test_wheel_holds_every_file_of_the_package_and_no_other(wheel):
    with zipfile.ZipFile(wheel) as opened:
        held = {name for name in opened.namelist() if ".dist-info/" not in name}
        (about,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(opened.read(about).decode())
    package = ROOT / "src"
    files = {str(x.relative_to(package)) for x in (package / "gradpath").rglob("*") if x.is_file()}
    assert held == {name for name in files if "__pycache__" not in name}
    assert "gradpath/py.typed" in held
    assert metadata["Version"] == gradpath.__version__
    assert metadata["License-Expression"] == "MIT"


@pytest.mark.slow
def test_installed_package_is_the_wheels_and_finds_a_circuit(installed, model_folder, tmp_path):
    where = run([str(installed / "bin" / "python"), "-c", "import gradpath; print(gradpath.__file__)"], cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed)
    program = str(installed / "bin" / "gradpath")
    assert gradpath.__version__ in run([program, "--version"], cwd=tmp_path)
    arguments = ["--model", str(model_folder), "--examples", "4", "--edges", "30", "--method", "eap-gp"]
    arguments += ["--steps", "2", "--selection", "top", "--out", "kept", "--json"]
    found = json.loads(run([program, "find", *arguments], cwd=tmp_path))
    assert found["version"] == gradpath.__version__
    assert found["edges_kept"] <= found["edges_requested"] == 30
    assert {file.name for file in (tmp_path / "kept").iterdir()} >= {"circuit.json", "report.html"}
    for what in ("models", "tasks", "methods", "formats"):
        assert run([program, "ls", what], cwd=tmp_path).strip()
