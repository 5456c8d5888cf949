"""StarCoder2: LayerNorm, biases, an MLP without gate, rotary embeddings and a sliding window."""

from __future__ import annotations

from gradpath.model.families import family
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.families.decoder import Names, read_architecture, read_layer, read_model
from gradpath.model.transformer import Transformer

STARCODER2 = Names(mlp_in=["mlp.c_fc"], mlp_out="mlp.c_proj")


@family("starcoder2", "StarCoder2 3B, 7B, 15B", supports="sliding windows, biases")
def from_starcoder2(source: Checkpoint) -> Transformer:
    source.ignore("use_bias")  # seen in the weights
    arch = read_architecture(source, norm="layer", eps=source.config.norm_epsilon, gated=False)
    window = source.config.sliding_window
    layers = [read_layer(source, arch, index, STARCODER2, window=window) for index in range(arch.n_layers)]
    return read_model(source, arch, layers, STARCODER2)
