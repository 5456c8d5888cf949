"""Model families: one small adapter each, from a ``transformers`` model to our ``Transformer``.

An adapter is a function of a ``Checkpoint``, registered with ``@family`` under the ``model_type`` of its
configuration. It refuses by name whatever it does not implement: a value that was ignored would be a wrong
number later. To add a family, write its file and add it to ``FAMILIES`` below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gradpath.errors import InputError
from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.transformer import Transformer
from gradpath.registry import Registry, owner_of

Adapter = Callable[[Checkpoint], Transformer]


@dataclass(frozen=True)
class Family:
    """An adapter, and what ``gradpath ls models`` says of it."""

    name: str
    adapter: Adapter
    members: str
    supports: str
    bos: bool  # whether prompts begin with the BOS token although the tokenizer may not add it


FAMILIES = Registry[Family](
    "model family", [f"{__name__}.{module}" for module in ("gpt2", "llama_like", "gemma", "gpt_neox", "phi")]
)


def family(name: str, members: str, *, supports: str = "", bos: bool = False) -> Callable[[Adapter], Adapter]:
    """Register an adapter for the models whose ``config.model_type`` is ``name``."""

    def register(adapter: Adapter) -> Adapter:
        FAMILIES.add(name, Family(name, adapter, members, supports, bos), owner_of(adapter))
        return adapter

    return register


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
