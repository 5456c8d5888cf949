"""Inspecting a model: predictions, attention patterns, outputs of nodes by name, and the logit lens.

All are read from an ordinary run. Nothing is hooked, and nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from gradpath import defaults
from gradpath.errors import InputError, UsageError
from gradpath.model.tokenizer import Prompts, padded, prompt_ids
from gradpath.model.transformer import LayerRun, Past, PositionInfo, Run, Transformer


class Prediction(NamedTuple):
    """A next token, with its probability and its logit."""

    token: str
    probability: float
    logit: float
    id: int


class PromptRun(NamedTuple):
    """The run of a few prompts of the same padded length."""

    x: Tensor  # (prompt, pos, d_model): the output of ``input``
    run: Run
    info: PositionInfo
    last: Tensor  # the position of each prompt's last token

    def blank(self, x: Tensor) -> Tensor:
        """x, (prompt, pos, ...), with zeros after the end of each prompt."""
        real = torch.arange(x.shape[1], device=x.device) <= self.last[:, None]
        return x * real.view(*real.shape, *[1] * (x.ndim - 2))


def predict(model: Transformer, text: Prompts, top: int) -> list[Prediction]:
    """See ``Transformer.predict``."""
    if not 1 <= top <= len(model.unembedding):
        raise UsageError(f"top must be from 1 to {len(model.unembedding):,}, the size of the vocabulary: got {top}.")
    if not isinstance(text, (str, Tensor)):
        raise UsageError(f"predict takes one prompt, as text or token ids: got {type(text).__name__}.")
    logits = logit_lens(model, text if isinstance(text, str) else text.reshape(1, -1), -1)[0, -1].float()
    best = logits.topk(top)
    shares = logits.softmax(-1)[best.indices]
    return [
        Prediction(token_text(model, token), probability, logit, token)
        for token, probability, logit in zip(best.indices.tolist(), shares.tolist(), best.values.tolist(), strict=True)
    ]


def token_text(model: Transformer, token: int) -> str:
    """A token as text, or its number for a model without a tokenizer."""
    return str(token) if model.tokenizer is None else model.tokenizer.decode([token])


@torch.no_grad()
def attention(model: Transformer, prompts: Prompts, node: str) -> Float[Tensor, "prompt pos pos"]:
    """See ``Transformer.attention``."""
    layer, head = _place(model, node)
    if not 0 <= head < model.arch.n_heads:
        raise UsageError(f"only heads have an attention pattern: got {node!r}. Name one, such as a0.h0.")
    weights = [x.blank(patterns(model, layer, x.run.layers[layer], x.info)[:, head]) for x in _runs(model, prompts)]
    return torch.cat(weights)


def patterns(
    model: Transformer, index: int, run: LayerRun, info: PositionInfo, before: Past | None = None
) -> Float[Tensor, "batch head pos key"]:
    """The attention patterns of all heads of a layer in a run; ``before`` has the keys of positions before it."""
    layer = model.layers[index]
    keys = run.past.after(before).keys
    return model.attention_weights(layer, model.queries(layer, run.q, info), keys, info)


@torch.no_grad()
def outputs(model: Transformer, prompts: Prompts, node: str) -> Float[Tensor, "prompt pos d_model"]:
    """See ``Transformer.outputs``."""
    layer, head = _place(model, node)
    parts = []
    for part in _runs(model, prompts):
        output = part.x if node == "input" else output_of(model, part.run, layer, head)
        parts.append(part.blank(output))
    return torch.cat(parts)


def output_of(
    model: Transformer, run: Run, layer: int, head: int, at: tuple[Tensor, Tensor] | None = None
) -> Float[Tensor, "... d_model"]:
    """The output of a head in a run, or of the MLP of the layer if ``head`` is the number of heads.

    ``at`` are indices of prompts and positions; by default all, (batch, pos, d_model).
    """
    layer_run, place = run.layers[layer], slice(None) if at is None else at
    if head == model.arch.n_heads:
        return layer_run.mlp_out[place]
    return layer_run.written[:, :, head][place] @ model.head_output_weights(layer)[:, head].T


@torch.no_grad()
def logit_lens(model: Transformer, prompts: Prompts, position: int) -> Float[Tensor, "prompt layer vocab"]:
    """See ``Transformer.logit_lens``."""
    parts = []
    for part in _runs(model, prompts):
        at = part.last + 1 + position if position < 0 else torch.full_like(part.last, position)
        if bool(((at < 0) | (at > part.last)).any()):
            raise UsageError(
                f"there is no token {position} in a prompt of {int(part.last.min()) + 1} tokens. Count from 0, or "
                "from -1 backwards."
            )
        row = torch.arange(len(at), device=at.device)
        streams = [*(layer.attn_in for layer in part.run.layers), part.run.final_in]
        parts.append(model.unembed(torch.stack([x[row, at] for x in streams], 1)))
    return torch.cat(parts)


def _place(model: Transformer, node: str) -> tuple[int, int]:
    """The layer and the head of a node, as in ``Graph.place_of_source``; (-1, ...) for ``input``."""
    return model.graph.place_of_source(model.graph.source(node))


def _runs(model: Transformer, prompts: Prompts) -> Iterator[PromptRun]:
    """Run prompts, a few at a time, padded to the same length."""
    rows = prompt_ids([prompts] if isinstance(prompts, str) else prompts, model.tokenizer)
    if not rows or not all(rows):
        raise InputError("a prompt needs at least one token: got none.")
    ids = padded(rows)
    ends = torch.tensor([len(row) - 1 for row in rows], device=model.device)
    info = model.position_info(0, ids.shape[1])
    for at in range(0, len(rows), defaults.PROMPTS_AT_ONCE):
        part = slice(at, at + defaults.PROMPTS_AT_ONCE)
        x = model.embed(ids[part].to(model.device))
        yield PromptRun(x, model.run(x), info, ends[part])
