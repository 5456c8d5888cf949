"""The page of promises: every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_promise_names_tests_that_exist():
    rows = [line for line in (ROOT / "docs/trust.md").read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    promises = [row for row in rows if not row.startswith(("| promise", "|---"))]
    assert promises
    for promise in promises:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", promise)
        assert named, promise
        for file, name in named:
            assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file} has no {name}"
