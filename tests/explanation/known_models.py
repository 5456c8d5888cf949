"""Attention-only models whose heads do one thing each, made by hand, with one-hot tokens and positions."""

from __future__ import annotations

import torch

from gradpath.model.architecture import Architecture, Layer
from gradpath.model.transformer import Transformer

TOKENS, POSITIONS = 12, 26
TOKEN, POSITION = slice(0, TOKENS), slice(TOKENS, TOKENS + POSITIONS)
BEFORE = slice(POSITION.stop, POSITION.stop + TOKENS)  # where a previous-token head writes
OUT = slice(BEFORE.stop, BEFORE.stop + TOKENS)  # what the unembedding reads
SHARP = 60.0


def empty(n_layers: int, n_heads: int) -> Transformer:
    """Every token writes itself and its position; heads and MLPs write nothing."""
    width, d_head = OUT.stop, POSITIONS
    arch = Architecture(
        "known", n_layers, n_heads, n_heads, d_head, width, "rms", 1e-6, "relu", False, norm_before=False
    )
    layers = tuple(
        Layer(
            w_qkv=torch.zeros(3 * n_heads * d_head, width),
            b_qkv=None,
            w_o=torch.zeros(width, n_heads * d_head),
            b_o=None,
            w_in=torch.zeros(2, width),
            b_in=None,
            w_out=torch.zeros(width, 2),
            b_out=None,
            scale=1.0,
            window=None,
        )
        for _ in range(n_layers)
    )
    embedding, unembedding, positions = (torch.zeros(n, width) for n in (TOKENS, TOKENS, POSITIONS))
    embedding[:, TOKEN] = torch.eye(TOKENS)
    unembedding[:, OUT] = torch.eye(TOKENS)
    positions[:, POSITION] = torch.eye(POSITIONS)
    gain = torch.ones(width)
    return Transformer(arch, layers, embedding, unembedding, gain, positions=positions, name="known")


def weights(model: Transformer, layer: int, head: int) -> tuple[torch.Tensor, ...]:
    """The query, key and value matrices of a head, (d_head, d_model), and its output matrix, as views."""
    a, own = model.arch, model.layers[layer]
    q, k, v = own.w_qkv.view(3, a.n_heads, a.d_head, a.d_model)[:, head]
    return q, k, v, own.w_o.view(a.d_model, a.n_heads, a.d_head)[:, head]


def copy_token(v: torch.Tensor, o: torch.Tensor, to: slice) -> None:
    """Let a head write the token that it attends to."""
    v[:TOKENS, TOKEN] = torch.eye(TOKENS)
    o[to, :TOKENS] = torch.eye(TOKENS)


def induction() -> Transformer:
    """a0.h0 is a previous-token head, a0.h1 looks for the same token, a1.h0 completes the induction, a1.h1 is idle."""
    model = empty(2, 2)
    q, k, v, o = weights(model, 0, 0)
    q[:, POSITION] = SHARP * torch.eye(POSITIONS)
    k[1:, POSITION] = torch.eye(POSITIONS)[:-1]  # the key of position j answers the query of j + 1
    copy_token(v, o, BEFORE)
    q, k, v, o = weights(model, 0, 1)
    q[:TOKENS, TOKEN] = SHARP * torch.eye(TOKENS)
    k[:TOKENS, TOKEN] = torch.eye(TOKENS)
    q, k, v, o = weights(model, 1, 0)
    q[:TOKENS, TOKEN] = SHARP * torch.eye(TOKENS)
    k[:TOKENS, BEFORE] = torch.eye(TOKENS)
    copy_token(v, o, OUT)
    return model


FIRST, SECOND = 10, 11  # tokens that ask for the name at position 1 or 2


def name_mover() -> Transformer:
    """a0.h0 attends from the last token, which says where, to one of two names, and raises it."""
    model = empty(1, 1)
    q, k, v, o = weights(model, 0, 0)
    q[0, FIRST] = q[1, SECOND] = SHARP
    k[0, POSITION.start + 1] = k[1, POSITION.start + 2] = 1
    copy_token(v, o, OUT)
    return model
