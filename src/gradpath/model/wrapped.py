"""Models of other interpretability tools: TransformerLens's bridge, and nnsight's models.

None of these packages is imported: an object is recognised by its attributes. Both wrap a ``transformers`` model, which
is unwrapped and read by the adapter of its family. ``load`` then compares logits with those of the object.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

_PART = "._original_component"


def is_bridge(source: Any) -> bool:
    """Whether an object is a TransformerBridge of TransformerLens."""
    return hasattr(source, "cfg") and hasattr(source, "original_model")


def without_nnsight(source: Any) -> Any:
    """The model in an nnsight model; other objects as they are."""
    return source._module if type(source).__module__.partition(".")[0] == "nnsight" else source


def unwrap(source: Any) -> Any:
    """The ``transformers`` model in a TransformerLens bridge or an nnsight model; other objects as they are."""
    if not is_bridge(source):
        return without_nnsight(source)
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
