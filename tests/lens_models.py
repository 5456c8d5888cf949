"""Small models of TransformerLens, for tests that are skipped where the package is not installed."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from small_models import VOCAB


def transformer_lens() -> Any:
    """The package, or a skipped test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("transformer_lens", reason="needs TransformerLens: make test-peers")


SHAPE: dict[str, Any] = {"n_layers": 2, "n_heads": 4, "d_model": 24, "d_head": 6, "d_mlp": 40, "d_vocab": VOCAB}
HOOKED: dict[str, dict[str, Any]] = {
    "gpt2-like": {"act_fn": "gelu_new", "normalization_type": "LN"},
    "solo-attention": {"attn_only": True, "normalization_type": "LN", "d_mlp": None},
    "llama-like": {
        "act_fn": "silu",
        "gated_mlp": True,
        "n_key_value_heads": 2,
        "normalization_type": "RMS",
        "positional_embedding_type": "rotary",
    },
    "neox-like": {
        "act_fn": "gelu",
        "normalization_type": "LN",
        "positional_embedding_type": "rotary",
        "rotary_dim": 2,
        "parallel_attn_mlp": True,
    },
    "local": {
        "act_fn": "relu",
        "normalization_type": "LN",
        "use_local_attn": True,
        "window_size": 3,
        "attn_types": ["global", "local"],
        "use_attn_scale": False,
    },
}


def hooked(kind: str, *, folded: bool = False) -> Any:
    """A HookedTransformer with random weights, with norms folded and weights centred if requested."""
    lens = transformer_lens()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = lens.HookedTransformerConfig(**{**SHAPE, "n_ctx": 32, "device": "cpu", **HOOKED[kind]})
        model = lens.HookedTransformer(config)
        generator = torch.Generator().manual_seed(5)
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.data = (1 if "W_E" in name else 0.25) * noise + name.endswith((".ln1.w", ".ln2.w"))
        if folded:
            rms = config.normalization_type == "RMS"
            model.process_weights_(
                fold_ln=True,
                center_writing_weights=not rms,
                center_unembed=not rms,
                refactor_factored_attn_matrices=False,
            )
    return model.eval()
