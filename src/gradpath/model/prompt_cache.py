"""A cache of results for prompts that a job runs more than once.

``find`` runs its prompts to attribute, and to select a circuit. Two results are the same each time: the keys and values
of a prompt's prefix, before the first token in which the pair differs, and the input of ``logits`` on the clean prompt.
They are cached while ``keep_prompts`` is active, up to a limit of memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gradpath.model.transformer import Past, Transformer

ROOM = 2**27  # bytes of prefixes


class _Cache:
    """The results by prompt; a prompt is identified by the ids of all its tokens.

    A prefix is its keys and values, (layer, head, pos, d_head), once for heads that share them.
    """

    def __init__(self, model: Transformer, room: int) -> None:
        self.model, self.room = model, room
        self.prefixes, self.finals = dict[tuple[int, ...], Past](), dict[tuple[int, ...], Tensor]()


_ACTIVE: ContextVar[_Cache | None] = ContextVar("prompt_cache", default=None)


@contextmanager
def keep_prompts(model: Transformer, room: int = ROOM) -> Iterator[None]:
    """Cache results of prompts until the end of the block, unless the model is on several devices."""
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
    arch = model.arch
    group = arch.n_heads // arch.n_kv_heads if arch.d_latent is None else 1  # heads that share keys and values
    known = [x for prompt in prompts if (x := cache.prefixes.get(prompt)) and x.keys.shape[2] >= start]
    if len(known) == len(prompts):
        parts = (torch.stack([x[:, :, :start] for x in part], 1) for part in zip(*known, strict=True))
        copies = (x.repeat_interleave(group, 2) for x in parts)  # (layer, batch, head, pos, d_head)
        return [Past(*layer) for layer in zip(*copies, strict=True)]
    past = model.prefix(model.embed(ids[:, :start]))
    stacked = (torch.stack(parts, 1) for parts in zip(*past, strict=True))  # (batch, layer, head, pos, d_head)
    keys, values = (x[:, :, ::group].contiguous() for x in stacked)
    if keys.nbytes + values.nbytes <= cache.room:
        cache.room -= keys.nbytes + values.nbytes
        cache.prefixes.update(zip(prompts, map(Past, keys, values), strict=True))
    return past


def keep_final(
    model: Transformer,
    ids: Int[Tensor, "batch pos"],
    last: Int[Tensor, " batch"],
    final: Float[Tensor, "batch d_model"],
) -> None:
    """Cache the input of ``logits`` at the last token of prompts, if a cache is active."""
    if (cache := _active(model)) is not None:
        cache.finals.update(zip(_prompts(ids, last), final.detach(), strict=True))


def known_final(
    model: Transformer, ids: Int[Tensor, "batch pos"], last: Int[Tensor, " batch"]
) -> Float[Tensor, "batch d_model"] | None:
    """The input of ``logits`` at the last token of prompts, if it is cached for all of them."""
    if (cache := _active(model)) is None:
        return None
    finals = [cache.finals.get(prompt) for prompt in _prompts(ids, last)]
    known = [final for final in finals if final is not None]
    return torch.stack(known) if len(known) == len(finals) else None


def _active(model: Transformer) -> _Cache | None:
    """The active cache, if it is for this model; rules of the backward pass make no difference."""
    cache = _ACTIVE.get()
    same = cache is not None and model.layers is cache.model.layers and model.embedding is cache.model.embedding
    return cache if same else None


def _prompts(ids: Tensor, last: Tensor) -> list[tuple[int, ...]]:
    return [tuple(row[: end + 1]) for row, end in zip(ids.tolist(), last.tolist(), strict=True)]
