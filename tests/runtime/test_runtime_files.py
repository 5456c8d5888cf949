"""Files and locks: all of them or none, also when a signal interrupts a run."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from gradpath.errors import InputError
from gradpath.runtime.files import lock_folder, readable, recorded_path, write_atomically, write_together


class Interrupted(BaseException):
    """Stands for what the handler of a signal raises."""


@pytest.fixture
def interrupted(monkeypatch):
    """Raise an exception in front of, or behind, one call of ``os.replace``."""

    def at(call: int, *, behind: bool) -> None:
        count, replace = 0, os.replace

        def stopping(*names: Path) -> None:
            nonlocal count
            count += 1
            if count == call and not behind:
                raise Interrupted
            replace(*names)
            if count == call:
                raise Interrupted

        monkeypatch.setattr(os, "replace", stopping)

    return at


@pytest.mark.parametrize("behind", [False, True])
def test_an_interrupted_write_leaves_the_old_file_or_the_new_and_nothing_else(tmp_path, interrupted, behind):
    file = tmp_path / "file.txt"
    file.write_text("old")
    interrupted(1, behind=behind)
    with pytest.raises(Interrupted):
        write_atomically(file, "new")
    assert contents(tmp_path) == {"file.txt": "new" if behind else "old"}


def test_one_run_at_a_time_writes_to_a_folder_and_leaves_nothing_if_it_is_interrupted(tmp_path):
    for folder in (tmp_path / "new", tmp_path):
        with suppress(Interrupted), lock_folder(folder):
            with pytest.raises(InputError, match="by another run"), lock_folder(folder):
                pytest.fail("two runs have the lock")
            assert (folder / ".gradpath-lock").exists()
            raise Interrupted
    assert not list(tmp_path.iterdir())


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


def write_two(folder: Path, *, stop: bool = False) -> None:
    with write_together(folder, instead_of=("c",)) as draft:
        write_atomically(draft / "a", "new")
        if stop:
            (draft / "b").mkdir()
        write_atomically(draft / "b", "new")


def contents(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


@pytest.mark.parametrize(("call", "behind"), [(3, False), (3, True), (4, False), (4, True)])
def test_interrupted_writes_leave_the_files_of_one_run(tmp_path, interrupted, call, behind):
    for name in "abc":
        (tmp_path / name).write_text("old")
    interrupted(call, behind=behind)  # the first two are those of the drafts
    with pytest.raises(Interrupted):
        write_two(tmp_path)
    assert contents(tmp_path) == {"a": "new", "b": "new"}


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
