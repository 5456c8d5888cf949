"""Llama and families like it: RMSNorm, rotary embeddings, grouped heads and a gated MLP, or small changes to these.

What a family changes is listed under ``supports`` of its adapter. Three changes depend on the length of a prompt:
Ministral 3 scales its queries by position from some length on, and LongRoPE (in the Phi-3 models with a long context
and in Phi-4 mini) and dynamic scaling have other frequencies beyond the original context. Shorter prompts are computed
exactly, and longer ones are refused.

Granite multiplies embeddings, attention logits, what layers add, and logits. The last two factors are folded into
weights: the output weights of attention and MLP, and the gain of the last norm.

OLMo 2 and 3 have their norms after attention and MLP, none before, and one norm over all queries, or keys, of a layer.
In Cohere 2 (Command R7B and A) layers with a sliding window are rotated and the others are not. In Gemma, the weight
of a norm is its gain minus one. Gemma 2 and 3 have norms both before and after attention and MLP, and Gemma 3 has
separate rotary frequencies for layers with a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradpath.model.architecture import Architecture, Layer, Rotary
from gradpath.model.families import family
from gradpath.model.families.checkpoint import LLAMA, Checkpoint, Names, read_architecture, read_model, with_layers
from gradpath.model.transformer import Transformer

QK_NORM = Names(q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")


@family("llama", "SmolLM2, Llama 2 and 3, TinyLlama and similar models", supports="rope scaling, biases")
def from_llama(source: Checkpoint) -> Transformer:
    return read_model(source, read_architecture(source))


@family("ministral", "Ministral 8B", supports="sliding windows in some layers")
@family("qwen2", "Qwen 2 and 2.5", supports="biases, sliding windows, rope scaling")
def from_qwen2(source: Checkpoint) -> Transformer:
    return read_model(source, read_architecture(source), windows=source.windows())


@family("qwen3", "Qwen 3", supports="norms of queries and keys, sliding windows, rope scaling")
def from_qwen3(source: Checkpoint) -> Transformer:
    return read_model(source, read_architecture(source), QK_NORM, windows=source.windows())


@family("mistral", "Mistral 7B, Mistral Nemo and Small", supports="sliding windows")
def from_mistral(source: Checkpoint) -> Transformer:
    return read_model(source, read_architecture(source), windows=source.config.sliding_window)


@family("ministral3", "the text model of Ministral 3", supports="YaRN, prompts up to the length before query scaling")
def from_ministral3(source: Checkpoint) -> Transformer:
    rope = source.config.rope_parameters
    limit = rope["original_max_position_embeddings"] if rope.get("llama_4_scaling_beta") else None
    model = from_mistral(source)
    return replace(model, arch=replace(model.arch, max_tokens=limit))


@family("mistral3", "Mistral Small 3.1 and later, Ministral 3, text only", supports="as its text model")
def from_mistral3(source: Checkpoint) -> Transformer:
    source.enter_text_model("multimodal_projector_bias", "projector_hidden_act", "spatial_merge_size")
    kind = source.only("model_type", ["mistral", "ministral3"])
    return from_mistral(source) if kind == "mistral" else from_ministral3(source)


@family("smollm3", "SmolLM3 3B", supports="layers without rotary, sliding windows, rope scaling")
def from_smollm3(source: Checkpoint) -> Transformer:
    source.ignore("no_rope_layer_interval")  # transformers has computed no_rope_layers from it
    rotary_of = [0 if rotated else None for rotated in source.config.no_rope_layers]  # 1 where there is a rotation
    return read_model(source, read_architecture(source), windows=source.windows(), rotary_of=rotary_of)


@family("granite", "Granite 3", supports="multipliers of embeddings, attention, residuals and logits")
def from_granite(source: Checkpoint) -> Transformer:
    config = source.config
    model = read_model(source, read_architecture(source), scale=config.attention_multiplier)
    return replace(
        with_layers(model, lambda _, layer: scaled(layer, config.residual_multiplier)),
        embedding_scale=float(config.embedding_multiplier),
        final_gain=model.final_gain / config.logits_scaling,
    )


def scaled(layer: Layer, multiplier: float) -> Layer:
    """The layer with the outputs of attention and MLP multiplied."""
    weights = {name: getattr(layer, name) for name in ("w_o", "b_o", "w_out", "b_out")}
    return replace(layer, **{name: x * multiplier for name, x in weights.items() if x is not None})


GLM = Names(mlp_in=["mlp.gate_up_proj"])
GLM4 = replace(GLM, after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm")
_GLM = "partial interleaved rotary, biases"


@family("glm", "GLM-4 9B, GLM-Edge", supports=_GLM)
@family("glm4", "GLM-4 0414 9B, 32B", supports=f"{_GLM}, norms after attention and MLP")
def from_glm(source: Checkpoint) -> Transformer:
    names = GLM4 if source.family == "glm4" else GLM
    return read_model(source, read_architecture(source), names, interleaved=True)


STARCODER2 = Names(mlp_in=["mlp.c_fc"], mlp_out="mlp.c_proj")


@family("starcoder2", "StarCoder2 3B, 7B, 15B", supports="sliding windows, biases")
def from_starcoder2(source: Checkpoint) -> Transformer:
    source.ignore("use_bias")  # seen in the weights
    arch = read_architecture(source, norm="layer", gated=False)
    return read_model(source, arch, STARCODER2, windows=source.config.sliding_window)


PHI = Names(
    before_mlp="input_layernorm",  # the shared norm is folded into both projections, because each is a separate target
    attention_out="self_attn.dense",
    mlp_in=["mlp.fc1"],
    mlp_out="mlp.fc2",
    final_norm="final_layernorm",
)
PHI3 = Names(qkv=["self_attn.qkv_proj"], mlp_in=["mlp.gate_up_proj"])


@family("phi", "Phi-1, Phi-1.5, Phi-2", supports="parallel attention and MLP, partial rotary, biased logits")
def from_phi(source: Checkpoint) -> Transformer:
    source.only("qk_layernorm", [False])
    arch = read_architecture(source, norm="layer", gated=False, parallel=True)
    return read_model(source, arch, PHI)


@family("phi3", "Phi-3 mini and medium, Phi-4", supports="sliding windows, LongRoPE up to the original context")
def from_phi3(source: Checkpoint) -> Transformer:
    source.ignore("original_max_position_embeddings")
    return read_model(source, read_architecture(source), PHI3, windows=source.config.sliding_window)


@family(
    "stablelm", "StableLM 2, StableLM 3B", supports="parallel attention and MLP or not, partial rotary, norms of heads"
)
def from_stablelm(source: Checkpoint) -> Transformer:
    config = source.config
    source.ignore("use_qkv_bias")  # seen in the weights
    parallel = bool(config.use_parallel_residual)
    names = replace(LLAMA, before_mlp="input_layernorm") if parallel else LLAMA
    arch = read_architecture(source, norm="layer", parallel=parallel)
    model = read_model(source, arch, names)
    if not config.qk_layernorm:
        return model

    def gains(index: int, kind: str, n_heads: int) -> Tensor:
        """The gain of the norm of every head's queries or keys; each is stored separately."""
        prefix = f"model.layers.{index}.self_attn.{kind}_layernorm.norms"
        weights = torch.stack([source.need(f"{prefix}.{head}.weight") for head in range(n_heads)])
        return weights.repeat_interleave(arch.n_heads // n_heads, 0)

    def with_gains(index: int, layer: Layer) -> Layer:
        return replace(layer, q_gain=gains(index, "q", arch.n_heads), k_gain=gains(index, "k", arch.n_kv_heads))

    return with_layers(replace(model, arch=replace(arch, qk_norm="head")), with_gains)


OLMO = Names(before_attention=None, before_mlp=None, final_norm=None)
OLMO2 = Names(
    before_attention=None,
    after_attention="post_attention_layernorm",
    before_mlp=None,
    after_mlp="post_feedforward_layernorm",
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
)
_OLMO2 = "norms after attention and MLP, norms over all queries and keys of a layer"


@family("olmo", "OLMo 1B, 7B", supports="norms without weights, clipped queries, keys and values")
def from_olmo(source: Checkpoint) -> Transformer:
    arch = read_architecture(source, norm="layer", eps=1e-5)  # the class of its norms has no other value
    arch = replace(arch, qkv_clip=source.config.clip_qkv)
    return read_model(source, arch, OLMO)


@family("olmo2", "OLMo 2", supports=_OLMO2)
@family("olmo3", "OLMo 3", supports=f"{_OLMO2}, sliding windows")
def from_olmo2(source: Checkpoint) -> Transformer:
    source.only("attention_bias", [False])  # a bias before the norm after attention would belong to no node
    arch = replace(read_architecture(source), norm_before=False, qk_norm="layer")
    if source.family == "olmo2":
        return read_model(source, arch, OLMO2)
    rotary, rotary_of = source.rotary_by_type()
    return read_model(source, arch, OLMO2, windows=source.windows(), rotary=rotary, rotary_of=rotary_of)


COHERE = Names(before_mlp="input_layernorm")
COHERE_PLUS = replace(COHERE, q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")
_COHERE = "parallel attention and MLP, interleaved rotary, scaled logits"
# Settings in some configurations that name what the architecture always has.
_COHERE_ALWAYS = """
    layer_switch order_of_interleaved_layers position_embedding_type use_embedding_sharing use_gated_activation
    use_parallel_block use_parallel_embedding
"""


@family("cohere", "Command R, Command R+, Aya 23", supports=f"{_COHERE}, norms of queries and keys")
def from_cohere(source: Checkpoint) -> Transformer:
    return _cohere(
        source, COHERE_PLUS if source.config.use_qk_norm else COHERE, [None] * source.config.num_hidden_layers
    )


@family("cohere2", "Command R7B, Command A", supports=f"{_COHERE}, sliding windows, layers without rotary")
def from_cohere2(source: Checkpoint) -> Transformer:
    windows = source.windows()
    return _cohere(source, COHERE, windows, [None if window is None else 0 for window in windows])


def _cohere(
    source: Checkpoint, names: Names, windows: Sequence[int | None], rotary_of: Sequence[int | None] | None = None
) -> Transformer:
    source.ignore(*_COHERE_ALWAYS.split())
    arch = read_architecture(source, norm="layer", parallel=True)
    model = read_model(source, arch, names, windows=windows, rotary_of=rotary_of, interleaved=True)
    return replace(model, final_gain=model.final_gain * source.config.logit_scale)


GEMMA = Names(gain=lambda weight: 1.0 + weight)
GEMMA2 = replace(
    GEMMA,
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)
GEMMA3 = replace(GEMMA2, q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")
_GEMMA = "norms after attention and MLP, sliding windows, scaled embeddings"
_GEMMA3 = f"{_GEMMA}, norms of queries and keys"


@family("gemma", "Gemma 2B, 7B, CodeGemma", supports="scaled embeddings", bos=True)
def from_gemma(source: Checkpoint) -> Transformer:
    source.only("use_bidirectional_attention", [None, False])
    source.ignore("hidden_activation")  # in some configurations, but transformers uses hidden_act
    arch = read_architecture(source)
    return replace(read_model(source, arch, GEMMA), embedding_scale=arch.d_model**0.5)


@family("gemma2", "Gemma 2 2B, 9B, 27B", supports=f"{_GEMMA}, soft caps", bos=True)
def from_gemma2(source: Checkpoint) -> Transformer:
    arch = replace(_gemma_architecture(source), attention_cap=source.config.attn_logit_softcapping)
    return _gemma_model(source, arch, GEMMA2, [source.rotary()], None)


@family("gemma3_text", "Gemma 3 270M, 1B", supports=_GEMMA3, bos=True)
def from_gemma3(source: Checkpoint) -> Transformer:
    source.only("attn_logit_softcapping", [None])  # transformers does not apply it either
    return _gemma_model(source, _gemma_architecture(source), GEMMA3, *source.rotary_by_type())


@family("gemma3", "Gemma 3 4B, 12B, 27B, text only", supports=_GEMMA3, bos=True)
def from_gemma3_with_images(source: Checkpoint) -> Transformer:
    source.enter_text_model("mm_tokens_per_image")
    return from_gemma3(source)


def _gemma_architecture(source: Checkpoint) -> Architecture:
    source.ignore("hidden_act")  # in many configurations, but Gemma uses hidden_activation
    source.only("use_bidirectional_attention", [None, False])
    source.only("attention_bias", [False])  # a bias before the norm after attention would belong to no node
    arch = read_architecture(source, activation=source.activation("hidden_activation"))
    return replace(arch, logit_cap=source.config.final_logit_softcapping)


def _gemma_model(
    source: Checkpoint, arch: Architecture, names: Names, rotary: Sequence[Rotary], rotary_of: list[int] | None
) -> Transformer:
    windows, scale = source.windows(), source.config.query_pre_attn_scalar**-0.5
    model = read_model(source, arch, names, windows=windows, scale=scale, rotary=rotary, rotary_of=rotary_of)
    return replace(model, embedding_scale=arch.d_model**0.5)
