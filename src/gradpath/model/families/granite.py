"""Granite: Llama with four multipliers: of embeddings, attention logits, what layers add, and logits.

The last two are folded into the weights: that of what layers add into the output of attention and MLP, that of the
logits into the gain of the last norm.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from gradpath.model.architecture import Layer
from gradpath.model.families import family
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.families.decoder import read_architecture, read_layer, read_model
from gradpath.model.transformer import Transformer


@family("granite", "Granite 3", supports="multipliers of embeddings, attention, residuals and logits")
def from_granite(source: Checkpoint) -> Transformer:
    config, arch = source.config, read_architecture(source)
    layers = [
        scaled(read_layer(source, arch, index, scale=config.attention_multiplier), config.residual_multiplier)
        for index in range(arch.n_layers)
    ]
    model = read_model(source, arch, layers)
    return replace(
        model, embedding_scale=float(config.embedding_multiplier), final_gain=model.final_gain / config.logits_scaling
    )


def scaled(layer: Layer, multiplier: float) -> Layer:
    """The layer with what attention and MLP write multiplied."""

    def times(x: Tensor | None) -> Tensor | None:
        return None if x is None else x * multiplier

    return replace(
        layer,
        w_o=layer.w_o * multiplier,
        b_o=times(layer.b_o),
        w_out=layer.w_out * multiplier,
        b_out=times(layer.b_out),
    )
