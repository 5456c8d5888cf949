"""gpt-oss: a mixture of experts with attention sinks, clamped gates, biases, and alternating sliding windows.

A sink is a learned logit of a head. It takes part in the softmax beside the logits of the keys, and has no value, so
that a head can attend to less than everything. Gates are clamped from above and values from both sides, and one is
added to the values.

The published checkpoints have their experts in MXFP4. They are loaded as what they stand for, in ordinary numbers;
a model in memory whose experts are still packed is refused.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gradpath.errors import InputError
from gradpath.model.architecture import Architecture, Layer
from gradpath.model.experts import Experts
from gradpath.model.families import family
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.families.decoder import Names, read_architecture, read_layer, read_model
from gradpath.model.families.mixture import ignore_sizes
from gradpath.model.transformer import Transformer

GPT_OSS = Names(mlp_out=None)  # no expert that every token uses


@family(
    "gpt_oss", "gpt-oss 20B, 120B", supports="mixture of experts, attention sinks, clamped gates, sliding windows, YaRN"
)
def from_gpt_oss(source: Checkpoint) -> Transformer:
    source.only("hidden_act", ["silu"])  # the experts' own activation is that of swiglu_alpha
    source.only("swiglu_alpha", [1.702])
    ignore_sizes(source)
    arch = read_architecture(source, activation="quick_gelu")
    arch = replace(arch, gate_clamp=source.config.swiglu_limit)
    layers = [_layer(source, arch, index, window) for index, window in enumerate(source.windows())]
    return read_model(source, arch, layers)


def _layer(source: Checkpoint, arch: Architecture, index: int, window: int | None) -> Layer:
    prefix = f"{source.stem}.layers.{index}"
    experts = f"{prefix}.mlp.experts"
    if source.get(f"{experts}.gate_up_proj") is None:
        raise InputError(
            "this gpt_oss model keeps its experts packed (MXFP4), and gradpath reads ordinary numbers: load it with "
            "quantization_config=Mxfp4Config(dequantize=True), or give gradpath its name or folder."
        )
    gain = source.need(f"{prefix}.post_attention_layernorm.weight")

    def gates_above_values(alternating: Tensor) -> Tensor:
        return torch.cat([alternating[..., ::2], alternating[..., 1::2]], -1)

    return replace(
        read_layer(source, arch, index, GPT_OSS, window=window),
        sinks=source.need(f"{prefix}.self_attn.sinks"),
        experts=Experts(
            router=source.need(f"{prefix}.mlp.router.weight") * gain,
            router_bias=source.need(f"{prefix}.mlp.router.bias"),
            w_in=gates_above_values(source.need(f"{experts}.gate_up_proj")).mT.contiguous() * gain,
            b_in=gates_above_values(source.need(f"{experts}.gate_up_proj_bias")),
            w_out=source.need(f"{experts}.down_proj").mT.contiguous(),
            b_out=source.need(f"{experts}.down_proj_bias"),
            per_token=source.config.num_experts_per_tok,
        ),
    )
