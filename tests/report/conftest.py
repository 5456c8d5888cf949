"""Headless Chromium for the tests of the page; they are skipped, with the reason, where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Visit
from making import Maker

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "browser: drives headless Chromium (needs chromium and playwright)")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no Chromium: apt-get install chromium, or name one in $CHROMIUM")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, headless=True, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Any, tmp_path: Path) -> Iterator[Visit]:
    """Open reports; afterwards: no console error, no request to any host."""
    visit = Visit(chromium, tmp_path)
    yield visit
    visit.close()
    assert visit.problems == []
    assert [url for url in visit.requests if not url.startswith(("file://", "blob:"))] == []


@pytest.fixture
def make() -> Maker:
    return Maker()
