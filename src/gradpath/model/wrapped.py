"""A bridge of TransformerLens, which wraps a ``transformers`` model.

The package is not imported: a bridge is recognised by its attributes. The model is unwrapped and read by the adapter of
its family. ``load`` then compares logits with those of the bridge.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

_PART = "._original_component"


def is_bridge(source: Any) -> bool:
    """Whether an object is a TransformerBridge of TransformerLens."""
    return hasattr(source, "cfg") and hasattr(source, "original_model")


def unwrap(source: Any) -> Any:
    """The ``transformers`` model in a bridge of TransformerLens; other objects as they are."""
    if not is_bridge(source):
        return source
    original = source.original_model
    with torch.device("meta"):
        names = type(original)(original.config).state_dict().keys()
    # A bridge wraps the modules of the model, and gives some weights a second name.
    weights = {name.replace(_PART, ""): weight for name, weight in original.state_dict().items()}
    weights = {name: weight for name, weight in weights.items() if name in names}
    return SimpleNamespace(
        config=original.config,
        base_model=original.base_model,
        base_model_prefix=original.base_model_prefix,
        state_dict=lambda: weights,
    )
