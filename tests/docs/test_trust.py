"""The page on what can be relied on names the tests that prove it: they have to exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_promise_names_files_of_tests_that_exist() -> None:
    page = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
    promises = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| promise")]
    assert promises
    for promise in promises:
        files = re.findall(r"`([\w/]+\.py)`", promise.rpartition(" | ")[2])
        assert files, promise
        for file in files:
            assert (ROOT / "tests" / file).is_file(), file
