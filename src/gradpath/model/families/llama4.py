"""Llama 4: a mixture of experts whose inputs are scaled, layers without rotary embeddings, norms of rotated queries.

Queries and keys are normalised after their rotation, which does not change their length: the same as before it. Two
things depend on the length of a prompt: layers with rotary embeddings see chunks, and the others scale their queries by
position. Both begin thousands of tokens into a prompt. Shorter ones are computed exactly without, and longer ones are
refused.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from gradpath.model.architecture import Architecture, Layer
from gradpath.model.experts import Experts
from gradpath.model.families import family
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.families.decoder import Names, read_architecture, read_layer, read_model
from gradpath.model.families.mixture import ignore_sizes
from gradpath.model.transformer import Transformer

_IN, _OUT = ("gate_proj", "up_proj"), "down_proj"
DENSE = Names(mlp_in=[f"feed_forward.{name}" for name in _IN], mlp_out=f"feed_forward.{_OUT}")
SHARED = Names(
    mlp_in=[f"feed_forward.shared_expert.{name}" for name in _IN], mlp_out=f"feed_forward.shared_expert.{_OUT}"
)
_SUPPORTS = "mixture of experts, layers without rotary, prompts up to the length of a chunk"


@family("llama4_text", "the text model of Llama 4", supports=_SUPPORTS)
def from_llama4_text(source: Checkpoint) -> Transformer:
    source.enter("model")
    source.ignore("no_rope_layer_interval", "interleave_moe_layer_step", "moe_layers")  # lists and weights have these
    source.ignore("intermediate_size_mlp", "attn_scale", "for_llm_compressor")
    ignore_sizes(source)
    config, arch = source.config, read_architecture(source)
    types = [source.check("layer_types", x, ("chunked_attention", "full_attention")) for x in config.layer_types]
    chunk, floor = config.attention_chunk_size, config.floor_scale
    limits = [chunk] if chunk is not None and "chunked_attention" in types else []
    limits += [floor - 1] if config.attn_temperature_tuning else []
    normed = bool(config.use_qk_norm)
    arch = replace(arch, qk_norm="head" if normed else None, max_tokens=min(limits, default=None))
    rotary = source.rotary(known=("default", "linear", "llama3"))  # these have no gain, which the norm would remove
    layers = [_layer(source, arch, index, rotated=bool(x)) for index, x in enumerate(config.no_rope_layers)]
    return read_model(source, arch, layers, rotary=[rotary])


@family("llama4", "Llama 4 Scout and Maverick, text only", supports=_SUPPORTS)
def from_llama4(source: Checkpoint) -> Transformer:
    source.enter(
        "language_model",
        config="text_config",
        skip_config=["vision_config"],
        skip_modules=["vision_model", "multi_modal_projector"],
    )
    return from_llama4_text(source)


def _layer(source: Checkpoint, arch: Architecture, index: int, *, rotated: bool) -> Layer:
    prefix = f"{source.stem}.layers.{index}"
    router = source.get(f"{prefix}.feed_forward.router.weight")
    names, rotary = DENSE if router is None else SHARED, 0 if rotated else None
    layer = read_layer(source, arch, index, names, rotary=rotary, interleaved=arch.d_head)
    if rotated and arch.qk_norm is not None:
        ones = torch.ones_like(layer.w_qkv[: arch.d_head, 0])
        layer = replace(layer, q_gain=ones, k_gain=ones.clone())
    if router is None:
        return layer
    gain = source.need(f"{prefix}.post_attention_layernorm.weight")
    experts = Experts(
        router=router * gain,
        w_in=source.need(f"{prefix}.feed_forward.experts.gate_up_proj").mT.contiguous() * gain,
        w_out=source.need(f"{prefix}.feed_forward.experts.down_proj").mT.contiguous(),
        per_token=source.config.num_experts_per_tok,
        probabilities="sigmoid",
        sum_to_one=False,
        scale_input=True,
    )
    return replace(layer, experts=experts)
