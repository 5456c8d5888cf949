"""What ``find`` computed without ``--out``, kept in the user's cache so that ``--out`` can still write it.

An entry is a folder with the files that ``--out`` writes and ``kept.json``: the key, the summary that was printed and a
digest of every file. The key has everything that determines the result: the weights, the tokens, labels and metric of
all examples, the options, and the code. A method, selection or metric of the user's own has no such record, so these
runs are not kept. The latest ``MOST`` entries stay.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

import gradpath
from gradpath.attribution.methods import find_method
from gradpath.errors import GradpathError, InputError, reason, warn
from gradpath.model.cache import cache_folder
from gradpath.model.transformer import Transformer
from gradpath.pipeline.found import Found, earlier_files
from gradpath.pipeline.request import FindRequest
from gradpath.registry import loaded_plugins, owner_of
from gradpath.runtime import distributed
from gradpath.runtime.files import digest_of, write_atomically, write_together
from gradpath.selection import find_selection
from gradpath.tasks.task import Task, task_digest

MOST = 20
_RECORD = "kept.json"


@dataclass(frozen=True)
class Entry:
    """The place in the cache for one run of ``find``."""

    key: dict[str, Any]

    @classmethod
    def of(cls, model: Transformer, request: FindRequest, tasks: Sequence[Task]) -> Entry | None:
        """The entry of a run, or None if something in it is the user's own code."""
        functions = [find_method(request.method).build, find_selection(request.selection)[0].order, tasks[0].metric]
        if not all(owner_of(function).startswith("gradpath.") for function in functions):
            return None
        options = {field.name: repr(getattr(request, field.name)) for field in fields(request) if field.name != "data"}
        return cls(
            {
                "code": _code_digest(),
                "torch": torch.__version__,
                "plugins": loaded_plugins(),
                "processes": distributed.world(),
                "model": model.name,
                "weights": model.digest,
                "computed": f"{model.dtype} on {model.device}",
                "tokens": [task_digest(task, model.tokenizer) for task in tasks],
                "data": [digest_of(dict(task.about)) for task in tasks],
                "options": options,
            }
        )

    @property
    def folder(self) -> Path:
        return cache_folder() / "find" / digest_of(self.key)

    def keep(self, found: Found, summary: dict[str, Any], command: str) -> bool:
        """Keep a run; whether that was possible."""
        try:
            found.save(self.folder, command=command, seconds=summary["seconds"])
            content = {"key": self.key, "summary": summary, "files": _digests(self.folder)}
            write_atomically(self.folder / _RECORD, json.dumps({**content, "digest": digest_of(content)}, indent=1))
            _remove_old(self.folder.parent)
        except (GradpathError, OSError) as problem:
            warn(f"the result could not be kept for later ({reason(problem)}): run the command again with --out.")
            return False
        return True

    def write_to(self, out: Path) -> dict[str, Any] | None:
        """Write the files of a kept run to a folder; its summary, or None if there is none that is whole."""
        try:
            content = json.loads((self.folder / _RECORD).read_text(encoding="utf-8"))
            digest, summary, files = content.pop("digest"), content["summary"], content["files"]
            if digest != digest_of(content) or content["key"] != self.key or files != _digests(self.folder):
                raise ValueError("its files are not as they were written")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
            warn(f"{self.folder} is damaged ({reason(problem)}), so the circuit is computed again.")
            return None
        try:
            with write_together(out, instead_of=earlier_files(out)) as draft:
                for name in files:
                    shutil.copyfile(self.folder / name, draft / name)
        except OSError as problem:
            raise InputError(f"{out} could not be written: {problem.strerror or problem}.") from None
        result: dict[str, Any] = summary
        return result


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(file for file in folder.iterdir() if file.name != _RECORD and file.is_file())
    return {file.name: sha256(file.read_bytes()).hexdigest() for file in files}


def _code_digest() -> str:
    """A digest of this package's code, so that nothing is taken from a run of another version of it."""
    source = Path(gradpath.__file__).parent
    files = sorted(file for file in source.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    return digest_of([str(file.relative_to(source)) for file in files], *(file.read_bytes() for file in files))


def _remove_old(folder: Path) -> None:
    entries = sorted(folder.iterdir(), key=lambda entry: entry.stat().st_mtime, reverse=True)
    for entry in entries[MOST:]:
        shutil.rmtree(entry, ignore_errors=True)
