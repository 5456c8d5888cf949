"""A browser for the tests of the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Visit, Windows
from making import Maker


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "browser: drives headless Chromium (needs chromium and playwright)")


@pytest.fixture(scope="session")
def windows(chromium: Any) -> Windows:
    return Windows(chromium)


@pytest.fixture
def visit(windows: Windows, tmp_path: Path) -> Iterator[Visit]:
    """Open reports; afterwards: no console error, no request to any host."""
    visit = Visit(windows, tmp_path)
    yield visit
    visit.close()
    assert windows.problems == []
    assert [url for url in windows.requests if not url.startswith(("file://", "blob:"))] == []


@pytest.fixture
def make() -> Maker:
    return Maker()
