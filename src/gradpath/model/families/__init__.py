"""Model families: one small adapter each, from a ``transformers`` model to our ``Transformer``.

An adapter refuses by name whatever it does not know: a value that was ignored would be a wrong number later.
"""

from __future__ import annotations

from typing import Any

from gradpath.errors import InputError

# One line for each file of adapters: importing it registers them.
from gradpath.model.families import (
    gemma,  # noqa: F401
    gpt2,  # noqa: F401
    gpt_neox,  # noqa: F401
    llama,  # noqa: F401
    olmo2,  # noqa: F401
    phi,  # noqa: F401
    qwen,  # noqa: F401
)
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.families.registry import FAMILIES, Family
from gradpath.model.transformer import Transformer


def convert(hf_model: Any) -> Transformer:
    """Our model for a loaded ``transformers`` one."""
    source = Checkpoint(hf_model)
    check_family(source.family)
    model = FAMILIES[source.family].adapter(source)
    source.check_all_read()
    return model


def registered() -> list[Family]:
    """Every family that can be read, by name."""
    return [FAMILIES[name] for name in sorted(FAMILIES)]


def check_family(name: str) -> None:
    if name not in FAMILIES:
        raise InputError(
            f"models of the family {name!r} are not supported: "
            f"gradpath reads {', '.join(sorted(FAMILIES))}. Use a model of one of these."
        )
