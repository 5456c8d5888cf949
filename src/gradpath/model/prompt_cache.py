"""A cache of what was computed for a prompt, for jobs that run the same prompts more than once.

``find`` runs its prompts more than once: to attribute, and to select a circuit. Two things are the same each time: the
keys and values of a prompt's prefix, before the first token in which the pair differs, and what ``logits`` reads on the
clean prompt. While ``keep_prompts`` is active they are kept, up to some memory. Otherwise nothing is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gradpath.model.transformer import Past, Transformer

ROOM = 2**27  # bytes that may be kept


class _Prefix(NamedTuple):
    """Keys and values of one prompt's first positions, (layer, head, pos, d_head), once for heads that share them."""

    keys: Tensor
    values: Tensor


class _Cache:
    """Prompts are known by the ids of all their tokens."""

    def __init__(self, model: Transformer, room: int) -> None:
        self.model, self.room = model, room
        self.prefixes, self.finals = dict[tuple[int, ...], _Prefix](), dict[tuple[int, ...], Tensor]()

    def knows(self, model: Transformer) -> bool:
        """Whether this is the model whose prompts are kept; rules of the backward pass make no difference."""
        return model.layers is self.model.layers and model.embedding is self.model.embedding


_ACTIVE: ContextVar[_Cache | None] = ContextVar("prompt_cache", default=None)


@contextmanager
def keep_prompts(model: Transformer, room: int = ROOM) -> Iterator[None]:
    """Keep what is computed of prompts until the end of the block; of a model on several devices nothing is kept."""
    one_device = all(layer.w_qkv.device == model.embedding.device for layer in model.layers)
    token = _ACTIVE.set(_Cache(model, room) if one_device else None)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def prefix_of(model: Transformer, ids: Int[Tensor, "batch pos"], last: Int[Tensor, " batch"], start: int) -> list[Past]:
    """As ``model.prefix``: keys and values of the first ``start`` tokens of prompts that end at ``last``."""
    if not start:
        return []
    cache = _active(model)
    if cache is None:
        return model.prefix(model.embed(ids[:, :start]))
    prompts = _prompts(ids, last)
    known = [own for prompt in prompts if (own := cache.prefixes.get(prompt)) and own.keys.shape[2] >= start]
    if len(known) == len(prompts):
        parts = (torch.stack([x[:, :, :start] for x in part], 1) for part in zip(*known, strict=True))
        return [Past(*layer) for layer in zip(*(_for_each_head(model, x) for x in parts), strict=True)]
    past = model.prefix(model.embed(ids[:, :start]))
    keys, values = (_once(model, torch.stack(parts, 1)) for parts in zip(*past, strict=True))
    if keys.nbytes + values.nbytes <= cache.room:
        cache.room -= keys.nbytes + values.nbytes
        cache.prefixes.update(zip(prompts, map(_Prefix, keys, values), strict=True))
    return past


def keep_final(
    model: Transformer,
    ids: Int[Tensor, "batch pos"],
    last: Int[Tensor, " batch"],
    final: Float[Tensor, "batch d_model"],
) -> None:
    """Keep what ``logits`` reads at the last token of prompts, if prompts are kept."""
    if (cache := _active(model)) is not None:
        cache.finals.update(zip(_prompts(ids, last), final.detach(), strict=True))


def known_final(
    model: Transformer, ids: Int[Tensor, "batch pos"], last: Int[Tensor, " batch"]
) -> Float[Tensor, "batch d_model"] | None:
    """What ``logits`` reads at the last token of prompts, if that was kept of all of them."""
    if (cache := _active(model)) is None:
        return None
    finals = [cache.finals.get(prompt) for prompt in _prompts(ids, last)]
    known = [final for final in finals if final is not None]
    return torch.stack(known) if len(known) == len(finals) else None


def _active(model: Transformer) -> _Cache | None:
    cache = _ACTIVE.get()
    return cache if cache is not None and cache.knows(model) else None


def _prompts(ids: Tensor, last: Tensor) -> list[tuple[int, ...]]:
    return [tuple(own[: end + 1]) for own, end in zip(ids.tolist(), last.tolist(), strict=True)]


def _n_own(model: Transformer) -> int:
    """How many heads have keys of their own: what is made of a latent differs between all heads."""
    return model.arch.n_kv_heads if model.arch.d_latent is None else model.arch.n_heads


def _once(model: Transformer, x: Tensor) -> Tensor:
    """Keys or values (batch, layer, head, pos, d_head), of one head for each group that shares them."""
    return x[:, :, :: model.arch.n_heads // _n_own(model)].contiguous()


def _for_each_head(model: Transformer, x: Tensor) -> Tensor:
    """The reverse, of (layer, batch, head, pos, d_head)."""
    return x.repeat_interleave(model.arch.n_heads // _n_own(model), 2)
