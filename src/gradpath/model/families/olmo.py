"""OLMo 1, 2 and 3.

OLMo 1 has LayerNorms without weights, and may clip queries, keys and values. OLMo 2 and 3 have their norms after
attention and MLP instead of before, and one norm over all queries, or keys, of a layer. OLMo 3 adds sliding windows.
"""

from __future__ import annotations

from dataclasses import replace

from gradpath.model.families import family
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.families.decoder import Names, read_architecture, read_layer, read_model
from gradpath.model.transformer import Transformer

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
    layers = [read_layer(source, arch, index, OLMO) for index in range(arch.n_layers)]
    return read_model(source, arch, layers, OLMO)


@family("olmo2", "OLMo 2", supports=_OLMO2)
def from_olmo2(source: Checkpoint) -> Transformer:
    n_layers = source.config.num_hidden_layers
    return _model(source, [None] * n_layers, [""] * n_layers)


@family("olmo3", "OLMo 3", supports=f"{_OLMO2}, sliding windows")
def from_olmo3(source: Checkpoint) -> Transformer:
    return _model(source, source.windows(), source.config.layer_types)


def _model(source: Checkpoint, windows: list[int | None], layer_types: list[str]) -> Transformer:
    """OLMo 2 or 3; the types of layers have a rotation each."""
    source.only("attention_bias", [False])  # a bias before the norm after attention would belong to no node
    arch = replace(read_architecture(source), norm_before=False, qk_norm="layer")
    types = sorted(set(layer_types))
    layers = [
        read_layer(source, arch, index, OLMO2, window=window, rotary=types.index(layer_type))
        for index, (window, layer_type) in enumerate(zip(windows, layer_types, strict=True))
    ]
    return read_model(source, arch, layers, OLMO2, [source.rotary(name) for name in types])
