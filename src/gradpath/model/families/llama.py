"""Llama, Qwen 2 and Qwen 3: RMSNorm, rotary embeddings, grouped heads and a gated MLP.

Qwen 2 has biases on queries, keys and values; Qwen 3 normalises queries and keys.
"""

from __future__ import annotations

from dataclasses import replace

from gradpath.model.families import family
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.families.decoder import LLAMA, Names, read_architecture, read_layer, read_model
from gradpath.model.transformer import Transformer

QWEN3 = Names(q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")


@family("llama", "SmolLM2, Llama 2 and 3, TinyLlama and similar models", supports="rope scaling, biases")
def from_llama(source: Checkpoint) -> Transformer:
    arch = read_architecture(source)
    return read_model(source, arch, [read_layer(source, arch, index) for index in range(arch.n_layers)])


@family("qwen2", "Qwen 2 and 2.5", supports="biases, sliding windows, rope scaling")
def from_qwen2(source: Checkpoint) -> Transformer:
    return _with_windows(source, LLAMA)


@family("qwen3", "Qwen 3", supports="norms of queries and keys, sliding windows, rope scaling")
def from_qwen3(source: Checkpoint) -> Transformer:
    return _with_windows(source, QWEN3)


def _with_windows(source: Checkpoint, names: Names) -> Transformer:
    arch = replace(read_architecture(source), qk_norm=None if names.q_norm is None else "head")
    layers = [read_layer(source, arch, index, names, window=window) for index, window in enumerate(source.windows())]
    return read_model(source, arch, layers)
