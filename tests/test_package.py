"""What the package promises about itself: layers, quick imports, no pickle, no literal device."""

from __future__ import annotations

import ast
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
LAYERS = [
    {"errors", "_version", "defaults", "runtime"},
    {"registry"},
    {"recipe"},
    {"graph"},
    {"scores"},
    {"circuit"},
    {"model"},
    {"tasks"},
    {"reference"},
    {"limits"},
    {"sweep"},
    {"ablation"},
    {"attribution"},
    {"evaluation"},
    {"selection"},
    {"verdict"},
    {"formats"},
    {"explanation"},
    {"report"},
    {"study"},
    {"paper"},
    {"pipeline"},
    {"selfcheck"},
    {"cli"},
    {"__init__", "__main__"},
]
RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}
# Three objects can show themselves, and turn into others.
EXCEPTIONS = {(room, "report") for room in ("scores", "circuit", "evaluation")}
EXCEPTIONS |= {(room, "formats") for room in ("scores", "circuit", "evaluation")}
# The one file that opens PyTorch's own, for another library's sake.
PYTORCH_FILES = SOURCE / "formats" / "eap_ig.py"


def room(parts: tuple[str, ...]) -> str:
    return parts[0].removesuffix(".py")


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


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_point_left_only(file):
    here = room(file.relative_to(SOURCE).parts)
    assert here in RANK, f"{here} has no layer: give it one here"
    for other in imported(file):
        assert RANK[other] <= RANK[here] or (here, other) in EXCEPTIONS, f"{here} imports {other}"


# What may not be loaded yet after each of these, in one process that does one after the other.
LATE = {
    "import gradpath; gradpath.__version__": {"torch"},
    "from gradpath.cli import main\ntry:\n    main(['find', '--help'])\nexcept SystemExit:\n    pass": {"torch"},
    "import gradpath.tasks": {"transformers", "datasets", "matplotlib"},
    "import gradpath.graph, gradpath.selection": {"transformers", "matplotlib"},
    "import gradpath.report": {"matplotlib"},
}


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """The modules that are there after each statement."""
    script = "\n".join(f"{statement}\nprint('after', *sys.modules)" for statement in LATE)
    command = [sys.executable, "-c", f"import sys\n{script}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("after ")]
    return {statement: set(line) for statement, line in zip(LATE, lines, strict=True)}


@pytest.mark.parametrize("statement", LATE)
def test_importing_and_asking_for_help_load_no_more_than_they_need(loaded, statement):
    assert not loaded[statement] & LATE[statement]


def test_every_public_name_is_there():
    assert len(gradpath.__all__) <= 20
    for name in gradpath.__all__:
        assert getattr(gradpath, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = gradpath.nonsense


UNPICKLERS = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "jsonpickle"}
# PyYAML can make any object of a file. One file uses it, with a loader that makes plain values alone.
YAML_FILE = SOURCE / "study" / "file.py"
UNSAFE_YAML = {"load", "load_all", "full_load", "full_load_all", "unsafe_load", "unsafe_load_all", "Loader"}
UNSAFE_YAML |= {"FullLoader", "UnsafeLoader", "CLoader", "CFullLoader", "CUnsafeLoader"}
# However the module before the dot may be called.
UNPICKLING = ("numpy.load", "np.load", "read_pickle", "jit.load", "hub.load", "package.PackageImporter")


def node_module(node: ast.Import | ast.ImportFrom) -> str:
    return getattr(node, "module", None) or ""


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_nothing_is_unpickled_and_no_device_is_named(file):
    for node in nodes_of(file):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = {alias.name for alias in node.names} | {node_module(node)}
            assert not {name.partition(".")[0] for name in names} & UNPICKLERS, ast.unparse(node)
            assert "yaml" not in names or (file == YAML_FILE and isinstance(node, ast.Import)), ast.unparse(node)
            assert not (node_module(node) == "torch" and names & {"load", "save"}), ast.unparse(node)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "yaml":
            assert node.attr not in UNSAFE_YAML, ast.unparse(node)
        if isinstance(node, ast.Call):
            call = ast.unparse(node.func)
            assert call not in {"eval", "exec", "compile", "__import__"}, ast.unparse(node)
            assert not call.endswith(UNPICKLING), ast.unparse(node)
            assert "allow_pickle" not in {word.arg for word in node.keywords}, ast.unparse(node)
            assert call not in {"torch.load", "torch.save"} or file == PYTORCH_FILES, ast.unparse(node)
            if call == "torch.load":
                options = {word.arg: word.value for word in node.keywords}
                assert ast.unparse(options["weights_only"]) == "True", ast.unparse(node)
            for word in node.keywords:
                if word.arg == "trust_remote_code":  # as it was requested, never switched on
                    assert not isinstance(word.value, ast.Constant) or word.value.value is False
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not node.value.startswith(("cuda", "mps")), node.value


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
            elif isinstance(node, ast.ImportFrom) and not node.level:
                used.add(node_module(node).partition(".")[0])
    used = {PACKAGE_OF.get(name, name) for name in used - sys.stdlib_module_names - {"gradpath"}}
    needed = declared(PROJECT["dependencies"])
    optional = declared([one for extra in PROJECT["optional-dependencies"].values() for one in extra])
    assert needed <= used, f"installed and not used: {needed - used}"
    # Jupyter brings IPython, and users of a hub's data sets have their library.
    assert used - needed - optional <= {"IPython", "datasets"}
