"""Checks of a local checkpoint before a model is built from it.

A configuration of a hundred bytes can describe a model of a terabyte. ``transformers`` would allocate it, fill in
random numbers where the file has none, and only then report missing weights. So the model is first built without
memory, on the meta device, and its size is compared with that of the files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

MAX_LAYERS = 1000  # each layer is an object, even without memory
MAX_TOKENS = 2_000_000
# The smallest types of GGUF have two bits per number, and tied weights are stored once.
MAX_NUMBERS_PER_BYTE = 16
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


def check_claims(folder: Path, gguf_file: str | None, trust_remote_code: bool) -> None:
    """Raise a ``ValueError`` if the folder, or the GGUF file in it, cannot contain the model that it describes."""
    from transformers import AutoConfig

    _check_index(folder)
    where = {} if gguf_file is None else {"gguf_file": gguf_file}
    config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code, **where)
    text = config.get_text_config()
    for what, size, limit in (("layers", text.num_hidden_layers, MAX_LAYERS), ("tokens", text.vocab_size, MAX_TOKENS)):
        if not 0 < size <= limit:
            raise ValueError(f"its configuration has {size!r} {what}, and a model has 1 to {limit:,}")
    with torch.device("meta"):
        empty = auto_class(config.model_type).from_config(config, trust_remote_code=trust_remote_code)
    claimed = sum(parameter.numel() for parameter in empty.parameters())
    if gguf_file is not None:  # the vocabulary of such a model comes from the tensors, not from the configuration
        claimed -= sum(x.weight.numel() for x in (empty.get_input_embeddings(), empty.get_output_embeddings()))
        files = [folder / gguf_file]
    else:
        files = [file for file in folder.iterdir() if file.suffix in (".safetensors", ".bin")]
    size = sum(file.stat().st_size for file in files)
    if claimed > MAX_NUMBERS_PER_BYTE * size:
        raise ValueError(f"it describes a model of {claimed:,} numbers, and its files have only {size:,} bytes")


def _check_index(folder: Path) -> None:
    """The files that an index names must be in the folder itself."""
    for index in (folder / name for name in _INDEXES):
        for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values() if index.is_file() else ():
            if Path(name).name != name:
                raise ValueError(f"{index.name} names the file {name!r}, which is not in the folder")


def auto_class(family: str) -> Any:
    """The class of ``transformers`` that loads models of a family. Some that read images need another one."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto import modeling_auto as auto

    only_with_images = auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.keys() - auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    # The other class would read the text model of these alone, and find too many weights in the file.
    only_with_images = {*only_with_images, "llama4"}
    return AutoModelForImageTextToText if family in only_with_images else AutoModelForCausalLM
