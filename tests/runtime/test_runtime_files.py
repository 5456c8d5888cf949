"""Files and locks when an exception is raised between any two bytecodes, as SIGTERM and Ctrl-C do."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gradpath.errors import InputError
from gradpath.runtime import files
from gradpath.runtime.files import lock_folder, write_atomically

SOURCES = {files.__file__, contextlib.__file__}
# A file that is open when the exception comes is closed when its last reference goes, and says so.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")


class Interrupted(BaseException):
    """Stands for what the handler of a signal raises."""


def interrupted_at(place: int, work: Callable[[], None]) -> bool:
    """Do the work, and raise an exception in front of one bytecode; whether there are that many."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename not in SOURCES:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            count += 1
            if count == place:
                raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return count >= place  # raised while a generator was closed, which nobody sees


def interruptions(work: Callable[[], None]) -> Iterator[int]:
    """Interrupt the work at each of its bytecodes in turn, until there is none left."""
    place = 1
    while interrupted_at(place, work):
        yield place
        place += 1
    assert place > 40


@pytest.mark.parametrize("old", [None, "old"])
def test_an_interrupted_write_leaves_the_old_file_or_the_new_and_nothing_else(tmp_path, old):
    file = tmp_path / "file.txt"

    def work() -> None:
        write_atomically(file, "new")

    seen = set()
    for place in interruptions(work):
        assert list(tmp_path.iterdir()) in ([], [file]), place
        seen.add(file.read_text() if file.exists() else None)
        file.unlink(missing_ok=True)
        if old is not None:
            file.write_text(old)
    assert seen == {old, "new"} | {None}
    assert file.read_text() == "new"


@pytest.mark.parametrize("folder_exists", [True, False])
def test_an_interrupted_lock_leaves_no_lock_file_and_no_empty_folder(tmp_path, folder_exists):
    folder = tmp_path / "out"
    if folder_exists:
        folder.mkdir()

    def work() -> None:
        with lock_folder(folder):
            pass

    for place in interruptions(work):
        assert not (folder / ".lock").exists(), place
        assert folder.exists() == folder_exists, place


def test_an_interrupted_attempt_does_not_take_the_lock_of_another_run(tmp_path):
    def work() -> None:
        with contextlib.suppress(InputError), lock_folder(tmp_path):
            pytest.fail("two runs have the lock")

    with lock_folder(tmp_path):
        inode = (tmp_path / ".lock").stat().st_ino
        for place in interruptions(work):
            assert (tmp_path / ".lock").stat().st_ino == inode, place
        with pytest.raises(InputError, match=f"by another run .process {os.getpid()}."), lock_folder(tmp_path):
            pass
    assert not (tmp_path / ".lock").exists()


def test_a_file_has_the_permissions_that_the_umask_leaves(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "file", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_leftovers_of_a_run_that_was_killed_are_removed(tmp_path):
    parts = [tmp_path / ".a.gradpath-part", tmp_path / "cells" / ".b.gradpath-part"]
    parts[1].parent.mkdir()
    for part in parts:
        part.touch()
    with lock_folder(tmp_path):
        assert not any(map(Path.exists, parts))
