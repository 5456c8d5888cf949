"""Runs the tests of ``on_a_device``.

PyTorch counts devices at the first backward pass of a process, so the pretended one has to be there before it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

FILE = Path(__file__).with_name("on_a_device.py")


@pytest.mark.slow
@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_everything_runs_on_a_device_that_is_not_the_cpu(server, which):
    already_imported = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
    code = server.run(FILE, "-m", which, "-p", "no:cacheprovider", *already_imported, script="pytest")
    assert code == 0, server.out.read_text() + server.err.read_text()
