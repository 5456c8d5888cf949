"""Gemma 2 and 3: norms before and after attention and MLP, scaled embeddings, alternating sliding windows.

Gemma 2 caps its logits and attention logits. Gemma 3 normalises queries and keys, and rotates its layers with
a window more quickly than the others.
"""

from __future__ import annotations

from torch import Tensor

from gradpath.model.architecture import Architecture, Rotary
from gradpath.model.families import family
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.families.llama_like import Norms, llama_architecture, llama_layer, llama_model
from gradpath.model.transformer import Transformer


def _gain(weight: Tensor) -> Tensor:
    return 1.0 + weight


NORMS = Norms(
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
    gain=_gain,
)
_SHARED = "norms after attention and MLP, sliding windows, scaled embeddings"


@family("gemma2", "Gemma 2 2B, 9B, 27B", supports=f"{_SHARED}, soft caps", bos=True)
def from_gemma2(source: Checkpoint) -> Transformer:
    config = source.config
    arch = llama_architecture(
        source,
        activation="hidden_activation",
        attention_cap=config.attn_logit_softcapping,
        logit_cap=config.final_logit_softcapping,
    )
    rotation = (source.rotary(),)
    return _assembled(source, arch, rotation, [0] * arch.n_layers)


@family("gemma3_text", "Gemma 3 270M, 1B", supports=f"{_SHARED}, norms of queries and keys", bos=True)
def from_gemma3(source: Checkpoint) -> Transformer:
    source.only("attn_logit_softcapping", [None])  # which transformers would not apply either
    arch = llama_architecture(
        source, activation="hidden_activation", qk_norm="head", logit_cap=source.config.final_logit_softcapping
    )
    source.windows()  # refuses types of layers that are not known
    kinds = sorted(set(source.config.layer_types))
    rotations = tuple(source.rotary(kind) for kind in kinds)
    return _assembled(source, arch, rotations, [kinds.index(kind) for kind in source.config.layer_types])


@family(
    "gemma3",
    "Gemma 3 4B, 12B, 27B: the part that reads text",
    supports=f"{_SHARED}, norms of queries and keys",
    bos=True,
)
def from_gemma3_with_images(source: Checkpoint) -> Transformer:
    source.enter("text_config", "language_model", leave=["vision_tower", "multi_modal_projector"])
    return from_gemma3(source)


def _assembled(source: Checkpoint, arch: Architecture, rotations: tuple[Rotary, ...], rotary: list[int]) -> Transformer:
    source.only("use_bidirectional_attention", [None, False])
    # A bias inside the norm after attention would be no node's and yet differ between the runs.
    source.only("attention_bias", [False])
    scale = source.config.query_pre_attn_scalar**-0.5
    layers = tuple(
        llama_layer(source, arch, index, NORMS, window=window, scale=scale, rotary=rotary[index])
        for index, window in enumerate(source.windows())
    )
    scaled = arch.d_model**0.5
    return llama_model(source, arch, layers, NORMS, rotary=rotations, embedding_scale=scaled)
