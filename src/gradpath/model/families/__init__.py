"""Model families: one small adapter each, from a ``transformers`` model to our ``Transformer``.

An adapter is a function of a ``Checkpoint``, registered with ``@family`` under the ``model_type`` of its
configuration. It refuses by name what it does not implement, and leaves most of the work to ``checkpoint``. Related
families share a file; a new file is added to ``MODULES`` below. ``docs/own-family.md`` explains how to write an
adapter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gradpath.errors import InputError
from gradpath.model.families.checkpoint import LLAMA, Checkpoint, Names, read_architecture, read_model
from gradpath.model.transformer import Transformer
from gradpath.registry import Registry, owner_of

__all__ = [
    "FAMILIES",
    "LLAMA",
    "Checkpoint",
    "Family",
    "Names",
    "Transformer",
    "check_family",
    "convert",
    "family",
    "read_architecture",
    "read_model",
    "registered",
]
Adapter = Callable[[Checkpoint], Transformer]


@dataclass(frozen=True)
class Family:
    """An adapter, and its description in ``gradpath ls models``."""

    name: str
    adapter: Adapter
    members: str
    supports: str
    bos: bool  # prompts begin with the BOS token even if the tokenizer does not add it


# Families that do not fit the transformer, with the reason for the error.
_DO_NOT_FIT = {
    "their attention reads only the keys that another small network picks": "deepseek_v32 glm_moe_dsa",
    "each of their layers has two attention blocks and two MLPs": "longcat_flash",
    "they have recurrent layers, and the nodes of a circuit are attention heads and MLPs": """
        mamba mamba2 falcon_mamba falcon_h1 rwkv recurrent_gemma jamba bamba zamba zamba2
    """,
    "they have an encoder, and gradpath reads models that predict the next token": """
        t5 mt5 umt5 bart mbart pegasus marian whisper
    """,
    "they do not predict the next token": "bert roberta distilbert albert electra deberta deberta_v2 modernbert",
}
REFUSED = {name: reason for reason, names in _DO_NOT_FIT.items() for name in names.split()}
GUIDE = "'Your own model family' in the documentation"

MODULES = "gpt llama mixture"
FAMILIES = Registry[Family]("model family", [f"{__name__}.{module}" for module in MODULES.split()])


def family(name: str, members: str, *, supports: str = "", bos: bool = False) -> Callable[[Adapter], Adapter]:
    """Register an adapter, as a decorator.

    Args:
        name: The ``model_type`` in the configuration of the models that it reads.
        members: The models of the family, for ``gradpath ls models``.
        supports: The features that it implements, for the same table.
        bos: Whether prompts begin with the BOS token even if the tokenizer does not add it.

    Returns:
        A decorator that returns the adapter unchanged.
    """

    def register(adapter: Adapter) -> Adapter:
        FAMILIES.add(name, Family(name, adapter, members, supports, bos), owner_of(adapter))
        return adapter

    return register


def convert(hf_model: Any) -> Transformer:
    """The ``Transformer`` for a loaded ``transformers`` model."""
    source = Checkpoint(hf_model)
    check_family(source.family)
    model = FAMILIES[source.family].adapter(source)
    source.check_all_read()
    if source.max_tokens is None:
        return model
    limit = min(source.max_tokens, model.max_positions or source.max_tokens)
    return replace(model, arch=replace(model.arch, max_tokens=limit))


def registered() -> list[Family]:
    """All families, by name."""
    return [FAMILIES[name] for name in sorted(FAMILIES)]


def check_family(name: str) -> None:
    """Refuse a ``model_type`` that no adapter reads."""
    if name in FAMILIES:
        return
    if name in REFUSED:
        raise InputError(f"models of the family {name!r} are not supported: {REFUSED[name]}. Use another model.")
    raise InputError(
        f"models of the family {name!r} are not supported: gradpath reads {', '.join(sorted(FAMILIES))}. Use one of "
        f"these, or write an adapter, which is one short file, and name it with --plugin FILE.py (see {GUIDE})."
    )
