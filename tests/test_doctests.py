"""The examples in docstrings run and give what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import gradpath

SOURCE = Path(gradpath.__file__).parent
MODULES = [
    ".".join(file.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
    for file in sorted(SOURCE.rglob("*.py"))
    if ">>> " in file.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name):
    done = doctest.testmod(importlib.import_module(name))
    assert done.attempted
    assert done.failed == 0


def test_there_are_examples():
    assert len(MODULES) > 10
