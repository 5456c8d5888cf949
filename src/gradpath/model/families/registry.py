"""The families that gradpath knows, by the name that ``transformers`` gives their configuration.

An adapter is a function of a checkpoint, registered by ``@family``. To add one: its file, and its line among
the imports of this package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gradpath.model.families.checkpoint import Checkpoint
from gradpath.model.transformer import Transformer

Adapter = Callable[[Checkpoint], Transformer]


@dataclass(frozen=True)
class Family:
    """An adapter, and what ``gradpath ls models`` says of it."""

    name: str
    adapter: Adapter
    members: str
    supports: str
    bos: bool  # whether prompts begin with the BOS token although the tokenizer may not add it


FAMILIES: dict[str, Family] = {}


def family(name: str, members: str, *, supports: str = "", bos: bool = False) -> Callable[[Adapter], Adapter]:
    """Register an adapter for the models whose ``config.model_type`` is ``name``."""

    def register(adapter: Adapter) -> Adapter:
        FAMILIES[name] = Family(name, adapter, members, supports, bos)
        return adapter

    return register
