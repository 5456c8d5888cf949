"""Cohere's Command models: LayerNorm without shift, attention and MLP in parallel after one norm, scaled logits.

Neighbouring dimensions of a head are rotated. Command R+ normalises the queries and keys of every head. In Cohere 2
(Command R7B and A) layers with a sliding window are rotated and the others are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradpath.model.families import family
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.families.decoder import Names, read_architecture, read_layer, read_model
from gradpath.model.transformer import Transformer

COHERE = Names(before_mlp="input_layernorm")
COHERE_PLUS = replace(COHERE, q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")
_SHARED = "parallel attention and MLP, interleaved rotary, scaled logits"
# Names of what the architecture always has, in some configurations.
_ALWAYS = """
    layer_switch order_of_interleaved_layers position_embedding_type use_embedding_sharing use_gated_activation
    use_parallel_block use_parallel_embedding
"""


@family("cohere", "Command R, Command R+, Aya 23", supports=f"{_SHARED}, norms of queries and keys")
def from_cohere(source: Checkpoint) -> Transformer:
    n_layers = source.config.num_hidden_layers
    names = COHERE_PLUS if source.config.use_qk_norm else COHERE
    return _model(source, names, [None] * n_layers, [0] * n_layers)


@family("cohere2", "Command R7B, Command A", supports=f"{_SHARED}, sliding windows, layers without rotary")
def from_cohere2(source: Checkpoint) -> Transformer:
    windows = source.windows()
    return _model(source, COHERE, windows, [None if window is None else 0 for window in windows])


def _model(
    source: Checkpoint, names: Names, windows: Sequence[int | None], rotary: Sequence[int | None]
) -> Transformer:
    source.ignore(*_ALWAYS.split())
    arch = read_architecture(source, norm="layer", eps=source.config.layer_norm_eps, parallel=True)
    arch = replace(arch, qk_norm=None if names.q_norm is None else "head")
    rotation = source.rotary()
    width = 2 * len(rotation.frequencies)
    layers = [
        read_layer(source, arch, index, names, window=windows[index], rotary=rotary[index], interleaved=width)
        for index in range(arch.n_layers)
    ]
    model = read_model(source, arch, layers, names, [rotation])
    return replace(model, final_gain=model.final_gain * source.config.logit_scale)
