"""In this folder MLPs are run only where they matter in circuits of every size, as in small circuits elsewhere."""

from __future__ import annotations

import pytest

from gradpath.evaluation import patched_run


@pytest.fixture(autouse=True)
def all_circuits_are_small(monkeypatch):
    monkeypatch.setattr(patched_run, "SMALL", 1.0)
