"""Files and locks when an exception is raised between any two bytecodes, as SIGTERM and Ctrl-C do."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import pytest

from gradpath.errors import InputError
from gradpath.runtime import files
from gradpath.runtime.files import lock_folder, readable, recorded_path, write_atomically, write_together

SOURCES = {files.__file__, contextlib.__file__}
# A file that is open when the exception comes is closed when its last reference goes, and says so.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")


class Interrupted(BaseException):
    """Stands for what the handler of a signal raises."""


def interrupted_at(place: int, work: Callable[[], None]) -> bool:
    """Do the work, and raise an exception in front of one bytecode; whether there are that many."""
    count = 0

    def step(*_: Any) -> None:
        nonlocal count
        count += 1
        if count == place:
            raise Interrupted

    try:
        with before_every_bytecode(step):
            work()
    except Interrupted:
        return True
    return count >= place  # raised while a generator was closed, which nobody sees


@contextlib.contextmanager
def before_every_bytecode(step: Callable[..., None]) -> Iterator[None]:
    """Call ``step`` in front of every bytecode of the modules that are watched."""
    if sys.version_info < (3, 12):
        before = sys.gettrace()

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            if frame.f_code.co_filename not in SOURCES:
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            if event == "opcode":
                step()
            return trace

        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(before)
        return
    # From 3.12 on, a trace function sees the bytecodes of a function only when it is called again.
    monitoring, tool = sys.monitoring, 4
    monitoring.use_tool_id(tool, "interruptions")
    monitoring.register_callback(tool, monitoring.events.INSTRUCTION, step)
    for code in CODES:
        monitoring.set_local_events(tool, code, monitoring.events.INSTRUCTION)
    try:
        yield
    finally:
        for code in CODES:
            monitoring.set_local_events(tool, code, 0)
        monitoring.register_callback(tool, monitoring.events.INSTRUCTION, None)
        monitoring.free_tool_id(tool)


def codes_of(x: Any, seen: set[CodeType]) -> set[CodeType]:
    """The code of a module, a class or a function, and of all functions in it."""
    if isinstance(x, CodeType):
        if x.co_filename in SOURCES and x not in seen:
            seen.add(x)
            for constant in x.co_consts:
                codes_of(constant, seen)
    elif isinstance(x, FunctionType):
        codes_of(x.__code__, seen)
        codes_of(getattr(x, "__wrapped__", None), seen)
    elif isinstance(x, (type, ModuleType)) and (
        isinstance(x, ModuleType) or x.__module__ in ("contextlib", files.__name__)
    ):
        for value in list(vars(x).values()):
            if not isinstance(value, ModuleType):
                codes_of(value, seen)
    return seen


CODES = codes_of(files, set()) | codes_of(contextlib, set())


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
        assert not (folder / ".gradpath-lock").exists(), place
        assert folder.exists() == folder_exists, place


def test_an_interrupted_attempt_does_not_take_the_lock_of_another_run(tmp_path):
    def work() -> None:
        with contextlib.suppress(InputError), lock_folder(tmp_path):
            pytest.fail("two runs have the lock")

    with lock_folder(tmp_path):
        inode = (tmp_path / ".gradpath-lock").stat().st_ino
        for place in interruptions(work):
            assert (tmp_path / ".gradpath-lock").stat().st_ino == inode, place
        with pytest.raises(InputError, match="by another run"), lock_folder(tmp_path):
            pass
    assert not (tmp_path / ".gradpath-lock").exists()


def test_a_file_has_the_permissions_that_the_umask_leaves(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "file", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_leftovers_of_a_run_that_was_killed_are_removed(tmp_path):
    parts = [tmp_path / ".a.gradpath-part", tmp_path / "cells" / ".b.gradpath-part", tmp_path / ".c.gradpath-part"]
    parts[1].parent.mkdir()
    parts[2].mkdir()
    parts[2] /= "scores.safetensors"
    for part in parts:
        part.touch()
    with lock_folder(tmp_path):
        assert {file.name for file in tmp_path.rglob("*")} == {"cells", ".gradpath-lock"}


def test_a_link_is_followed_and_stays_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    for name, target in (("there", "elsewhere/there"), ("missing", "elsewhere/missing")):
        (tmp_path / name).symlink_to(target)
    (tmp_path / "elsewhere" / "there").write_text("old")
    for name in ("there", "missing"):
        write_atomically(tmp_path / name, "new")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "elsewhere" / name).read_text() == "new"


def test_a_device_or_a_pipe_is_refused_and_stays(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    for name in ("pipe", "null"):
        with pytest.raises(InputError, match=f"{name} could not be written: it is not a regular file"):
            write_atomically(tmp_path / name, "content")
    assert (tmp_path / "pipe").is_fifo()
    assert Path("/dev/null").is_char_device()


def test_a_file_name_may_be_as_long_as_the_system_allows(tmp_path):
    write_atomically(tmp_path / ("x" * 255), "content")
    assert (tmp_path / ("x" * 255)).read_text() == "content"


def write_two(folder: Path, *, stop: bool = False) -> None:
    with write_together(folder, instead_of=("c",)) as draft:
        write_atomically(draft / "a", "new")
        if stop:
            (draft / "b").mkdir()
        write_atomically(draft / "b", "new")


def contents(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


def test_interrupted_writes_leave_the_files_of_one_run(tmp_path):
    old, new = {"a": "old", "b": "old", "c": "old"}, {"a": "new", "b": "new"}
    seen = []
    for name, text in old.items():
        (tmp_path / name).write_text(text)
    for place in interruptions(lambda: write_two(tmp_path)):
        assert contents(tmp_path) in (old, new), place
        seen.append(contents(tmp_path))
        for name, text in old.items():
            (tmp_path / name).write_text(text)
    assert old in seen
    assert new in seen


@pytest.mark.parametrize("broken", ["a folder", "an error"])
def test_files_that_belong_together_all_stay_if_one_cannot_be_written(tmp_path, broken):
    (tmp_path / "a").write_text("old")
    if broken == "a folder":
        (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match="b could not be written"):
        write_two(tmp_path, stop=broken == "an error")
    assert (tmp_path / "a").read_text() == "old"
    assert {file.name for file in tmp_path.iterdir()} <= {"a", "b"}


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(InputError, match="file could not be written: Not a directory"),
        write_together(tmp_path / "file"),
    ):
        pytest.fail("there is no folder")


def test_a_file_called_lock_is_left_alone(tmp_path):
    (tmp_path / "other").write_text("mine")
    (tmp_path / ".lock").symlink_to("other")
    with lock_folder(tmp_path):
        pass
    assert (tmp_path / ".lock").is_symlink()
    assert (tmp_path / "other").read_text() == "mine"


def test_the_lock_file_that_a_killed_run_left_is_taken_over(tmp_path):
    (tmp_path / ".gradpath-lock").write_text("999999999")
    with lock_folder(tmp_path):
        assert (tmp_path / ".gradpath-lock").exists()
    assert not (tmp_path / ".gradpath-lock").exists()


def test_a_recorded_path_has_no_folders_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert recorded_path(tmp_path / "models" / "tiny") == "./models/tiny"
    assert recorded_path(tmp_path.parent / "tiny") == ".../tiny"
    assert recorded_path(f"{tmp_path.parent}/tiny/") == ".../tiny"
    assert recorded_path("~/tiny") == ".../tiny"
    for name in ("models/tiny", "../tiny", "somebody/tiny", "smollm2", "a gpt2 model", ""):
        assert recorded_path(name) == name


def test_names_that_are_not_text_become_text(tmp_path):
    assert readable(os.fsdecode(b"a\xffb")) == "a\ufffdb"
    assert readable("\udcc3\udca9") == "\u00e9"  # UTF-8, read in an ASCII locale
    assert readable("\u00e9") == "\u00e9"
    assert readable("\ud800x") == "?x"
    write_atomically(tmp_path / "file", "x\udcff")
    assert (tmp_path / "file").read_text() == "x\\udcff"
