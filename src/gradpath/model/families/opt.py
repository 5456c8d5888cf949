"""OPT and Galactica: LayerNorm, learned positions and an MLP with ReLU.

OPT-350m normalises the residual stream itself, after attention and MLP: what a node writes is then no summand of what
later nodes read, so that model has no edges of the kind that gradpath scores. It is refused.
"""

from __future__ import annotations

from dataclasses import replace

from gradpath.model.families import family
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.families.decoder import Names, read_architecture, read_layer, read_model
from gradpath.model.transformer import Transformer

OPT = Names(
    before_attention="self_attn_layer_norm",
    before_mlp="final_layer_norm",
    attention_out="self_attn.out_proj",
    mlp_in=["fc1"],
    mlp_out="fc2",
    layers="decoder.layers",
    embedding="decoder.embed_tokens",
    final_norm="decoder.final_layer_norm",
)
FIRST_POSITION = 2  # the rows before it are never used


@family("opt", "OPT 125m, 1.3b and larger, Galactica", supports="learned positions")
def from_opt(source: Checkpoint) -> Transformer:
    config = source.config
    source.only("do_layer_norm_before", [True])
    source.only("_remove_final_layer_norm", [False])
    source.check("word_embed_proj_dim", config.word_embed_proj_dim, [config.hidden_size])
    source.ignore("ffn_dim", "enable_bias", "layerdrop", "init_std")  # seen in the weights, or used in training only
    names = OPT
    if not config.layer_norm_elementwise_affine:
        names = replace(OPT, before_attention=None, before_mlp=None, final_norm=None)
    arch = read_architecture(
        source,
        norm="layer",
        eps=1e-5,  # the class of its norms is left with its default
        activation=source.activation("activation_function"),
        gated=False,
        n_kv_heads=config.num_attention_heads,
    )
    layers = [read_layer(source, arch, index, names) for index in range(arch.n_layers)]
    positions = source.need("model.decoder.embed_positions.weight")[FIRST_POSITION:]
    return replace(read_model(source, arch, layers, names, rotary=()), positions=positions)
