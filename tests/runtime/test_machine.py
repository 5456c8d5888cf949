"""What the machine offers: free memory, free cores, and whose choice of threads counts."""

from __future__ import annotations

import os
import sys

import pytest
import torch

from gradpath.runtime import machine


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """A container's files, which a test writes."""
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    return tmp_path


def test_free_memory_is_that_of_the_machine_or_what_a_container_leaves(proc, monkeypatch):
    monkeypatch.setattr(machine, "_meminfo", lambda: {"MemAvailable": 10_000})
    assert machine.free_memory() == 10_000
    (proc / "memory.max").write_text("max\n")
    (proc / "memory.current").write_text("500\n")
    assert machine.free_memory() == 10_000
    (proc / "memory.max").write_text("4000\n")
    (proc / "memory.stat").write_text("anon 300\ninactive_file 150\nactive_file 50\n")
    assert machine.free_memory() == 4000 - 500 + 200
    monkeypatch.setattr(machine, "_meminfo", dict)
    assert machine.free_memory() == 3700


def test_free_memory_is_not_known_everywhere(proc, monkeypatch):
    monkeypatch.setattr(machine, "_meminfo", dict)
    assert machine.free_memory() is None


@pytest.mark.parametrize(("load", "expected"), [(0.0, 8), (2.9, 5), (7.8, 1), (30.0, 1)])
def test_threads_are_as_many_as_cores_are_free(proc, monkeypatch, load, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0), raising=False)
    assert machine.free_cores() == expected


def test_a_container_with_fewer_cores_counts_its_own(proc, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0), raising=False)
    (proc / "cpu.max").write_text("200000 100000\n")
    assert machine.free_cores() == 2
    (proc / "cpu.max").write_text("max 100000\n")
    assert machine.free_cores() == 8


@pytest.fixture
def fresh(monkeypatch):
    """A process without torch, in which nobody has chosen a number of threads."""
    monkeypatch.delitem(sys.modules, "torch")
    for name in (*machine.CHOSEN, "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(machine, "free_cores", lambda: 3)
    # What set_threads sets is taken back with everything else.
    before = dict(os.environ)
    yield monkeypatch
    os.environ.clear()
    os.environ.update(before)


def test_threads_wait_asleep_and_leave_busy_cores_alone(fresh):
    machine.set_threads()
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert os.environ["OMP_WAIT_POLICY"] == "passive"


@pytest.mark.parametrize("name", machine.CHOSEN)
def test_a_number_that_the_user_has_set_is_left_alone(fresh, name):
    fresh.setenv(name, "7")
    fresh.setenv("OMP_WAIT_POLICY", "active")
    before = dict(os.environ)
    machine.set_threads()
    assert dict(os.environ) == before


def test_nothing_is_set_once_torch_is_imported(fresh):
    fresh.setitem(sys.modules, "torch", torch)
    before = dict(os.environ)
    machine.set_threads()
    assert dict(os.environ) == before
