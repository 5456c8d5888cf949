"""Falcon: LayerNorm, an MLP without gate, and few keys for many queries.

Falcon 7B has one key head and one norm for a parallel block; Falcon 40B and 180B (``new_decoder_architecture``) have
groups of heads and two norms; Falcon 11B has groups and one norm. Falcon-RW has sequential blocks and ALiBi.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from gradpath.model.architecture import Architecture
from gradpath.model.families import family
from gradpath.model.families.alibi import BLOOM
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.families.decoder import Names, read_architecture, read_layer, read_model
from gradpath.model.transformer import Transformer


@family("falcon", "Falcon 7B, 11B, 40B, 180B, Falcon-RW", supports="parallel attention and MLP or not, rotary or ALiBi")
def from_falcon(source: Checkpoint) -> Transformer:
    config = source.config
    source.ignore("bias", "ffn_hidden_size")  # seen in the weights
    n_kv_heads = config.num_kv_heads
    if config.new_decoder_architecture:
        source.only("parallel_attn", [True])
    elif config.multi_query:
        n_kv_heads = 1  # whatever the setting
    else:
        source.check("num_kv_heads", n_kv_heads, [config.num_attention_heads])
    arch = read_architecture(
        source,
        norm="layer",
        eps=config.layer_norm_epsilon,
        activation=source.activation("activation"),
        gated=False,
        n_kv_heads=n_kv_heads,
        parallel=bool(config.parallel_attn),
    )
    names, rotary = _names(source), source.rotary()
    layers = [read_layer(source, arch, index, names) for index in range(arch.n_layers)]
    if not config.alibi:
        return read_model(source, arch, layers, names, [rotary])
    return replace(read_model(source, arch, layers, names, rotary=()), attention_bias=_bias(source, arch))


def _names(source: Checkpoint) -> Names:
    """A block has one norm, or one for attention and one for the MLP."""
    config = source.config
    if not config.parallel_attn:
        return BLOOM
    if config.new_decoder_architecture and config.num_ln_in_parallel_attn != 1:
        return replace(BLOOM, before_attention="ln_attn", before_mlp="ln_mlp")
    return replace(BLOOM, before_mlp="input_layernorm")


def _bias(source: Checkpoint, arch: Architecture) -> torch.Tensor:
    """ALiBi as transformers computes it: rounded to bfloat16, and scaled with the attention logits."""
    from transformers.models.falcon.modeling_falcon import build_alibi_tensor

    tokens = torch.ones(1, source.config.max_position_embeddings, device=source.body.word_embeddings.weight.device)
    bias: torch.Tensor = build_alibi_tensor(tokens, arch.n_heads, torch.float32)
    return bias[:, 0].mul(arch.d_head**-0.5)
