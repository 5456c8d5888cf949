"""Atomic writes, and one run at a time in a folder."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gradpath.errors import InputError, reason
from gradpath.runtime import distributed

if TYPE_CHECKING:
    from filelock import BaseFileLock

Value = TypeVar("Value")

ELSEWHERE = ".../"  # the start of a recorded path that leads out of the working directory
PART = ".gradpath-part"  # the suffix of what is still being written
_LOCK = ".gradpath-lock"
_SEAL = "digest"


def write_atomically(file: Path, content: str | bytes) -> None:
    """Write a draft next to ``file`` and rename it, so that no reader ever sees half a file. A link is followed.

    Text is written as UTF-8. The folder of the file is created if necessary.
    """
    # A name or a prompt may contain surrogates, which UTF-8 cannot encode: they are written as escapes.
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    target = Path(os.path.realpath(file))
    draft = target.with_name(f".{secrets.token_hex(8)}{PART}")
    try:
        if target.exists() and not target.is_file():  # renaming would replace a device
            raise OSError("it is not a regular file")
        target.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("xb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(draft, target)
    except OSError as problem:
        raise _not_writable(file, problem) from None
    finally:
        with suppress(OSError):  # it was renamed, or never created
            draft.unlink()


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


def sealed(content: Mapping[str, Any], *blobs: Any) -> dict[str, Any]:
    """The content of a file with a digest, by which ``check_seal`` sees whether it was changed since.

    The content consists of values that JSON can represent; its digest is the same after they were saved and read.
    ``blobs`` are bytes that are stored elsewhere in the file, or arrays of them.
    """
    plain = json.loads(json.dumps(content))  # all keys are texts now, so that they can be sorted
    digest = sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())
    for blob in blobs:
        digest.update(blob)
    return {**content, _SEAL: digest.hexdigest()[:32]}


def check_seal(content: Mapping[str, Any], *blobs: Any) -> None:
    """Refuse content that was changed after it was sealed. Content without a digest, of another tool, is accepted."""
    rest = {name: value for name, value in content.items() if name != _SEAL}
    if content.get(_SEAL) not in (None, sealed(rest, *blobs)[_SEAL]):
        raise InputError(
            "it was changed or damaged after it was written. Make it again; if you edited it yourself, remove its "
            f'"{_SEAL}".'
        )


def read_json(
    file: str | Path, parse: Callable[[Any], Value], what: str, origin: str, *, shown: object = None
) -> Value:
    """What is parsed of a JSON file that people may have edited; every problem becomes one sentence.

    ``parse`` gets the content, which may be anything. The sentence says ``what`` it is, such as "a circuit", and which
    file to give instead (``origin``), such as "a circuit.json that gradpath find wrote". ``shown`` is the address of
    the file, if it is another.
    """
    name = shown or file
    try:
        return parse(json.loads(Path(file).read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise InputError(f"there is no file {name}. Give {origin}.") from None
    except InputError as problem:
        raise InputError(f"{name} cannot be used as {what}: {problem}") from None
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as problem:
        raise InputError(
            f"{name} cannot be read as {what} ({reason(problem)}). It may be cut off or edited by hand: make it again."
        ) from None


def write_rows(file: Path, head: Mapping[str, Any], name: str, rows: Sequence[Any]) -> None:
    """Write a JSON object that people can read, atomically: its head, then a list by this name with one row per line.

    A seal of the whole object is added.
    """
    whole = sealed({**head, name: rows})
    text = json.dumps({key: value for key, value in whole.items() if key != name}, indent=1).removesuffix("\n}")
    lines = ",\n  ".join(map(json.dumps, rows))
    write_atomically(file, f'{text},\n "{name}": [\n  {lines}\n ]\n}}\n')


@contextmanager
def write_together(folder: Path, *, instead_of: Sequence[str] = ()) -> Iterator[Path]:
    """Write several files that belong together, to the draft folder that is yielded: all of them change, or none.

    Its files move to ``folder`` at the end, unless there was an error; then a ``folder`` that did not exist before is
    removed, too. ``instead_of`` are names of files of earlier runs that are removed unless they are written again.
    """
    draft, is_new = folder / f".{secrets.token_hex(8)}{PART}", not folder.exists()
    try:
        draft.mkdir(parents=True)
    except OSError as problem:
        raise _not_writable(folder, problem) from None
    try:
        yield draft
        names = {file.name for file in draft.iterdir()}
        for name in names:
            if (folder / name).is_dir():
                raise _not_writable(folder / name, OSError("it is a folder"))
        try:
            _move_all(draft, folder)
        finally:
            _move_all(draft, folder)  # a signal may have interrupted it: all files are of one run
            for name in {*instead_of} - names if names else ():
                (folder / name).unlink(missing_ok=True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        if is_new:
            _remove_if_empty(folder)


def _move_all(draft: Path, folder: Path) -> None:
    for file in [*draft.iterdir()]:
        try:
            os.replace(file, folder / file.name)
        except OSError as problem:
            raise _not_writable(folder / file.name, problem) from None


@contextmanager
def lock_folder(folder: Path | None) -> Iterator[None]:
    """Within the block, refuse other runs that want to write to this folder, which is created if necessary.

    The lock belongs to the process (of several, to the first), so it ends with the process, however that ends.
    A folder that did not exist before and is still empty afterwards is removed. None locks nothing.
    """
    if folder is None:
        yield
        return
    from filelock import FileLock

    lock, is_new = FileLock(folder / _LOCK, blocking=False), not folder.exists()
    try:
        distributed.on_first_rank(lambda: _acquire(lock, folder))
        yield
    finally:
        if lock.is_locked:
            (folder / _LOCK).unlink(missing_ok=True)  # while it is ours
            lock.release()
        if is_new and distributed.rank() == 0:
            _remove_if_empty(folder)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # it is not empty
        folder.rmdir()


def _acquire(lock: BaseFileLock, folder: Path) -> None:
    """Lock the folder, and remove what killed runs left behind."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        for part in (*folder.glob(f".*{PART}"), *folder.glob(f"*/.*{PART}")):
            if part.is_dir():
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)
    except TimeoutError:
        raise InputError(
            f"{folder} is being written to by another run. Wait for it to end, or give another folder with --out."
        ) from None
    except OSError as problem:
        raise _not_writable(folder / _LOCK, problem) from None


def _not_writable(file: Path, problem: OSError) -> InputError:
    file = Path(*(part for part in file.parts if not part.endswith(PART)))  # a draft has the name of its file
    return InputError(
        f"{file} could not be written: {problem.strerror or problem}. Choose a folder that can be "
        "written to and has room."
    )
