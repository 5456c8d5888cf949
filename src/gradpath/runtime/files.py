"""Atomic writes, and one run at a time in a folder.

The command line turns SIGTERM and Ctrl-C into exceptions, which can be raised between any two bytecodes. So
whatever is created on disk has a name, or an owner that cleans up, before it exists.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gradpath.errors import InputError
from gradpath.runtime import distributed

_PART = ".gradpath-part"  # the suffix of a file that is still being written


def write_atomically(file: Path, content: str | bytes) -> None:
    """Write a temporary file next to ``file`` and rename it, so that no reader ever sees half a file.

    Args:
        file: The file to write; its folder is created if necessary.
        content: Text, written as UTF-8, or bytes.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}{_PART}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(file)
    except OSError as problem:
        raise _not_writable(file, problem) from None
    finally:
        with suppress(OSError):  # it was renamed, or never created
            temporary.unlink()


@contextmanager
def lock_folder(folder: Path | None) -> Iterator[None]:
    """Refuse other runs that want to write to this folder, for as long as this lasts.

    The lock belongs to the process (of several, to the first), so it ends with the process, however that ends.
    A folder that did not exist before and is still empty afterwards is removed.

    Args:
        folder: The folder, created if necessary; None locks nothing.
    """
    if folder is None:
        yield
        return
    lock, is_new, handles = folder / ".lock", not folder.exists(), list[int]()
    is_first = distributed.rank() == 0
    try:
        try:
            distributed.on_first_rank(lambda: _acquire(lock, handles))
            yield
        finally:
            if is_first:
                _release(lock, handles, is_new)
    finally:  # once more, in case a signal interrupted the first
        if is_first:
            _release(lock, handles, is_new)


def _acquire(lock: Path, handles: list[int]) -> None:
    """Open the lock file, lock it, write our process number to it, and remove what killed runs left behind."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        while not _is_current(lock, handles):  # another run may remove the file before we have locked it
            handles.append(os.open(lock, os.O_RDWR | os.O_CREAT, 0o666))
            if not _flock(handles[-1]):
                other = os.read(handles[-1], 20).decode(errors="replace").strip() or "unknown"
                raise InputError(
                    f"{lock.parent} is being written to by another run (process {other}). "
                    "Wait for it to end, or give another folder with --out."
                )
        os.truncate(handles[-1], 0)
        os.write(handles[-1], f"{os.getpid()}".encode())
        for place in (lock.parent, lock.parent / "cells", lock.parent / "scores"):
            for part in place.glob(f".*{_PART}"):
                part.unlink(missing_ok=True)
    except OSError as problem:
        raise _not_writable(lock, problem) from None


def _release(lock: Path, handles: list[int], is_new: bool) -> None:
    """Remove the lock file if it is ours, and the folder if it is new and empty. It is safe to call this twice."""
    with suppress(OSError):
        if not handles and lock.exists():  # a signal came after the file was created and before its handle was stored
            handles.append(os.open(lock, os.O_RDWR))
        if _is_current(lock, handles) and _flock(handles[-1]):
            lock.unlink()
    while handles:
        os.close(handles.pop())
    if is_new:
        with suppress(OSError):  # it is not empty
            lock.parent.rmdir()


def _is_current(lock: Path, handles: list[int]) -> bool:
    """Whether the last handle is that of the file that the lock's name refers to now."""
    try:
        return bool(handles) and os.path.samestat(os.fstat(handles[-1]), lock.stat())
    except FileNotFoundError:
        return False


def _flock(handle: int) -> bool:
    """Whether the file is locked by us now; always true on systems without such locks."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError) as problem:
        if getattr(problem, "errno", None) not in (None, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    return True


def _not_writable(file: Path, problem: OSError) -> InputError:
    return InputError(
        f"{file} could not be written: {problem.strerror or problem}. Choose a folder that can be "
        "written to and has room."
    )
