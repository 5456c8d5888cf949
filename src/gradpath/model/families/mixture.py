"""Mixtures of experts: Mixtral, OLMoE, Qwen 2 and 3 MoE and GLM-4.5, Llama-like models with a router in their layers.

``model.experts`` has the equations. The families differ in the router's probabilities and weights, and in a shared
expert that every token uses. A layer without router has an ordinary MLP.
"""

from __future__ import annotations

from dataclasses import replace

from gradpath.errors import InputError
from gradpath.model.architecture import Architecture, Layer
from gradpath.model.experts import Experts
from gradpath.model.families import family
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.families.decoder import LLAMA, Names, read_architecture, read_layer, read_model
from gradpath.model.transformer import Transformer

QK_NORM = Names(q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")
# Settings that only affect the loss, and those that decide which weights there are: all of these have to be read.
_LOSS = "router_aux_loss_coef output_router_logits router_jitter_noise"
_SIZES = """
    num_experts num_local_experts n_routed_experts moe_intermediate_size shared_expert_intermediate_size
    decoder_sparse_step mlp_only_layers first_k_dense_replace n_shared_experts
"""


@family("mixtral", "Mixtral 8x7B and 8x22B", supports="mixture of experts, sliding windows")
def from_mixtral(source: Checkpoint) -> Transformer:
    arch, window = read_architecture(source), source.config.sliding_window
    layers = [mixture_layer(source, arch, index, sum_to_one=True, window=window) for index in range(arch.n_layers)]
    return read_model(source, arch, layers)


@family("olmoe", "OLMoE 1B-7B", supports="mixture of experts, norms over all queries and keys of a layer")
def from_olmoe(source: Checkpoint) -> Transformer:
    source.only("clip_qkv", [None])  # it would clip queries and keys behind their norms
    arch, sum_to_one = replace(read_architecture(source), qk_norm="layer"), source.config.norm_topk_prob
    layers = [mixture_layer(source, arch, index, QK_NORM, sum_to_one=sum_to_one) for index in range(arch.n_layers)]
    return read_model(source, arch, layers)


@family("qwen2_moe", "Qwen1.5-MoE, Qwen2-57B-A14B", supports="mixture of experts, a gated shared expert, biases")
def from_qwen2_moe(source: Checkpoint) -> Transformer:
    source.ignore("qkv_bias")  # a bias is a weight
    arch, sum_to_one = read_architecture(source), source.config.norm_topk_prob
    layers = [
        mixture_layer(source, arch, index, sum_to_one=sum_to_one, shared="shared_expert", window=window)
        for index, window in enumerate(source.windows())
    ]
    return read_model(source, arch, layers)


@family("qwen3_moe", "Qwen3-30B-A3B, 235B-A22B", supports="mixture of experts, norms of queries and keys")
def from_qwen3_moe(source: Checkpoint) -> Transformer:
    source.ignore("use_sliding_window")  # if it is false, the window is None
    arch, config = replace(read_architecture(source), qk_norm="head"), source.config
    sum_to_one, window = config.norm_topk_prob, config.sliding_window
    layers = [
        mixture_layer(source, arch, index, QK_NORM, sum_to_one=sum_to_one, window=window)
        for index in range(arch.n_layers)
    ]
    return read_model(source, arch, layers)


@family("glm4_moe", "GLM-4.5 and 4.6, Air", supports="mixture of experts, a shared expert, partial rotary embeddings")
def from_glm4_moe(source: Checkpoint) -> Transformer:
    source.ignore("num_mtp_layers", "num_nextn_predict_layers")  # they predict tokens further on
    config, names = source.config, QK_NORM if source.config.use_qk_norm else LLAMA
    arch = replace(read_architecture(source), qk_norm="head" if config.use_qk_norm else None)
    layers = []
    for index in range(arch.n_layers):
        layer = mixture_layer(source, arch, index, names, sum_to_one=config.norm_topk_prob, shared="shared_experts")
        layers.append(with_corrected_sigmoids(source, index, layer))
    return read_model(source, arch, layers)


def mixture_layer(
    source: Checkpoint,
    arch: Architecture,
    index: int,
    names: Names = LLAMA,
    *,
    sum_to_one: bool,
    shared: str | None = None,
    window: int | None = None,
) -> Layer:
    """One layer with experts, or with an ordinary MLP if the checkpoint has no router for it.

    Args:
        source: The checkpoint.
        arch: The architecture.
        index: The number of the layer.
        names: The names of its other weights.
        sum_to_one: Whether the weights of the experts of a token are divided by their sum.
        shared: The name of the shared expert, if there is one.
        window: The attention window.

    Returns:
        The layer, with the norm before the MLP folded into router and experts.
    """
    ignore_sizes(source)
    prefix = f"{source.stem}.layers.{index}"
    if (router := source.get(f"{prefix}.mlp.gate.weight")) is None:
        return read_layer(source, arch, index, names, window=window)
    if shared is None:
        names = replace(names, mlp_out=None)
    else:
        mlp_in = [f"mlp.{shared}.gate_proj", f"mlp.{shared}.up_proj"]
        names = replace(names, mlp_in=mlp_in, mlp_out=f"mlp.{shared}.down_proj")
    gain, shared_gate = (
        source.need(f"{prefix}.{names.before_mlp}.weight"),
        source.get(f"{prefix}.mlp.{shared}_gate.weight"),
    )
    experts = Experts(
        router=router * gain,
        w_in=source.need(f"{prefix}.mlp.experts.gate_up_proj") * gain,
        w_out=source.need(f"{prefix}.mlp.experts.down_proj"),
        per_token=source.config.num_experts_per_tok,
        sum_to_one=sum_to_one,
        shared_gate=None if shared_gate is None else shared_gate * gain,
    )
    return replace(read_layer(source, arch, index, names, window=window), experts=experts)


def with_corrected_sigmoids(source: Checkpoint, index: int, layer: Layer) -> Layer:
    """A layer whose router works as in DeepSeek-V3: sigmoids, a correction of the choice, and groups of experts."""
    if layer.experts is None:
        return layer
    bias = source.need(f"{source.stem}.layers.{index}.mlp.gate.e_score_correction_bias").float()
    scale = source.config.routed_scaling_factor
    experts = replace(layer.experts, probabilities="sigmoid", choice_bias=bias, scale=scale, float32_router=True)
    return replace(layer, experts=in_groups(source, experts, group_best=2))


def in_groups(source: Checkpoint, experts: Experts, *, group_best: int) -> Experts:
    """The experts with the choice of groups that the configuration describes.

    Args:
        source: The checkpoint.
        experts: The experts.
        group_best: How many of its best experts a group is judged by.

    Returns:
        The same experts in groups, if there is more than one.
    """
    n_groups, per_token = source.config.n_group or 1, source.config.topk_group or 1
    size, rest = divmod(len(experts.router), n_groups)
    if rest or size < group_best or per_token > n_groups or experts.per_token > per_token * size:
        raise InputError(
            f"this {source.family} model cannot choose {experts.per_token} of its {len(experts.router)} experts with "
            f"n_group = {n_groups} and topk_group = {per_token}: groups are too small, or too few. Check config.json."
        )
    if n_groups == 1:
        return experts
    return replace(experts, n_groups=n_groups, groups_per_token=per_token, group_best=group_best)


def ignore_sizes(source: Checkpoint) -> None:
    """Accept any value of the settings that affect the loss alone, or the shapes of weights."""
    source.ignore(*_LOSS.split(), *_SIZES.split())
