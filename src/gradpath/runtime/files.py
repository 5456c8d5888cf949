"""Atomic writes, and one run at a time in a folder.

The command line turns SIGTERM and Ctrl-C into exceptions, which can be raised between any two bytecodes. So the name
of every file, or the code that removes it, is set before the file exists.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from gradpath.errors import InputError
from gradpath.runtime import distributed

ELSEWHERE = ".../"  # the start of a recorded path that leads out of the working directory
PART = ".gradpath-part"  # the suffix of what is still being written
_LOCK = ".gradpath-lock"
STORED_EVERY = 20.0  # seconds
_DEVICES = ("/dev/", "/proc/")  # /dev/stdout may lead to a regular file to which another process still writes


class StateFile:
    """The state of a search that takes long, in a file while it runs: a search that was stopped continues from it.

    Args:
        folder: The folder of such files.
        key: Everything that the state depends on.
        suffix: The end of the file's name.
    """

    def __init__(self, folder: Path, key: object, suffix: str) -> None:
        self._file = folder / f"{sha256(repr(key).encode()).hexdigest()[:32]}{suffix}"
        self._written = time.monotonic()

    def read(self) -> bytes:
        return self._file.read_bytes()

    def write(self, state: Callable[[], str | bytes]) -> None:
        """Write the state, on the first rank and every ``STORED_EVERY`` seconds."""
        if distributed.rank() == 0 and time.monotonic() - self._written > STORED_EVERY:
            write_atomically(self._file, state())
            self._written = time.monotonic()

    def remove(self) -> None:
        if distributed.rank() == 0:
            self._file.unlink(missing_ok=True)


def write_atomically(file: Path, content: str | bytes) -> None:
    """Write a temporary file next to ``file`` and rename it, so that no reader ever sees half a file.

    A link is followed. A device or a pipe is written to: it cannot be replaced.

    Args:
        file: The file to write; its folder is created if necessary.
        content: Text, written as UTF-8, or bytes.
    """
    # A name or a prompt may contain surrogates, which UTF-8 cannot encode: they are written as escapes.
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    temporary = None
    try:
        if not _is_replaceable(file):
            file.write_bytes(data)
            return
        target = Path(os.path.realpath(file))
        temporary = target.with_name(f".{secrets.token_hex(8)}{PART}")
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(target)
    except OSError as problem:
        raise _not_writable(file, problem) from None
    finally:
        if temporary is not None:
            with suppress(OSError):  # it was renamed, or never created
                temporary.unlink()


def recorded_path(path: str | Path) -> str:
    """A path without the folders of this machine, for files that people send to each other.

    A relative path stays as it is. An absolute one becomes ``./...`` inside of the working directory, and ``.../name``
    outside of it. A name that is not UTF-8 has replacement characters.
    """
    full = os.path.expanduser(path)
    if not os.path.isabs(full):
        return readable(str(path))
    try:
        inside = os.path.relpath(full)
    except (OSError, ValueError):  # there is no working directory, or it is on another drive
        inside = os.pardir
    if inside.split(os.sep)[0] != os.pardir:
        return readable(os.path.join(os.curdir, inside))
    return readable(f"{ELSEWHERE}{os.path.basename(full.rstrip(os.sep))}")


def readable(name: str) -> str:
    """The name of a file as text: Python keeps bytes that the locale cannot decode in a form that cannot be written."""
    try:
        return name.encode(errors="surrogateescape").decode(errors="replace")
    except UnicodeEncodeError:  # not a name that the system has
        return name.encode(errors="replace").decode()


def digest_of(content: Any, *blobs: Any) -> str:
    """A digest that shows whether a file has changed since it was written.

    Args:
        content: Values that JSON can represent. Their digest is the same after they were saved and read.
        blobs: Bytes, or arrays of them.

    Returns:
        32 hexadecimal digits.
    """
    plain = json.loads(json.dumps(content))  # all keys are texts now, so that they can be sorted
    digest = sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())
    for blob in blobs:
        digest.update(blob)
    return digest.hexdigest()[:32]


def write_rows(file: Path, head: Mapping[str, Any], name: str, rows: Sequence[Any]) -> None:
    """Write a JSON object that people can read, atomically: first its head, then a list with one row per line.

    Args:
        file: The file to write.
        head: All values of the object but the list. A digest of the whole object is added.
        name: The name of the list.
        rows: The list.
    """
    digest = digest_of({**head, name: rows})
    text = json.dumps({**head, "digest": digest}, indent=1).removesuffix("\n}")
    lines = ",\n  ".join(map(json.dumps, rows))
    write_atomically(file, f'{text},\n "{name}": [\n  {lines}\n ]\n}}\n')


@contextmanager
def write_together(folder: Path, *, instead_of: Sequence[str] = ()) -> Iterator[Path]:
    """Write several files that belong together: all of them change, or none.

    Args:
        folder: Where the files go; created if necessary.
        instead_of: Names of files of earlier runs that are removed unless they are written again.

    Returns:
        A draft folder to write to. Its files move to ``folder`` at the end, unless there was an error.
    """
    draft, drafts = folder / f".{secrets.token_hex(8)}{PART}", list[Path]()
    try:
        try:
            _make_folder(draft)
            yield draft
            drafts.extend(_checked_drafts(draft, folder))
            _move(drafts, folder, instead_of)
        finally:
            if drafts:  # a signal may have interrupted the move, and all files have to come from one run
                _move(drafts, folder, instead_of)
            shutil.rmtree(draft, ignore_errors=True)
    finally:  # once more, in case a signal interrupted the first
        shutil.rmtree(draft, ignore_errors=True)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except OSError as problem:
        raise _not_writable(folder, problem) from None


def _checked_drafts(draft: Path, folder: Path) -> list[Path]:
    """The files of a draft. Those that are not simply renamed come first, because only they can fail half-way."""
    for file in draft.iterdir():
        if (folder / file.name).is_dir():
            raise _not_writable(folder / file.name, IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)))
    return sorted(draft.iterdir(), key=lambda file: (not _is_special(folder / file.name), file.name))


def _move(drafts: list[Path], folder: Path, instead_of: Sequence[str]) -> None:
    """Move the drafts to a folder. It is safe to call this again; after a failure it does nothing more."""
    for draft in drafts:
        file = folder / draft.name
        try:
            if not draft.exists():
                continue
            if _is_special(file):
                write_atomically(file, draft.read_bytes())
            else:
                draft.replace(file)
        except (OSError, InputError) as problem:
            drafts.clear()
            raise problem if isinstance(problem, InputError) else _not_writable(file, problem) from None
    for name in {*instead_of} - {draft.name for draft in drafts}:
        with suppress(OSError):  # there is none
            (folder / name).unlink()


def _is_special(file: Path) -> bool:
    """Whether a file is written other than by renaming a draft: a link, a device, a pipe."""
    return file.is_symlink() or not _is_replaceable(file)


def _is_replaceable(file: Path) -> bool:
    """Whether a file may be replaced by another: a regular one, or one that does not exist."""
    try:
        mode = file.stat().st_mode
    except FileNotFoundError:
        return True
    regular = stat.S_ISREG(mode) and not str(file.absolute()).startswith(_DEVICES)
    return regular or stat.S_ISDIR(mode)  # a folder is refused when a file is renamed to it


@contextmanager
def lock_folder(folder: Path | None) -> Iterator[None]:
    """Within the block, refuse other runs that want to write to this folder.

    The lock belongs to the process (of several, to the first), so it ends with the process, however that ends.
    A folder that did not exist before and is still empty afterwards is removed.

    Args:
        folder: The folder, created if necessary; None locks nothing.
    """
    if folder is None:
        yield
        return
    lock, is_new, handles = folder / _LOCK, not folder.exists(), list[int]()
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
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        while not _is_current(lock, handles):  # another run may remove the file before we have locked it
            handles.append(os.open(lock, flags, 0o666))
            _check_ours(lock, handles[-1])
            if not try_lock(handles[-1]):
                other = os.read(handles[-1], 20).decode(errors="replace").strip() or "unknown"
                raise InputError(
                    f"{lock.parent} is being written to by another run (process {other}). "
                    "Wait for it to end, or give another folder with --out."
                )
        os.truncate(handles[-1], 0)
        os.write(handles[-1], f"{os.getpid()}".encode())
        for folder in (lock.parent, *(lock.parent / name for name in ("cells", "orders", "scores"))):
            for part in folder.glob(f".*{PART}"):
                if part.is_dir() and not part.is_symlink():
                    shutil.rmtree(part, ignore_errors=True)
                else:
                    part.unlink(missing_ok=True)
    except OSError as problem:
        if problem.errno == errno.ELOOP:
            raise _foreign(lock) from None
        raise _not_writable(lock, problem) from None


def _check_ours(lock: Path, handle: int) -> None:
    """Refuse a lock file that we did not write: ours is a regular file with a process number, or still empty."""
    status, content = os.fstat(handle), b"?"
    if stat.S_ISREG(status.st_mode):
        content = os.read(handle, 21)
        os.lseek(handle, 0, os.SEEK_SET)
    if status.st_nlink > 1 or (content and not (content.isdigit() and len(content) < 21)):
        raise _foreign(lock)


def _foreign(lock: Path) -> InputError:
    return InputError(
        f"{lock} is not a lock file of gradpath, so it was left alone. Remove it, or give another folder with --out."
    )


def _release(lock: Path, handles: list[int], is_new: bool) -> None:
    """Remove the lock file if it is ours, and the folder if it is new and empty. It is safe to call this twice."""
    with suppress(OSError, InputError):
        if not handles and lock.exists():  # a signal came after the file was created and before its handle was stored
            handles.append(os.open(lock, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)))
        if handles:
            _check_ours(lock, handles[-1])
        if _is_current(lock, handles) and try_lock(handles[-1]):
            lock.unlink()
    while handles:
        os.close(handles.pop())
    if is_new:
        with suppress(OSError):  # it is not empty
            lock.parent.rmdir()


def _is_current(lock: Path, handles: list[int]) -> bool:
    """Whether the last handle belongs to the file that the lock's name refers to now."""
    try:
        return bool(handles) and os.path.samestat(os.fstat(handles[-1]), lock.lstat())
    except FileNotFoundError:
        return False


def try_lock(handle: int) -> bool:
    """Lock an open file or folder, unless another process has; true on systems without such locks."""
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
    file = Path(*(part for part in file.parts if not part.endswith(PART)))  # a draft has the name of its file
    return InputError(
        f"{file} could not be written: {problem.strerror or problem}. Choose a folder that can be "
        "written to and has room."
    )
