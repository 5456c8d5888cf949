"""Small models with random weights, prompts of numbers, and run-time checks of shapes."""

import importlib
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from jaxtyping import install_import_hook

import gradpath

# Every shape in a signature of the package is checked while the tests run, but where they have to see what
# users would see. Modules are imported by file: registries would import some of them later, without the hook.
SOURCE = Path(gradpath.__file__).parent
UNCHECKED = ("cli", "grid", "paper", "pipeline", "report", "gguf", "placement")  # no shapes in them
with nullcontext() if os.environ.get("GRADPATH_UNCHECKED") else install_import_hook("gradpath", "beartype.beartype"):
    for file in sorted(SOURCE.rglob("*.py")):
        module = file.relative_to(SOURCE.parent).with_suffix("").parts
        if not set(module) & {*UNCHECKED, "__init__", "__main__"}:
            importlib.import_module(".".join(module))

from chromium import chromium  # noqa: E402, F401 (a fixture)
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


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


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
