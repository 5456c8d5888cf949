"""Qwen: Llama with biases on queries, keys and values (2, 2.5), or with norms of queries and keys (3)."""

from __future__ import annotations

from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.families.kin import kin_architecture, kin_layer, kin_model
from gradpath.model.families.registry import family
from gradpath.model.transformer import Transformer


@family("qwen2", "Qwen 2 and 2.5", supports="biases, sliding windows, rope scaling")
@family("qwen3", "Qwen 3", supports="norms of queries and keys, sliding windows, rope scaling")
def from_qwen(source: Checkpoint) -> Transformer:
    arch = kin_architecture(source, qk_norm="head" if source.family == "qwen3" else None)
    windows = source.windows()
    layers = tuple(kin_layer(source, arch, index, window=window) for index, window in enumerate(windows))
    return kin_model(source, arch, layers, rotary=(source.rotary(),))
