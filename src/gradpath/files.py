"""Writing files so that a reader sees the whole of one or nothing of it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from gradpath.errors import InputError


def write_atomically(file: Path, content: str | bytes) -> None:
    """Write beside the file and rename: a crash leaves the old file, or none, never half of one."""
    data = content.encode() if isinstance(content, str) else content
    temporary = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}.", delete=False) as handle:
            temporary = Path(handle.name)
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(file)
    except OSError as problem:
        raise InputError(
            f"{file} could not be written: {problem.strerror or problem}. Choose a folder that can be "
            "written to and has room."
        ) from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
