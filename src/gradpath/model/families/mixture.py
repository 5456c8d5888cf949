"""Mixtures of experts in Llama-like layers: Mixtral, OLMoE, Qwen 2 and 3 MoE, GLM-4.5, gpt-oss, Llama 4 and DeepSeek.

``model.architecture`` has the equations of ``Experts``, and of the latent attention (``Latent``) of DeepSeek V2 and V3,
MiniCPM3 and Youtu-LLM. The last two have no experts. The families differ in the router's probabilities and weights, and
in a shared expert that every token uses. A layer without router has an ordinary MLP.

A sink of gpt-oss is a learned logit of a head. It takes part in the softmax next to the logits of the keys, and has no
value, so that a head can attend to less than everything. Gates are clamped from above and values from both sides, and
one is added to the values. The experts of published checkpoints are packed in MXFP4 and are unpacked when they are
loaded; a model in memory whose experts are still packed is refused.

Llama 4 normalises queries and keys after their rotation. A rotation does not change lengths, so the engine may do so
before. Two things depend on the length of a prompt: layers with rotary embeddings see chunks, and the others scale
their queries by position. Both begin thousands of tokens into a prompt. Shorter prompts are computed exactly, and
longer ones are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from gradpath.errors import InputError
from gradpath.model.architecture import Architecture, Experts, Latent, Layer
from gradpath.model.families import family
from gradpath.model.families.checkpoint import (
    LLAMA,
    Checkpoint,
    Mixture,
    Names,
    halves,
    read_architecture,
    read_model,
    with_layers,
)
from gradpath.model.families.llama import QK_NORM, scaled
from gradpath.model.transformer import Transformer


@family("mixtral", "Mixtral 8x7B and 8x22B", supports="mixture of experts, sliding windows")
def from_mixtral(source: Checkpoint) -> Transformer:
    return _mixture(source, read_architecture(source), windows=source.config.sliding_window)


@family("olmoe", "OLMoE 1B-7B", supports="mixture of experts, norms over all queries and keys of a layer")
def from_olmoe(source: Checkpoint) -> Transformer:
    source.only("clip_qkv", [None])  # it would clip queries and keys behind their norms
    arch = replace(read_architecture(source), qk_norm="layer")
    return _mixture(source, arch, QK_NORM, routing={"sum_to_one": source.config.norm_topk_prob})


@family("qwen2_moe", "Qwen1.5-MoE, Qwen2-57B-A14B", supports="mixture of experts, a gated shared expert, biases")
def from_qwen2_moe(source: Checkpoint) -> Transformer:
    source.ignore("qkv_bias")  # a bias is a weight
    arch, routing = read_architecture(source), {"sum_to_one": source.config.norm_topk_prob}
    return _mixture(source, arch, windows=source.windows(), shared="shared_expert", routing=routing)


@family("qwen3_moe", "Qwen3-30B-A3B, 235B-A22B", supports="mixture of experts, norms of queries and keys")
def from_qwen3_moe(source: Checkpoint) -> Transformer:
    source.ignore("use_sliding_window")  # if it is false, the window is None
    arch, config = read_architecture(source), source.config
    return _mixture(source, arch, QK_NORM, windows=config.sliding_window, routing={"sum_to_one": config.norm_topk_prob})


@family("glm4_moe", "GLM-4.5 and 4.6, Air", supports="mixture of experts, a shared expert, partial rotary embeddings")
def from_glm4_moe(source: Checkpoint) -> Transformer:
    names = QK_NORM if source.config.use_qk_norm else LLAMA
    return _mixture(source, read_architecture(source), names, shared="shared_experts", routing=_sigmoids(source))


def _mixture(
    source: Checkpoint,
    arch: Architecture,
    names: Names = LLAMA,
    *,
    windows: Sequence[int | None] | int | None = None,
    shared: str | None = None,
    routing: Mapping[str, Any] = MappingProxyType({}),
) -> Transformer:
    """The model; a layer without router has an ordinary MLP.

    ``shared`` is the name of the shared expert. ``routing`` has fields of ``Experts``, ``group_best`` if experts are
    chosen in groups.
    """
    sparse = replace(names, mlp_out=None)
    if shared is not None:
        mlp_in = [f"mlp.{shared}.gate_proj", f"mlp.{shared}.up_proj"]
        sparse = replace(names, mlp_in=mlp_in, mlp_out=f"mlp.{shared}.down_proj")

    def experts(prefix: str, router: Tensor, gain: Tensor) -> Experts:
        shared_gate = source.get(f"{prefix}.mlp.{shared}_gate.weight")
        correction = source.get(f"{prefix}.mlp.gate.e_score_correction_bias")
        found = Experts(
            router=router * gain,
            w_in=source.need(f"{prefix}.mlp.experts.gate_up_proj") * gain,
            w_out=source.need(f"{prefix}.mlp.experts.down_proj"),
            per_token=source.config.num_experts_per_tok,
            choice_bias=None if correction is None else correction.float(),
            shared_gate=None if shared_gate is None else shared_gate * gain,
            **routing,
        )
        return _in_groups(source, found) if "group_best" in routing else found

    return read_model(source, arch, names, mixture=Mixture("mlp.gate", sparse, experts), windows=windows)


def _sigmoids(source: Checkpoint) -> dict[str, Any]:
    """The routing of DeepSeek-V3; models without experts have no settings of it."""
    config = source.config
    return {
        "probabilities": "sigmoid",
        "sum_to_one": bool(getattr(config, "norm_topk_prob", False)),
        "scale": getattr(config, "routed_scaling_factor", 1.0),
        "group_best": 2,
        "float32_router": True,
    }


def _in_groups(source: Checkpoint, experts: Experts) -> Experts:
    """The experts in the groups of the configuration, if there is more than one."""
    n_groups, per_token = source.config.n_group or 1, source.config.topk_group or 1
    size, rest = divmod(len(experts.router), n_groups)
    if rest or size < experts.group_best or per_token > n_groups or experts.per_token > per_token * size:
        raise InputError(
            f"this {source.family} model cannot choose {experts.per_token} of its {len(experts.router)} experts with "
            f"n_group = {n_groups} and topk_group = {per_token}: groups are too small, or too few. Check config.json."
        )
    if n_groups == 1:
        return replace(experts, group_best=1)
    return replace(experts, n_groups=n_groups, groups_per_token=per_token)


@family(
    "gpt_oss", "gpt-oss 20B, 120B", supports="mixture of experts, attention sinks, clamped gates, sliding windows, YaRN"
)
def from_gpt_oss(source: Checkpoint) -> Transformer:
    source.only("hidden_act", ["silu"])  # the experts' own activation is that of swiglu_alpha
    source.only("swiglu_alpha", [1.702])
    arch = replace(read_architecture(source, activation="quick_gelu"), gate_clamp=source.config.swiglu_limit)
    no_shared = Names(mlp_out=None)  # no expert that every token uses
    mixture = Mixture("mlp.router", no_shared, partial(_gpt_oss, source))
    model = read_model(source, arch, mixture=mixture, windows=source.windows())
    return with_layers(
        model, lambda i, layer: replace(layer, sinks=source.need(f"{source.stem}.layers.{i}.self_attn.sinks"))
    )


def _gpt_oss(source: Checkpoint, prefix: str, router: Tensor, gain: Tensor) -> Experts:
    experts = f"{prefix}.mlp.experts"
    if source.get(f"{experts}.gate_up_proj") is None:
        raise InputError(
            "this gpt_oss model keeps its experts packed (MXFP4), and gradpath reads ordinary numbers: load it with "
            "quantization_config=Mxfp4Config(dequantize=True), or give gradpath its name or folder."
        )

    def gates_above_values(name: str) -> Tensor:
        alternating = source.need(f"{experts}.{name}")
        return torch.cat([alternating[..., ::2], alternating[..., 1::2]], -1)

    return Experts(
        router=router * gain,
        router_bias=source.need(f"{prefix}.mlp.router.bias"),
        w_in=gates_above_values("gate_up_proj").mT.contiguous() * gain,
        b_in=gates_above_values("gate_up_proj_bias"),
        w_out=source.need(f"{experts}.down_proj").mT.contiguous(),
        b_out=source.need(f"{experts}.down_proj_bias"),
        per_token=source.config.num_experts_per_tok,
    )


_LLAMA4 = "mixture of experts, layers without rotary, prompts up to the length of a chunk"


@family("llama4_text", "the text model of Llama 4", supports=_LLAMA4)
def from_llama4_text(source: Checkpoint) -> Transformer:
    source.enter("model")
    source.ignore("no_rope_layer_interval", "interleave_moe_layer_step", "moe_layers")  # lists and weights have these
    source.ignore("intermediate_size_mlp", "attn_scale", "for_llm_compressor")
    config, arch = source.config, read_architecture(source)
    types = [source.check("layer_types", x, ("chunked_attention", "full_attention")) for x in config.layer_types]
    chunk, floor = config.attention_chunk_size, config.floor_scale
    limits = [chunk] if chunk is not None and "chunked_attention" in types else []
    limits += [floor - 1] if config.attn_temperature_tuning else []
    normed = bool(config.use_qk_norm)
    arch = replace(arch, qk_norm="head" if normed else None, max_tokens=min(limits, default=None))
    rotary = source.rotary(known=("default", "linear", "llama3"))  # without a gain, which the norm would remove
    rotary_of = [0 if rotated else None for rotated in config.no_rope_layers]

    def names(mlp: str) -> Names:
        return Names(mlp_in=[f"{mlp}.gate_proj", f"{mlp}.up_proj"], mlp_out=f"{mlp}.down_proj")

    mixture = Mixture("feed_forward.router", names("feed_forward.shared_expert"), partial(_llama4, source))
    model = read_model(
        source, arch, names("feed_forward"), mixture=mixture, rotary=[rotary], rotary_of=rotary_of, interleaved=True
    )
    ones = model.embedding.new_ones(arch.d_head)

    def with_gains(index: int, layer: Layer) -> Layer:
        return replace(layer, q_gain=ones, k_gain=ones.clone()) if normed and layer.rotary is not None else layer

    return with_layers(model, with_gains)


def _llama4(source: Checkpoint, prefix: str, router: Tensor, gain: Tensor) -> Experts:
    experts = f"{prefix}.feed_forward.experts"
    return Experts(
        router=router * gain,
        w_in=source.need(f"{experts}.gate_up_proj").mT.contiguous() * gain,
        w_out=source.need(f"{experts}.down_proj").mT.contiguous(),
        per_token=source.config.num_experts_per_tok,
        probabilities="sigmoid",
        sum_to_one=False,
        scale_input=True,
    )


@family("llama4", "Llama 4 Scout and Maverick, text only", supports=_LLAMA4)
def from_llama4(source: Checkpoint) -> Transformer:
    source.enter_text_model()
    return from_llama4_text(source)


DIRECT = Names(qkv=["self_attn.q_proj", "self_attn.kv_a_proj_with_mqa"])
LATENT = Names(qkv=["self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"])
_LATENT_EPS = 1e-6  # in the norms of latents, whatever the configuration says of the others
_DEEPSEEK = "latent attention, mixture of experts, shared experts, groups of experts"


@family("deepseek_v2", "DeepSeek-V2, V2-Lite, Coder-V2", supports=_DEEPSEEK)
def from_deepseek_v2(source: Checkpoint) -> Transformer:
    source.only("norm_topk_prob", [None, False])  # transformers does not implement it
    source.only("scoring_func", [None, "softmax"])
    source.ignore("aux_loss_alpha", "seq_aux", "ep_size", "moe_layer_freq")
    routing = {"sum_to_one": False, "scale": source.config.routed_scaling_factor, "float32_router": True}
    if source.only("topk_method", ["greedy", "group_limited_greedy"]) == "group_limited_greedy":
        routing["group_best"] = 1
    return _with_latents(source, routing, interleaved=True)


@family("youtu", "Youtu-LLM 2B", supports="latent attention")
@family("glm4_moe_lite", "GLM-4.7-Flash", supports="latent attention, mixture of experts, a shared expert")
@family("deepseek_v3", "DeepSeek-V3, R1, Moonlight", supports=_DEEPSEEK)
def from_deepseek_v3(source: Checkpoint) -> Transformer:
    source.only("scoring_func", [None, "sigmoid"])
    source.only("topk_method", [None, "noaux_tc"])
    source.ignore("aux_loss_alpha", "seq_aux", "ep_size", "moe_layer_freq", "mlp_layer_types")  # weights say the last
    source.ignore("embedding_initializer_range")
    return _with_latents(source, _sigmoids(source), interleaved=bool(source.config.rope_interleave))


@family("minicpm3", "MiniCPM3 4B", supports="latent attention, multipliers of embeddings, residuals and logits")
def from_minicpm3(source: Checkpoint) -> Transformer:
    config, model = source.config, _with_latents(source, {}, interleaved=False)
    depth = config.scale_depth / len(model.layers) ** 0.5
    return replace(
        with_layers(model, lambda _, layer: scaled(layer, depth)),
        embedding_scale=float(config.scale_emb),
        final_gain=model.final_gain * config.dim_model_base / model.arch.d_model,
    )


def _with_latents(source: Checkpoint, routing: Mapping[str, Any], *, interleaved: bool) -> Transformer:
    """The model. A head is as wide as its values, and all share a block of weights to the latent of keys or values."""
    source.ignore("head_dim", "qk_head_dim", "num_key_value_heads")  # of no meaning here, or sums of others
    config = source.config
    if config.q_lora_rank is None:
        source.only("attention_bias", [False])  # then only some of the projections would have one
    d_key = config.qk_nope_head_dim + config.qk_rope_head_dim
    arch = replace(
        read_architecture(source, n_kv_heads=1),
        d_head=config.v_head_dim,
        d_latent=max(config.q_lora_rank or d_key, config.kv_lora_rank + config.qk_rope_head_dim),
        latent_queries=config.q_lora_rank is not None,
    )
    names = LATENT if arch.latent_queries else DIRECT
    model = _mixture(source, arch, names, shared="shared_experts", routing=routing)
    return with_layers(model, lambda index, layer: _with_latent(source, arch, index, layer, interleaved))


def _with_latent(source: Checkpoint, arch: Architecture, index: int, layer: Layer, interleaved: bool) -> Layer:
    config, prefix = source.config, f"{source.stem}.layers.{index}.self_attn"
    rank, n_nope, n_rotated = config.kv_lora_rank, config.qk_nope_head_dim, config.qk_rope_head_dim
    order = halves(n_rotated, n_rotated if interleaved else 0).to(layer.w_qkv.device)

    def up(name: str, norm: str) -> Tensor:  # (head, out, rank)
        weight = source.need(f"{prefix}.{name}.weight") * source.need(f"{prefix}.{norm}.weight")
        return weight.view(arch.n_heads, -1, weight.shape[1])

    def rotated_first(x: Tensor) -> Tensor:  # (head, d_key, ...)
        return torch.cat([x[:, n_nope:][:, order], x[:, :n_nope]], 1)

    def blocks(x: Tensor) -> Tensor:
        """The rows of the projection as blocks of one width: queries (or their latent), key latent, value latent."""
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
        latent=Latent(k_up.contiguous(), v_up.contiguous(), q_up, n_rotated, _LATENT_EPS),
    )
