"""Gemma 1, 2 and 3: scaled embeddings, and weights of norms that stand for gains of one more.

Gemma 2 and 3 have norms before and after attention and MLP, and alternating sliding windows. Gemma 2 caps its logits
and attention logits. Gemma 3 normalises queries and keys, and has separate rotary frequencies for layers with a window.
"""

from __future__ import annotations

from dataclasses import replace

from gradpath.model.architecture import Architecture, Rotary
from gradpath.model.families import family
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.families.decoder import Names, read_architecture, read_layer, read_model
from gradpath.model.transformer import Transformer

GEMMA = Names(gain=lambda weight: 1.0 + weight)
GEMMA2 = replace(
    GEMMA,
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)
GEMMA3 = replace(GEMMA2, q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")
_SHARED = "norms after attention and MLP, sliding windows, scaled embeddings"
_GEMMA3 = f"{_SHARED}, norms of queries and keys"


@family("gemma", "Gemma 2B, 7B, CodeGemma", supports="scaled embeddings", bos=True)
def from_gemma(source: Checkpoint) -> Transformer:
    source.only("use_bidirectional_attention", [None, False])
    source.ignore("hidden_activation")  # in some configurations, but transformers uses hidden_act
    arch = read_architecture(source)
    return replace(read_model(source, arch, names=GEMMA), embedding_scale=arch.d_model**0.5)


@family("gemma2", "Gemma 2 2B, 9B, 27B", supports=f"{_SHARED}, soft caps", bos=True)
def from_gemma2(source: Checkpoint) -> Transformer:
    arch = _architecture(source)
    arch = replace(arch, attention_cap=source.config.attn_logit_softcapping)
    return _model(source, arch, GEMMA2, (source.rotary(),), [0] * arch.n_layers)


@family("gemma3_text", "Gemma 3 270M, 1B", supports=_GEMMA3, bos=True)
def from_gemma3(source: Checkpoint) -> Transformer:
    source.only("attn_logit_softcapping", [None])  # transformers does not apply it either
    arch = replace(_architecture(source), qk_norm="head")
    source.windows()  # refuses unknown types of layers
    types = sorted(set(source.config.layer_types))
    rotations = tuple(source.rotary(name) for name in types)
    return _model(source, arch, GEMMA3, rotations, [types.index(name) for name in source.config.layer_types])


@family("gemma3", "Gemma 3 4B, 12B, 27B, text only", supports=_GEMMA3, bos=True)
def from_gemma3_with_images(source: Checkpoint) -> Transformer:
    source.enter(
        "language_model",
        config="text_config",
        skip_config=["vision_config", "mm_tokens_per_image"],
        skip_modules=["vision_tower", "multi_modal_projector"],
    )
    return from_gemma3(source)


def _architecture(source: Checkpoint) -> Architecture:
    source.ignore("hidden_act")  # in many configurations, but Gemma uses hidden_activation
    source.only("use_bidirectional_attention", [None, False])
    source.only("attention_bias", [False])  # a bias before the norm after attention would belong to no node
    arch = read_architecture(source, activation=source.activation("hidden_activation"))
    return replace(arch, logit_cap=source.config.final_logit_softcapping)


def _model(
    source: Checkpoint, arch: Architecture, names: Names, rotations: tuple[Rotary, ...], rotary: list[int]
) -> Transformer:
    """The model; ``rotary`` is the index of each layer's rotation."""
    scale = source.config.query_pre_attn_scalar**-0.5
    layers = [
        read_layer(source, arch, index, names, window=window, scale=scale, rotary=rotary[index])
        for index, window in enumerate(source.windows())
    ]
    return replace(read_model(source, arch, layers, names, rotations), embedding_scale=arch.d_model**0.5)
