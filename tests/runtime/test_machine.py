"""What the machine offers: free memory, and how threads wait."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gradpath import runtime, sweep


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """A container's files, which a test writes."""
    for module in (runtime, sweep):
        monkeypatch.setattr(module, "CGROUP", tmp_path)
    return tmp_path


def test_free_memory_is_that_of_the_machine_or_what_a_container_leaves(proc, monkeypatch):
    monkeypatch.setattr(sweep, "_meminfo", lambda: {"MemAvailable": 10_000})
    assert sweep.free_memory() == 10_000
    (proc / "memory.max").write_text("max\n")
    (proc / "memory.current").write_text("500\n")
    assert sweep.free_memory() == 10_000
    (proc / "memory.max").write_text("4000\n")
    (proc / "memory.stat").write_text("anon 300\ninactive_file 150\nactive_file 50\n")
    assert sweep.free_memory() == 4000 - 500 + 200
    monkeypatch.setattr(sweep, "_meminfo", dict)
    assert sweep.free_memory() == 3700


@pytest.fixture
def fresh(proc, monkeypatch):
    """A process without torch, on a machine of eight cores, in which nobody has set anything."""
    before = dict(os.environ)
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"):
        os.environ.pop(name, None)
    yield proc
    os.environ.clear()
    os.environ.update(before)


def test_threads_that_wait_sleep(fresh):
    runtime.set_threads()
    assert os.environ["OMP_WAIT_POLICY"] == "passive"
    assert "OMP_NUM_THREADS" not in os.environ


@pytest.mark.parametrize(("quota", "threads"), [("200000", "2"), ("50000", "1"), ("max", None), ("800000", None)])
def test_a_container_with_fewer_cores_has_fewer_threads(fresh, quota, threads):
    (fresh / "cpu.max").write_text(f"{quota} 100000\n")
    runtime.set_threads()
    assert os.environ.get("OMP_NUM_THREADS") == threads


def test_the_command_line_and_the_package_set_it_before_torch(tmp_path):
    """OpenMP would not read it later."""
    code = (
        "import os, sys; os.environ.pop('OMP_WAIT_POLICY', None); {}; "
        "print('torch' in sys.modules, os.environ.get('OMP_WAIT_POLICY'))"
    )
    for use in ("import gradpath; gradpath.load_task", "from gradpath import cli; cli.Verbs().get_command(None, 'ls')"):
        done = subprocess.run([sys.executable, "-c", code.format(use)], capture_output=True, text=True, check=True)
        assert done.stdout.split()[1] == "passive", use
