"""What the package promises about itself: layers, quick imports, no code from files, its dependencies."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

import gradpath

SOURCE = Path(gradpath.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

# Imports point up only: a room may use those above it, and rooms of one line may use each other.
LAYERS = """
errors _version defaults runtime
recipe
registry
graph
scores
circuit
model
tasks
reference
sweep
ablation
prepared
attribution
evaluation
selection
verdict
formats
explanation
report
study
paper
pipeline
selfcheck
cli
__init__ __main__
"""
RANK = {room: rank for rank, line in enumerate(LAYERS.split("\n")) for room in line.split()}
# Three objects can show themselves, and turn into others.
EXCEPTIONS = {(room, "report") for room in ("scores", "circuit", "evaluation")}
EXCEPTIONS |= {(room, "formats") for room in ("scores", "circuit", "evaluation")}


@cache
def nodes_of(file: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(file.read_text())))


def imported(file: Path) -> set[str]:
    """The rooms of the package that a file imports, anywhere in it, but for type checking."""
    ignored = {
        id(child)
        for node in nodes_of(file)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    names = set()
    for node in nodes_of(file):
        if id(node) in ignored:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("gradpath.")}


def test_imports_point_up_only():
    for file in FILES:
        here = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        assert here in RANK, f"{here} has no layer: give it one here"
        for other in imported(file):
            assert RANK[other] <= RANK[here] or (here, other) in EXCEPTIONS, f"{file} imports {other}"


# What may not be loaded yet after each of these, in one process that does one after the other.
LATE = {
    "import gradpath; gradpath.__version__": {"torch"},
    "from gradpath.cli import main\ntry:\n    main(['find', '--help'])\nexcept SystemExit:\n    pass": {"torch"},
    "import gradpath.tasks": {"transformers", "datasets", "matplotlib"},
    "import gradpath.graph, gradpath.selection": {"transformers", "matplotlib"},
    "import gradpath.report": {"matplotlib"},
}


def test_importing_and_asking_for_help_load_no_more_than_they_need():
    script = "\n".join(f"{statement}\nprint('after', *sys.modules)" for statement in LATE)
    done = subprocess.run([sys.executable, "-c", f"import sys\n{script}"], capture_output=True, text=True, check=True)
    lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("after ")]
    for (statement, late), loaded in zip(LATE.items(), lines, strict=True):
        assert not set(loaded) & late, statement


def test_every_public_name_is_there():
    for name in gradpath.__all__:
        assert getattr(gradpath, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = gradpath.nonsense


def test_pytorch_files_are_read_as_tensors_only():
    """Ruff finds every other way to run code from a file (S102, S301, S302, S307, S506)."""
    for file in FILES:
        for node in nodes_of(file):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("torch.load", "np.load", "jit.load")):
                assert {"weights_only": "True"}.items() <= {x.arg: ast.unparse(x.value) for x in node.keywords}.items()


PROJECT = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["project"]
PACKAGE_OF = {"yaml": "pyyaml", "huggingface_hub": "huggingface-hub"}  # where the two names differ


def declared(requirements: list[str]) -> set[str]:
    return {re.match(r"[\w-]+", one)[0] for one in requirements}


def test_what_is_imported_is_installed_and_what_is_installed_is_imported():
    used = set()
    for file in FILES:
        for node in nodes_of(file):
            if isinstance(node, ast.Import):
                used |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                used.add(node.module.partition(".")[0])
    used = {PACKAGE_OF.get(name, name) for name in used - sys.stdlib_module_names - {"gradpath"}}
    needed = declared(PROJECT["dependencies"])
    optional = declared([one for extra in PROJECT["optional-dependencies"].values() for one in extra])
    assert needed - used == {"accelerate"}  # transformers reads GGUF and MXFP4 with it
    # Jupyter brings IPython, and users of a hub's data sets have their library.
    assert used - needed - optional <= {"IPython", "datasets"}


MODULES = [
    ".".join(file.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
    for file in FILES
    if ">>> " in file.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name):
    assert len(MODULES) > 10
    done = doctest.testmod(importlib.import_module(name))
    assert done.attempted
    assert done.failed == 0
