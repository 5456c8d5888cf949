"""BLOOM, MPT and Falcon: LayerNorm, an MLP without gate, and most often ALiBi.

With ALiBi attention logits fall with the distance of the key.

BLOOM normalises its token embeddings. A norm works on one token by itself, so the table of embeddings is normalised
once, and ``input`` writes what the first layer reads.

Falcon has few keys for many queries. Falcon 7B has one key head and one norm for a parallel block; Falcon 40B and 180B
(``new_decoder_architecture``) have groups of heads and two norms; Falcon 11B has groups and one norm. Falcon-RW has
sequential blocks and ALiBi.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone knows it by)

from gradpath.model.architecture import Architecture
from gradpath.model.families import family
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.families.decoder import Names, read_architecture, read_layer, read_model
from gradpath.model.transformer import Transformer

BLOOM = Names(
    qkv=["self_attention.query_key_value"],
    attention_out="self_attention.dense",
    mlp_in=["mlp.dense_h_to_4h"],
    mlp_out="mlp.dense_4h_to_h",
    layers="h",
    embedding="word_embeddings",
    final_norm="ln_f",
    grouped=True,
)
MPT = Names(
    before_attention="norm_1",
    before_mlp="norm_2",
    qkv=["attn.Wqkv"],
    attention_out="attn.out_proj",
    mlp_in=["ffn.up_proj"],
    mlp_out="ffn.down_proj",
    layers="blocks",
    embedding="wte",
    final_norm="norm_f",
)
BLOOM_TOKENS = 2048  # the context of all published models; some configurations do not have it
# How BLOOM's training code computed the same.
_BLOOM_TRAINING = "attention_softmax_in_fp32 bias_dropout_fusion masked_softmax_fusion skip_bias_add offset_alibi"
# What transformers computes of MPT's options for attention; the original code has others.
_MPT_ATTENTION: dict[str, list[object]] = {
    "attn_type": ["multihead_attention"],
    "prefix_lm": [False],
    "qk_ln": [False],
    "attn_uses_sequence_id": [False],
    "alibi": [True],
    "alibi_bias_max": [8],
}


@family("bloom", "BLOOM, BLOOMZ", supports="ALiBi, normalised embeddings")
def from_bloom(source: Checkpoint) -> Transformer:
    config = source.config
    source.only("apply_residual_connection_post_layernorm", [False])
    source.ignore("slow_but_exact", *_BLOOM_TRAINING.split())
    arch = read_architecture(source, norm="layer", activation="gelu_new", gated=False)
    model = read_model(source, arch, names=BLOOM, rotary=())
    gain, shift = (source.need(f"transformer.word_embeddings_layernorm.{x}") for x in ("weight", "bias"))
    tokens = torch.ones(1, getattr(config, "seq_length", None) or BLOOM_TOKENS, device=model.device)
    bias = source.body.build_alibi_tensor(tokens, arch.n_heads, torch.float32)[:, 0]
    embedding = F.layer_norm(model.embedding, [arch.d_model], gain, shift, arch.norm_eps)
    return replace(model, embedding=embedding, attention_bias=bias)


@family("mpt", "MPT 7B, 30B", supports="ALiBi, clipped queries, keys and values")
def from_mpt(source: Checkpoint) -> Transformer:
    config, attention = source.config, source.config.attn_config
    for name, known in _MPT_ATTENTION.items():
        source.check(name, getattr(attention, name), known)
    # Not used with ALiBi, or in training only.
    source.ignore("learned_pos_emb", "init_device", "init_config", "verbose")
    arch = read_architecture(source, norm="layer", activation="gelu", gated=False)
    arch = replace(arch, qkv_clip=attention.clip_qkv or None)
    layers = [
        read_layer(source, arch, index, MPT, scale=attention.softmax_scale or None) for index in range(arch.n_layers)
    ]
    model = read_model(source, arch, layers, MPT, rotary=())
    bias = source.body.build_mpt_alibi_tensor(arch.n_heads, config.max_seq_len, device=model.device)
    return replace(model, attention_bias=bias[:, 0])


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
        activation=source.activation("activation"),
        gated=False,
        n_kv_heads=n_kv_heads,
        parallel=bool(config.parallel_attn),
    )
    names, rotary = _falcon_names(source), source.rotary()
    if not config.alibi:
        return read_model(source, arch, names=names, rotary=[rotary])
    return replace(read_model(source, arch, names=names, rotary=()), attention_bias=_falcon_bias(source, arch))


def _falcon_names(source: Checkpoint) -> Names:
    """A block has one norm, or one for attention and one for the MLP."""
    config = source.config
    if not config.parallel_attn:
        return BLOOM
    if config.new_decoder_architecture and config.num_ln_in_parallel_attn != 1:
        return replace(BLOOM, before_attention="ln_attn", before_mlp="ln_mlp")
    return replace(BLOOM, before_mlp="input_layernorm")


def _falcon_bias(source: Checkpoint, arch: Architecture) -> torch.Tensor:
    """ALiBi as transformers computes it: rounded to bfloat16, and scaled with the attention logits."""
    from transformers.models.falcon.modeling_falcon import build_alibi_tensor

    tokens = torch.ones(1, source.config.max_position_embeddings, device=source.body.word_embeddings.weight.device)
    bias: torch.Tensor = build_alibi_tensor(tokens, arch.n_heads, torch.float32)
    return bias[:, 0].mul(arch.d_head**-0.5)
