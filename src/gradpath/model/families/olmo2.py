"""OLMo-2: Llama with its norms behind attention and MLP, not before, and norms over all queries or keys."""

from __future__ import annotations

from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.families.kin import Norms, kin_architecture, kin_layer, kin_model
from gradpath.model.families.registry import family
from gradpath.model.transformer import Transformer

NORMS = Norms(
    before_attention=None,
    after_attention="post_attention_layernorm",
    before_mlp=None,
    after_mlp="post_feedforward_layernorm",
)


@family(
    "olmo2", "OLMo-2", supports="norms after attention and MLP, norms over all queries and keys of a layer"
)
def from_olmo2(source: Checkpoint) -> Transformer:
    # A bias inside the norm after attention would be no node's and yet differ between the runs.
    source.only("attention_bias", [False])
    arch = kin_architecture(source, norm_before=False, qk_norm="layer")
    layers = tuple(kin_layer(source, arch, index, NORMS) for index in range(arch.n_layers))
    return kin_model(source, arch, layers, NORMS, rotary=(source.rotary(),))
