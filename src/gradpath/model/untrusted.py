"""What a local checkpoint claims of itself, held against its files before anything is made of it.

A configuration of a hundred bytes can ask for a model of a terabyte: ``transformers`` would make it, with
random numbers where the file has none, and only then say that weights are missing. So the model is first made
without memory (on the meta device), and its numbers are counted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

MOST_LAYERS = 1000  # of any model; each is an object even without memory
MOST_TOKENS = 2_000_000
# The smallest types of GGUF have two bits a number, and tied weights are stored once.
MOST_NUMBERS_PER_BYTE = 16
_WEIGHTS = (".safetensors", ".bin")
_INDEX = "model.safetensors.index.json"


def check_claims(folder: Path, file: str | None, common: dict[str, Any]) -> None:
    """A ``ValueError`` for a folder, or the GGUF file in it, that cannot hold the model that it describes."""
    from transformers import AutoConfig, AutoModelForCausalLM

    _check_names(folder)
    config = AutoConfig.from_pretrained(folder, **common)
    shape = config.get_text_config()
    for what, size, most in (
        ("layers", shape.num_hidden_layers, MOST_LAYERS),
        ("tokens", shape.vocab_size, MOST_TOKENS),
    ):
        if not 0 < size <= most:
            raise ValueError(f"it has {size!r} {what} by its configuration, and a model has 1 to {most:,}")
    trust = common["trust_remote_code"]
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config, trust_remote_code=trust)  # type: ignore[no-untyped-call]
    claimed = sum(parameter.numel() for parameter in empty.parameters())
    if file is not None:  # what is made of a GGUF file gets its vocabulary from the tensors, not from here
        claimed -= sum(x.weight.numel() for x in (empty.get_input_embeddings(), empty.get_output_embeddings()))
    held = sum(found.stat().st_size for found in _weight_files(folder, file))
    if claimed > MOST_NUMBERS_PER_BYTE * held:
        raise ValueError(f"it describes a model of {claimed:,} numbers, and its files have only {held:,} bytes")


def _weight_files(folder: Path, file: str | None) -> list[Path]:
    if file is not None:
        return [folder / file]
    return [found for found in folder.iterdir() if found.suffix in _WEIGHTS]


def _check_names(folder: Path) -> None:
    """An index names the files that hold the weights: they have to lie in the folder itself."""
    index = folder / _INDEX
    if not index.is_file():
        return
    names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    for name in names:
        if Path(name).name != name:
            raise ValueError(f"{_INDEX} names the file {name!r}, which is not in the folder")
