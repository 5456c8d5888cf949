"""GLM-4: Llama with partial rotary embeddings of neighbouring dimensions, fused gates and, since 0414, norms after
attention and MLP."""

from __future__ import annotations

from dataclasses import replace

from gradpath.model.families import family
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.families.decoder import Names, read_architecture, read_layer, read_model
from gradpath.model.transformer import Transformer

GLM = Names(mlp_in=["mlp.gate_up_proj"])
GLM4 = replace(GLM, after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm")
_SHARED = "partial interleaved rotary, biases"


@family("glm", "GLM-4 9B, GLM-Edge", supports=_SHARED)
def from_glm(source: Checkpoint) -> Transformer:
    return _model(source, GLM)


@family("glm4", "GLM-4 0414 9B, 32B", supports=f"{_SHARED}, norms after attention and MLP")
def from_glm4(source: Checkpoint) -> Transformer:
    return _model(source, GLM4)


def _model(source: Checkpoint, names: Names) -> Transformer:
    arch, rotary = read_architecture(source), source.rotary()
    width = 2 * len(rotary.frequencies)
    layers = [read_layer(source, arch, index, names, interleaved=width) for index in range(arch.n_layers)]
    return read_model(source, arch, layers, names, [rotary])
