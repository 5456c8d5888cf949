"""BLOOM and MPT: LayerNorm, an MLP without gate, and ALiBi: attention logits fall with the distance of the key.

BLOOM normalises its token embeddings. A norm works on one token by itself, so the table of embeddings is normalised
once, and ``input`` writes what the first layer reads.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone knows it by)

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
    eps = config.layer_norm_epsilon
    arch = read_architecture(
        source, norm="layer", eps=eps, activation="gelu_new", gated=False, n_kv_heads=config.num_attention_heads
    )
    layers = [read_layer(source, arch, index, BLOOM) for index in range(arch.n_layers)]
    model = read_model(source, arch, layers, BLOOM, rotary=())
    gain, shift = (source.need(f"transformer.word_embeddings_layernorm.{x}") for x in ("weight", "bias"))
    tokens = torch.ones(1, getattr(config, "seq_length", None) or BLOOM_TOKENS, device=model.device)
    bias = source.body.build_alibi_tensor(tokens, arch.n_heads, torch.float32)[:, 0]
    return replace(
        model, embedding=F.layer_norm(model.embedding, [arch.d_model], gain, shift, eps), attention_bias=bias
    )


@family("mpt", "MPT 7B, 30B", supports="ALiBi, clipped queries, keys and values")
def from_mpt(source: Checkpoint) -> Transformer:
    config, attention = source.config, source.config.attn_config
    for name, known in _MPT_ATTENTION.items():
        source.check(name, getattr(attention, name), known)
    source.ignore(
        "learned_pos_emb", "init_device", "init_config", "verbose"
    )  # not used with ALiBi, or in training only
    arch = read_architecture(
        source,
        norm="layer",
        eps=config.layer_norm_epsilon,
        activation="gelu",
        gated=False,
        n_kv_heads=config.num_attention_heads,
    )
    arch = replace(arch, qkv_clip=attention.clip_qkv or None)
    layers = [
        read_layer(source, arch, index, MPT, scale=attention.softmax_scale or None) for index in range(arch.n_layers)
    ]
    model = read_model(source, arch, layers, MPT, rotary=())
    bias = source.body.build_mpt_alibi_tensor(arch.n_heads, config.max_seq_len, device=model.device)
    return replace(model, attention_bias=bias[:, 0])
