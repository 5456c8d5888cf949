"""GPT-2, GPT-Neo, GPT-J, GPT-NeoX (Pythia), OPT, Galactica, BLOOM, MPT and Falcon: LayerNorm, and an MLP without gate.

OPT-350m is refused. It normalises the residual stream itself, after attention and MLP, so that the input of a node is
not a sum of the outputs of earlier nodes, and the model has no edges of the kind that gradpath scores.

BLOOM, MPT and some Falcons have ALiBi: attention logits fall with the distance of the key. BLOOM normalises its token
embeddings. A norm acts on each token separately, so the table of embeddings is normalised once, and ``input`` writes
what the first layer reads.

Falcon 7B has one key head and one norm for a parallel block; Falcon 40B and 180B (``new_decoder_architecture``) have
groups of heads and two norms; Falcon 11B has groups and one norm. Falcon-RW has sequential blocks and ALiBi.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone knows it by)
from torch import Tensor

from gradpath.model.architecture import Architecture, Rotary
from gradpath.model.families import family
from gradpath.model.families.checkpoint import Checkpoint, Names, read_architecture, read_model
from gradpath.model.transformer import Transformer

GPT2 = Names(
    before_attention="ln_1",
    before_mlp="ln_2",
    qkv=["attn.c_attn"],
    attention_out="attn.c_proj",
    mlp_in=["mlp.c_fc"],
    mlp_out="mlp.c_proj",
    layers="h",
    embedding="wte",
    final_norm="ln_f",
)
GPT_NEO = replace(GPT2, qkv=[f"attn.attention.{x}_proj" for x in "qkv"], attention_out="attn.attention.out_proj")
GPTJ = replace(
    GPT2,
    before_mlp="ln_1",  # the shared norm is folded into both projections, because each is a separate target
    qkv=[f"attn.{x}_proj" for x in "qkv"],
    attention_out="attn.out_proj",
    mlp_in=["mlp.fc_in"],
    mlp_out="mlp.fc_out",
)
GPT_NEOX = Names(
    qkv=["attention.query_key_value"],
    attention_out="attention.dense",
    mlp_in=["mlp.dense_h_to_4h"],
    mlp_out="mlp.dense_4h_to_h",
    embedding="embed_in",
    final_norm="final_layer_norm",
    grouped=True,
)
OPT = Names(
    before_attention="self_attn_layer_norm",
    before_mlp="final_layer_norm",
    attention_out="self_attn.out_proj",
    mlp_in=["fc1"],
    mlp_out="fc2",
    layers="decoder.layers",
    embedding="decoder.embed_tokens",
    final_norm="decoder.final_layer_norm",
)
FIRST_POSITION = 2  # of OPT: the rows before it are never used


# Published results for GPT-2 start prompts with <|endoftext|>, which its tokenizer does not add.
@family("gpt2", "GPT-2 small, medium, large, XL, DistilGPT-2", supports="learned positions", bos=True)
def from_gpt2(source: Checkpoint) -> Transformer:
    source.only("add_cross_attention", [False])
    source.transpose("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    config, arch = source.config, read_architecture(source, norm="layer", gated=False)
    scale = arch.d_head**-0.5 if config.scale_attn_weights else 1.0
    scales = [
        scale / (index + 1) if config.scale_attn_by_inverse_layer_idx else scale for index in range(arch.n_layers)
    ]
    model = read_model(source, arch, GPT2, scale=scales, rotary=())
    return replace(model, positions=source.need("transformer.wpe.weight"))


@family("gpt_neo", "GPT-Neo, TinyStories", supports="learned positions, local attention, unscaled attention")
def from_gpt_neo(source: Checkpoint) -> Transformer:
    config = source.config
    source.ignore("attention_types")  # transformers has computed attention_layers from it
    kinds = [source.check("attention_layers", kind, ["global", "local"]) for kind in config.attention_layers]
    windows = [config.window_size if kind == "local" else None for kind in kinds]
    arch = read_architecture(source, norm="layer", gated=False)
    model = read_model(source, arch, GPT_NEO, windows=windows, scale=1.0, rotary=())
    return replace(model, positions=source.need("transformer.wpe.weight"))


@family("gptj", "GPT-J 6B", supports="parallel attention and MLP, partial interleaved rotary, biased logits")
def from_gptj(source: Checkpoint) -> Transformer:
    config = source.config
    arch = read_architecture(source, norm="layer", gated=False, parallel=True)
    arch = replace(arch, max_tokens=config.n_positions)  # transformers has no more angles
    width = int(source.check("rotary_dim", config.rotary_dim, range(2, arch.d_head + 1, 2)))
    rotary = Rotary(10000.0 ** (-torch.arange(0, width, 2, device=source.body.wte.weight.device) / width))
    return read_model(source, arch, GPTJ, rotary=[rotary], interleaved=True)


@family("gpt_neox", "Pythia, GPT-NeoX-20B", supports="parallel attention and MLP or not, partial rotary")
def from_gpt_neox(source: Checkpoint) -> Transformer:
    parallel = bool(source.config.use_parallel_residual)
    arch = read_architecture(source, norm="layer", gated=False, parallel=parallel)
    return read_model(source, arch, GPT_NEOX)


@family("opt", "OPT 125m, 1.3b and larger, Galactica", supports="learned positions")
def from_opt(source: Checkpoint) -> Transformer:
    config = source.config
    source.only("do_layer_norm_before", [True])
    source.only("_remove_final_layer_norm", [False])
    source.check("word_embed_proj_dim", config.word_embed_proj_dim, [config.hidden_size])
    source.ignore("ffn_dim", "enable_bias", "layerdrop", "init_std")  # seen in the weights, or used in training only
    names = OPT
    if not config.layer_norm_elementwise_affine:
        names = replace(OPT, before_attention=None, before_mlp=None, final_norm=None)
    arch = read_architecture(source, norm="layer", eps=1e-5, gated=False)  # its norms have the default of their class
    positions = source.need("model.decoder.embed_positions.weight")[FIRST_POSITION:]
    return replace(read_model(source, arch, names, rotary=()), positions=positions)


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
# How BLOOM's training code computed the same function.
_BLOOM_TRAINING = "attention_softmax_in_fp32 bias_dropout_fusion masked_softmax_fusion skip_bias_add offset_alibi"
# The values of MPT's attention options that transformers implements; the original code has more.
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
    model = read_model(source, arch, BLOOM, rotary=())
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
    model = read_model(source, arch, MPT, scale=attention.softmax_scale or None, rotary=())
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
        return read_model(source, arch, names, rotary=[rotary])
    return replace(read_model(source, arch, names, rotary=()), attention_bias=_falcon_bias(source, arch))


def _falcon_names(source: Checkpoint) -> Names:
    """The names of a block's weights: it has one norm, or one for attention and one for the MLP."""
    config = source.config
    if not config.parallel_attn:
        return BLOOM
    if config.new_decoder_architecture and config.num_ln_in_parallel_attn != 1:
        return replace(BLOOM, before_attention="ln_attn", before_mlp="ln_mlp")
    return replace(BLOOM, before_mlp="input_layernorm")


def _falcon_bias(source: Checkpoint, arch: Architecture) -> Tensor:
    """ALiBi as transformers computes it: rounded to bfloat16, and scaled with the attention logits."""
    from transformers.models.falcon.modeling_falcon import build_alibi_tensor

    tokens = torch.ones(1, source.config.max_position_embeddings, device=source.body.word_embeddings.weight.device)
    bias: Tensor = build_alibi_tensor(tokens, arch.n_heads, torch.float32)
    return bias[:, 0].mul(arch.d_head**-0.5)
