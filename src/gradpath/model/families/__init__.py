"""Model families: one small adapter each, from a ``transformers`` model to our ``Transformer``.

An adapter is a function of the loaded model. It refuses by name whatever it does not know: a value
that was ignored would be a wrong number later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradpath.errors import InputError
from gradpath.model.families.gpt2 import from_gpt2
from gradpath.model.families.llama import from_llama
from gradpath.model.transformer import Transformer

FAMILIES: dict[str, Callable[[Any], Transformer]] = {
    "gpt2": from_gpt2,
    "llama": from_llama,
    "mistral": from_llama,
}

# What `gradpath ls models` says of each.
MEMBERS = {
    "gpt2": "GPT-2 small, medium, large, XL, DistilGPT-2",
    "llama": "SmolLM2, Llama 2 and 3, TinyLlama and others of the kind",
    "mistral": "Mistral 7B",
}


def convert(hf_model: Any) -> Transformer:
    """Our model for a loaded ``transformers`` one."""
    family = str(hf_model.config.model_type)
    check_family(family)
    return FAMILIES[family](hf_model)


def check_family(family: str) -> None:
    if family not in FAMILIES:
        raise InputError(
            f"models of the family {family!r} are not supported: "
            f"gradpath reads {', '.join(sorted(FAMILIES))}. Use a model of one of these."
        )
