"""Mistral 7B and its successors: Llama with a sliding window in all layers or in some.

Ministral 3 scales its queries by position, but only from a length on: shorter prompts are computed exactly without,
and longer ones are refused.
"""

from __future__ import annotations

from dataclasses import replace

from gradpath.model.families import family
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.families.decoder import read_architecture, read_layer, read_model
from gradpath.model.transformer import Transformer


@family("mistral", "Mistral 7B, Mistral Nemo and Small", supports="sliding windows")
def from_mistral(source: Checkpoint) -> Transformer:
    arch = read_architecture(source)
    return _model(source, [source.config.sliding_window] * arch.n_layers)


@family("ministral", "Ministral 8B", supports="sliding windows in some layers")
def from_ministral(source: Checkpoint) -> Transformer:
    return _model(source, source.windows())


@family("ministral3", "the text model of Ministral 3", supports="YaRN, prompts up to the length before query scaling")
def from_ministral3(source: Checkpoint) -> Transformer:
    rope = source.config.rope_parameters
    limit = rope["original_max_position_embeddings"] if rope.get("llama_4_scaling_beta") else None
    model = from_mistral(source)
    return replace(model, arch=replace(model.arch, max_tokens=limit))


@family("mistral3", "Mistral Small 3.1 and later, Ministral 3, text only", supports="as its text model")
def from_mistral3(source: Checkpoint) -> Transformer:
    source.enter(
        "language_model",
        config="text_config",
        skip_config=["vision_config", "multimodal_projector_bias", "projector_hidden_act", "spatial_merge_size"],
        skip_modules=["vision_tower", "multi_modal_projector"],
    )
    kind = source.only("model_type", ["mistral", "ministral3"])
    return from_mistral(source) if kind == "mistral" else from_ministral3(source)


def _model(source: Checkpoint, windows: list[int | None]) -> Transformer:
    arch = read_architecture(source)
    layers = [read_layer(source, arch, index, window=window) for index, window in enumerate(windows)]
    return read_model(source, arch, layers)
