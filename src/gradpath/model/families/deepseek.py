"""DeepSeek V2 and V3, and models with their latent attention; most have a mixture of experts with shared ones, too.

``model.latent`` has the equations of the attention, ``model.experts`` those of the choice of experts. V2 chooses groups
by their best expert, with probabilities from a softmax. V3 chooses them by their two best, with sigmoids and a
correction.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gradpath.model.architecture import Architecture, Layer
from gradpath.model.families import family
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.families.decoder import Names, halves, read_architecture, read_model
from gradpath.model.families.llama import scaled
from gradpath.model.families.mixture import in_groups, mixture_layer, with_corrected_sigmoids
from gradpath.model.latent import Latent
from gradpath.model.transformer import Transformer

DIRECT = Names(qkv=["self_attn.q_proj", "self_attn.kv_a_proj_with_mqa"])
LATENT = Names(qkv=["self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"])
_EPS = 1e-6  # in the norms of latents, whatever the configuration says of the others
_SHARED = "latent attention, mixture of experts, shared experts, groups of experts"


@family("deepseek_v2", "DeepSeek-V2, V2-Lite, Coder-V2", supports=_SHARED)
def from_deepseek_v2(source: Checkpoint) -> Transformer:
    source.only("norm_topk_prob", [None, False])  # transformers does not implement it
    source.only("scoring_func", [None, "softmax"])
    source.ignore("aux_loss_alpha", "seq_aux", "ep_size", "moe_layer_freq")
    method = source.only("topk_method", ["greedy", "group_limited_greedy"])
    arch, layers = _architecture(source), []
    for index in range(arch.n_layers):
        layer = _layer(source, arch, index, interleaved=True, sum_to_one=False)
        if layer.experts is not None:
            experts = replace(layer.experts, scale=source.config.routed_scaling_factor, float32_router=True)
            experts = in_groups(source, experts, group_best=1) if method == "group_limited_greedy" else experts
            layer = replace(layer, experts=experts)
        layers.append(layer)
    return read_model(source, arch, layers)


@family("youtu", "Youtu-LLM 2B", supports="latent attention")
@family("glm4_moe_lite", "GLM-4.7-Flash", supports="latent attention, mixture of experts, a shared expert")
@family("deepseek_v3", "DeepSeek-V3, R1, Moonlight", supports=_SHARED)
def from_deepseek_v3(source: Checkpoint) -> Transformer:
    source.ignore("num_mtp_layers", "num_nextn_predict_layers")  # they predict tokens further on
    source.only("scoring_func", [None, "sigmoid"])
    source.only("topk_method", [None, "noaux_tc"])
    source.ignore("aux_loss_alpha", "seq_aux", "ep_size", "moe_layer_freq", "mlp_layer_types")  # weights say the last
    source.ignore("embedding_initializer_range")
    arch, interleaved = _architecture(source), bool(source.config.rope_interleave)
    sum_to_one = bool(getattr(source.config, "norm_topk_prob", False))  # without experts there is none
    layers = [
        _layer(source, arch, index, interleaved=interleaved, sum_to_one=sum_to_one) for index in range(arch.n_layers)
    ]
    layers = [with_corrected_sigmoids(source, index, layer) for index, layer in enumerate(layers)]
    return read_model(source, arch, layers)


@family("minicpm3", "MiniCPM3 4B", supports="latent attention, multipliers of embeddings, residuals and logits")
def from_minicpm3(source: Checkpoint) -> Transformer:
    config, arch = source.config, _architecture(source)
    depth = config.scale_depth / arch.n_layers**0.5
    layers = [_layer(source, arch, index, interleaved=False, sum_to_one=False) for index in range(arch.n_layers)]
    layers = [scaled(layer, depth) for layer in layers]
    model = read_model(source, arch, layers)
    gain = model.final_gain * config.dim_model_base / arch.d_model
    return replace(model, embedding_scale=float(config.scale_emb), final_gain=gain)


def _architecture(source: Checkpoint) -> Architecture:
    """A head is as wide as its values. All heads share one block of weights to the latent of keys, and of values."""
    source.ignore("head_dim", "qk_head_dim", "num_key_value_heads")  # of no meaning here, or sums of others
    config = source.config
    if config.q_lora_rank is None:
        source.only("attention_bias", [False])  # then only some of the projections would have one
    d_key = config.qk_nope_head_dim + config.qk_rope_head_dim
    d_latent = max(config.q_lora_rank or d_key, config.kv_lora_rank + config.qk_rope_head_dim)
    arch = replace(read_architecture(source, n_kv_heads=1), d_head=config.v_head_dim)
    return replace(arch, d_latent=d_latent, latent_queries=config.q_lora_rank is not None)


def _layer(source: Checkpoint, arch: Architecture, index: int, *, interleaved: bool, sum_to_one: bool) -> Layer:
    names = LATENT if arch.latent_queries else DIRECT
    layer = mixture_layer(source, arch, index, names, sum_to_one=sum_to_one, shared="shared_experts")
    config, prefix = source.config, f"{source.stem}.layers.{index}.self_attn"
    rank, n_nope, n_rotated = config.kv_lora_rank, config.qk_nope_head_dim, config.qk_rope_head_dim
    order = halves(n_rotated, n_rotated if interleaved else 0).to(layer.w_qkv.device)

    def up(name: str, norm: str) -> Tensor:  # (head, out, rank)
        weight = source.need(f"{prefix}.{name}.weight") * source.need(f"{prefix}.{norm}.weight")
        return weight.view(arch.n_heads, -1, weight.shape[1])

    def rotated_first(x: Tensor) -> Tensor:  # (head, d_key, ...)
        return torch.cat([x[:, n_nope:][:, order], x[:, :n_nope]], 1)

    def blocks(x: Tensor) -> Tensor:
        """The rows of the projection as blocks of one width: queries of each head or their latent, keys', values'."""
        queries, latent, rotated = torch.split(x, [len(x) - rank - n_rotated, rank, n_rotated])
        q = queries[None] if arch.latent_queries else rotated_first(queries.view(arch.n_heads, -1, *x.shape[1:]))
        parts = [*q, torch.cat([latent, rotated[order]]), latent]
        return torch.cat([torch.cat([x, x.new_zeros(arch.d_qkv - len(x), *x.shape[1:])]) for x in parts])

    k_up, v_up = torch.split(up("kv_b_proj", "kv_a_layernorm"), [n_nope, arch.d_head], 1)
    q_up = rotated_first(up("q_b_proj", "q_a_layernorm")) if arch.latent_queries else None
    return replace(
        layer,
        w_qkv=blocks(layer.w_qkv),
        b_qkv=None if layer.b_qkv is None else blocks(layer.b_qkv),
        scale=source.body.layers[index].self_attn.scaling,  # YaRN may have changed it
        latent=Latent(k_up.contiguous(), v_up.contiguous(), q_up, n_rotated, _EPS),
    )
