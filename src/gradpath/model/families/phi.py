"""Phi-1 to Phi-4.

Phi-1, 1.5 and 2 have LayerNorm, and attention and MLP in parallel after one shared norm. Phi-3 and 4 are Llama with
fused weights.

LongRoPE, in the Phi-3 models with a long context and in Phi-4 mini, has other frequencies for prompts beyond the
original context. Shorter prompts are computed exactly, and longer ones are refused.
"""

from __future__ import annotations

from gradpath.model.families import family
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.families.decoder import Names, read_architecture, read_layer, read_model
from gradpath.model.transformer import Transformer

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
    arch = read_architecture(source, norm="layer", eps=source.config.layer_norm_eps, gated=False, parallel=True)
    layers = [read_layer(source, arch, index, PHI) for index in range(arch.n_layers)]
    return read_model(source, arch, layers, PHI)


@family("phi3", "Phi-3 mini and medium, Phi-4", supports="sliding windows, LongRoPE up to the original context")
def from_phi3(source: Checkpoint) -> Transformer:
    source.ignore("original_max_position_embeddings")
    arch, window = read_architecture(source), source.config.sliding_window
    layers = [read_layer(source, arch, index, PHI3, window=window) for index in range(arch.n_layers)]
    return read_model(source, arch, layers, PHI3)
