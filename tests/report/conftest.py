"""A browser for the tests of the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Visit
from making import Maker


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "browser: drives headless Chromium (needs chromium and playwright)")


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
