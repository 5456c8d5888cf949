"""Writing files so that a reader sees the whole of one or nothing of it, one run at a time in a folder."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gradpath.errors import InputError
from gradpath.runtime import distributed

_PART = ".gradpath-part"  # how the name of a file ends that is still being written


def write_atomically(file: Path, content: str | bytes) -> None:
    """Write beside the file and rename: a crash leaves the old file, or none, never half of one."""
    data = content.encode() if isinstance(content, str) else content
    temporary = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            dir=file.parent, prefix=f".{file.name}.", suffix=_PART, delete=False
        ) as handle:
            temporary = Path(handle.name)
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(file)
    except OSError as problem:
        raise _refused(file, problem) from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


@contextmanager
def lock_folder(folder: Path | None) -> Iterator[None]:
    """Keep a folder for this run: another one that wants to write there is refused while this one lives.

    The lock belongs to the process (of several, to the first), so however it dies, the lock is gone.
    """
    with ExitStack() as stack:
        if folder is not None:
            distributed.on_first_rank(lambda: stack.enter_context(_locked(folder)))
        yield


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock, new = folder / ".lock", not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = _opened(lock)
    except OSError as problem:
        raise _refused(lock, problem) from None
    try:
        _sweep(folder)
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(handle)
        if new and not any(folder.iterdir()):  # nothing came of it
            folder.rmdir()


def _opened(lock: Path) -> int:
    """The lock file, open and ours, with our number in it."""
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if not _lock(handle):
                raise InputError(
                    f"{lock.parent} is being written to by another run (process {_other(handle)}). "
                    "Wait for it to end, or give another folder with --out."
                )
            if lock.exists() and os.path.samestat(os.fstat(handle), lock.stat()):
                os.truncate(handle, 0)
                os.write(handle, f"{os.getpid()}".encode())
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its owner took the file away between our two steps: it locks nothing


def _other(handle: int) -> str:
    return os.read(handle, 20).decode(errors="replace").strip() or "not known"


def _sweep(folder: Path) -> None:
    """Take away what a run that was killed while it wrote has left; nobody else is writing here now."""
    for part in (folder, folder / "cells", folder / "scores"):
        for left in part.glob(f".*{_PART}"):
            left.unlink(missing_ok=True)


def _lock(handle: int) -> bool:
    """Whether the file is ours now; where a system knows no such locks, it is."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError) as problem:
        if getattr(problem, "errno", None) not in (None, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    return True


def _refused(file: Path, problem: OSError) -> InputError:
    return InputError(
        f"{file} could not be written: {problem.strerror or problem}. Choose a folder that can be "
        "written to and has room."
    )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
