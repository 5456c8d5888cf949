"""The examples in docstrings run and give what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import gradpath

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(gradpath.__path__, "gradpath.")
    if not module.name.endswith("__main__")
)


@pytest.mark.parametrize("name", ["gradpath", *MODULES])
def test_examples_in_docstrings_hold(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    modules = [importlib.import_module(name) for name in MODULES]
    assert sum(bool(test.examples) for module in modules for test in finder.find(module)) >= 5
