"""Llama, and the families that differ from it in little: RMSNorm, rotary embeddings, grouped heads and a gated MLP.

Qwen 2 has biases on queries, keys and values; Qwen 3 normalises queries and keys. Mistral has a sliding window in all
layers or in some. Ministral 3 scales its queries by position, but only from a length on: shorter prompts are computed
exactly without, and longer ones are refused. SmolLM3 has layers without rotary embeddings. GLM-4 has partial rotary
embeddings of neighbouring dimensions, fused gates and, since 0414, norms after attention and MLP.

Granite has four multipliers: of embeddings, attention logits, what layers add, and logits. The last two are folded into
the weights: that of what layers add into the output of attention and MLP, that of the logits into the gain of the last
norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from gradpath.model.architecture import Layer
from gradpath.model.families import family
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.families.decoder import LLAMA, Names, read_architecture, read_layer, read_model
from gradpath.model.transformer import Transformer

QWEN3 = Names(q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")
GLM = Names(mlp_in=["mlp.gate_up_proj"])
GLM4 = replace(GLM, after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm")
_GLM = "partial interleaved rotary, biases"


@family("llama", "SmolLM2, Llama 2 and 3, TinyLlama and similar models", supports="rope scaling, biases")
def from_llama(source: Checkpoint) -> Transformer:
    return _with_windows(source, [None] * source.config.num_hidden_layers)


@family("qwen2", "Qwen 2 and 2.5", supports="biases, sliding windows, rope scaling")
def from_qwen2(source: Checkpoint) -> Transformer:
    return _with_windows(source, source.windows())


@family("qwen3", "Qwen 3", supports="norms of queries and keys, sliding windows, rope scaling")
def from_qwen3(source: Checkpoint) -> Transformer:
    return _with_windows(source, source.windows(), QWEN3)


@family("mistral", "Mistral 7B, Mistral Nemo and Small", supports="sliding windows")
def from_mistral(source: Checkpoint) -> Transformer:
    return _with_windows(source, [source.config.sliding_window] * source.config.num_hidden_layers)


@family("ministral", "Ministral 8B", supports="sliding windows in some layers")
def from_ministral(source: Checkpoint) -> Transformer:
    return _with_windows(source, source.windows())


@family("ministral3", "the text model of Ministral 3", supports="YaRN, prompts up to the length before query scaling")
def from_ministral3(source: Checkpoint) -> Transformer:
    rope = source.config.rope_parameters
    limit = rope["original_max_position_embeddings"] if rope.get("llama_4_scaling_beta") else None
    model = from_mistral(source)
    return replace(model, arch=replace(model.arch, max_tokens=limit))


@family("mistral3", "Mistral Small 3.1 and later, Ministral 3, text only", supports="as its text model")
def from_mistral3(source: Checkpoint) -> Transformer:
    source.enter(
        "language_model",
        config="text_config",
        skip_config=["vision_config", "multimodal_projector_bias", "projector_hidden_act", "spatial_merge_size"],
        skip_modules=["vision_tower", "multi_modal_projector"],
    )
    kind = source.only("model_type", ["mistral", "ministral3"])
    return from_mistral(source) if kind == "mistral" else from_ministral3(source)


def _with_windows(source: Checkpoint, windows: Sequence[int | None], names: Names = LLAMA) -> Transformer:
    arch = replace(read_architecture(source), qk_norm=None if names.q_norm is None else "head")
    layers = [read_layer(source, arch, index, names, window=window) for index, window in enumerate(windows)]
    return read_model(source, arch, layers)


@family("smollm3", "SmolLM3 3B", supports="layers without rotary, sliding windows, rope scaling")
def from_smollm3(source: Checkpoint) -> Transformer:
    source.ignore("no_rope_layer_interval")  # transformers has computed no_rope_layers from it
    arch, rotated = read_architecture(source), source.config.no_rope_layers  # 1 where there is a rotation
    layers = [
        read_layer(source, arch, index, window=window, rotary=0 if rotated[index] else None)
        for index, window in enumerate(source.windows())
    ]
    return read_model(source, arch, layers)


@family("granite", "Granite 3", supports="multipliers of embeddings, attention, residuals and logits")
def from_granite(source: Checkpoint) -> Transformer:
    config, arch = source.config, read_architecture(source)
    layers = [
        scaled(read_layer(source, arch, index, scale=config.attention_multiplier), config.residual_multiplier)
        for index in range(arch.n_layers)
    ]
    model = read_model(source, arch, layers)
    return replace(
        model, embedding_scale=float(config.embedding_multiplier), final_gain=model.final_gain / config.logits_scaling
    )


def scaled(layer: Layer, multiplier: float) -> Layer:
    """The layer with what attention and MLP write multiplied."""

    def times(x: Tensor | None) -> Tensor | None:
        return None if x is None else x * multiplier

    return replace(
        layer,
        w_o=layer.w_o * multiplier,
        b_o=times(layer.b_o),
        w_out=layer.w_out * multiplier,
        b_out=times(layer.b_out),
    )


@family("glm", "GLM-4 9B, GLM-Edge", supports=_GLM)
def from_glm(source: Checkpoint) -> Transformer:
    return _glm(source, GLM)


@family("glm4", "GLM-4 0414 9B, 32B", supports=f"{_GLM}, norms after attention and MLP")
def from_glm4(source: Checkpoint) -> Transformer:
    return _glm(source, GLM4)


def _glm(source: Checkpoint, names: Names) -> Transformer:
    arch, rotary = read_architecture(source), source.rotary()
    width = 2 * len(rotary.frequencies)
    layers = [read_layer(source, arch, index, names, interleaved=width) for index in range(arch.n_layers)]
    return read_model(source, arch, layers, names, [rotary])
