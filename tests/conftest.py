"""Small models with random weights, prompts of numbers, and run-time checks of shapes."""

import importlib
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import jaxtyping
import pytest
import torch
from jaxtyping import install_import_hook

import gradpath

# Every shape in a signature of these rooms is checked while the tests run, but where they have to see what users
# would see. All of their modules are imported here: registries would import some of them later, without the hook.
# The slow model (``reference``) has no shapes in its signatures, and calls many small functions.
ROOMS = ("graph", "scores", "circuit", "sweep", "ablation", "attribution", "evaluation", "selection")
CHECKED = [*(f"gradpath.{room}" for room in ROOMS), "gradpath.model.transformer", "gradpath.tasks"]
SOURCE = Path(gradpath.__file__).parent
with nullcontext() if os.environ.get("GRADPATH_UNCHECKED") else install_import_hook(CHECKED, "beartype.beartype"):
    for file in sorted(SOURCE.rglob("*.py")):
        module = ".".join(file.relative_to(SOURCE.parent).with_suffix("").parts)
        if module.startswith(tuple(CHECKED)):
            importlib.import_module(module.removesuffix(".__init__"))

# gguf imports mistral_common where it finds it, for what nobody here uses, and that takes seconds.
sys.modules["mistral_common"] = None
import gguf  # noqa: E402, F401

del sys.modules["mistral_common"]

from chromium import chromium  # noqa: E402, F401 (a fixture)
from serving import Server  # noqa: E402
from small_models import TINY, tiny_model  # noqa: E402

# The models are tiny: threads would only wait for each other.
torch.set_num_threads(1)


@pytest.fixture(params=sorted(TINY))
def model(request: pytest.FixtureRequest) -> gradpath.model.transformer.Transformer:
    """One small model of every family and variant."""
    return tiny_model(request.param)


@pytest.fixture
def gpt2() -> gradpath.model.transformer.Transformer:
    return tiny_model("gpt2")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Starts commands and scripts in processes of their own."""
    started = Server(tmp_path_factory.mktemp("server"))
    yield started
    started.close()


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


# The tests in these folders and files call what the others check, through commands and pages. So do the further cases
# of a parametrised test.
UNCHECKED = {"cli", "docs", "explanation", "formats", "grid", "hostile", "paper", "report", "runtime", "test_verdict"}
_seen: set[str] = set()


@pytest.fixture(autouse=True)
def _checks(request: pytest.FixtureRequest) -> None:
    test = f"{request.path}::{getattr(request.node, 'originalname', request.node.name)}"
    unchecked = test in _seen or {request.path.parent.name, request.path.stem} & UNCHECKED
    jaxtyping.config.update("jaxtyping_disable", bool(unchecked))
    _seen.add(test)


@pytest.fixture
def unchecked(_checks: None) -> None:
    """No checks of types and shapes, for tests of what users see who pass something else."""
    jaxtyping.config.update("jaxtyping_disable", True)  # until the next test


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """The last line says what was not tested, and why."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    if reasons:
        told = "; ".join(f"{n} ({reason})" for reason, n in reasons.most_common())
        reporter.write_line(f"not tested: {told}")
