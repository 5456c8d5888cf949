"""StableLM: Llama with LayerNorm and partial rotary embeddings.

Some have attention and MLP in parallel after one shared norm, and a norm for the queries and keys of every head.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gradpath.model.architecture import Architecture, Layer
from gradpath.model.families import family
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.families.decoder import LLAMA, read_architecture, read_layer, read_model
from gradpath.model.transformer import Transformer


@family(
    "stablelm", "StableLM 2, StableLM 3B", supports="parallel attention and MLP or not, partial rotary, norms of heads"
)
def from_stablelm(source: Checkpoint) -> Transformer:
    config = source.config
    source.ignore("use_qkv_bias")  # seen in the weights
    parallel = bool(config.use_parallel_residual)
    names = replace(LLAMA, before_mlp="input_layernorm") if parallel else LLAMA
    arch = read_architecture(source, norm="layer", eps=config.layer_norm_eps, parallel=parallel)
    arch = replace(arch, qk_norm="head" if config.qk_layernorm else None)
    layers = [read_layer(source, arch, index, names) for index in range(arch.n_layers)]
    if config.qk_layernorm:
        layers = [_with_norms_of_heads(source, arch, index, layer) for index, layer in enumerate(layers)]
    return read_model(source, arch, layers, names)


def _with_norms_of_heads(source: Checkpoint, arch: Architecture, index: int, layer: Layer) -> Layer:
    """The layer with a gain for the queries and keys of every head; each is stored by itself."""

    def gains(kind: str, n_heads: int) -> Tensor:
        prefix = f"model.layers.{index}.self_attn.{kind}_layernorm.norms"
        own = torch.stack([source.need(f"{prefix}.{head}.weight") for head in range(n_heads)])
        return own.repeat_interleave(arch.n_heads // n_heads, 0)

    return replace(layer, q_gain=gains("q", arch.n_heads), k_gain=gains("k", arch.n_kv_heads))
