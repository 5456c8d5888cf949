"""SmolLM3: Llama, with layers that have no rotary embeddings."""

from __future__ import annotations

from gradpath.model.families import family
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.families.decoder import read_architecture, read_layer, read_model
from gradpath.model.transformer import Transformer


@family("smollm3", "SmolLM3 3B", supports="layers without rotary, sliding windows, rope scaling")
def from_smollm3(source: Checkpoint) -> Transformer:
    source.ignore("no_rope_layer_interval")  # transformers has computed no_rope_layers from it
    arch, rotated = read_architecture(source), source.config.no_rope_layers  # 1 where there is a rotation
    layers = [
        read_layer(source, arch, index, window=window, rotary=0 if rotated[index] else None)
        for index, window in enumerate(source.windows())
    ]
    return read_model(source, arch, layers)
