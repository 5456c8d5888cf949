"""Llama, the pattern of its kin; Mistral adds a sliding window."""

from __future__ import annotations

from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.families.kin import kin_architecture, kin_layer, kin_model
from gradpath.model.families.registry import family
from gradpath.model.transformer import Transformer


@family("llama", "SmolLM2, Llama 2 and 3, TinyLlama and others of the kind", supports="rope scaling, biases")
@family("mistral", "Mistral 7B", supports="sliding windows")
def from_llama(source: Checkpoint) -> Transformer:
    arch = kin_architecture(source)
    window = source.config.sliding_window if source.family == "mistral" else None
    layers = tuple(kin_layer(source, arch, index, window=window) for index in range(arch.n_layers))
    return kin_model(source, arch, layers, rotary=(source.rotary(),))
