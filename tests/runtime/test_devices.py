"""Runs the tests of ``on_a_device``.

PyTorch counts devices at the first backward pass of a process, so the pretended one has to be there before it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from launching import finished

FILE = Path(__file__).with_name("on_a_device.py")


@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_everything_runs_on_a_device_that_is_not_the_cpu(which):
    ran = finished(
        [sys.executable, "-m", "pytest", str(FILE), "-m", which, "-p", "no:cacheprovider"], GRADPATH_UNCHECKED="1"
    )
    assert ran.returncode == 0, ran.stdout
