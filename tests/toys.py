"""Models small enough to be computed by hand: nothing is written but what a test asks for."""

from __future__ import annotations

import torch

from gradpath.model.architecture import Architecture, Layer
from gradpath.model.transformer import Transformer
from gradpath.tasks.task import Task

CLEAN, CORRUPTED, RIGHT, WRONG = 0, 1, 2, 3  # tokens
BIG = 1e5  # written to dimension 0 by every token, so that the last norm is the same for all of them
OUT = 1  # the dimension that the metric reads


def toy(n_layers: int, *, d_model: int = 6, activation: str = "relu", d_head: int = 1) -> Transformer:
    """A model of one head and two neurons per layer, all weights zero, in double precision.

    Attention and MLP read the residual stream as it is. The metric on ``TASK`` is what stands in dimension
    ``OUT`` at the last position.
    """

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=torch.float64)

    arch = Architecture(
        family="toy",
        n_layers=n_layers,
        n_heads=1,
        n_kv_heads=1,
        d_head=d_head,
        d_model=d_model,
        norm="rms",
        norm_eps=0.0,
        activation=activation,
        gated=False,
        norm_before=False,
    )
    layers = tuple(
        Layer(
            w_qkv=zeros(3 * d_head, d_model),
            b_qkv=zeros(3 * d_head),
            w_o=zeros(d_model, d_head),
            b_o=None,
            w_in=zeros(2, d_model),
            b_in=zeros(2),
            w_out=zeros(d_model, 2),
            b_out=None,
            scale=1.0,
            window=None,
        )
        for _ in range(n_layers)
    )
    embedding, unembedding = zeros(4, d_model), zeros(4, d_model)
    embedding[:, 0] = BIG
    unembedding[RIGHT, OUT] = 1
    gain = zeros(d_model) + BIG / d_model**0.5
    return Transformer(arch, layers, embedding, unembedding, gain, name="toy")


TASK = Task(torch.tensor([[CLEAN]]), torch.tensor([[CORRUPTED]]), torch.tensor([[RIGHT, WRONG]]))


def saturated() -> Transformer:
    """m0 writes h = 2 for the clean token and 0 for the corrupted; m1 writes -relu(1 - h), flat at h = 2."""
    model = toy(2)
    model.embedding[CLEAN, 2] = 2
    first, second = model.layers
    first.w_in[0, 2] = 1
    first.w_out[3, 0] = 1
    second.w_in[0, 3], second.b_in[0] = -1, 1
    second.w_out[OUT, 0] = -1
    return model


def at_its_lowest() -> Transformer:
    """m0 is silu(x), flat and lowest at the clean token's x = -1.278, and 0 at the corrupted one's."""
    model = toy(1, activation="silu")
    model.embedding[CLEAN, 2] = -1.2784645427610738
    model.layers[0].w_in[0, 2] = 1
    model.layers[0].w_out[OUT, 0] = 1
    return model


def certain() -> Transformer:
    """A head that looks at itself, by a query of 50 against keys of 1 and -1, and would turn round at -50.

    The prompt has two tokens; the head of layer 0 writes what it looks at, 3 or 0, to the output. Its query
    is what the last token brings in dimension 2, so a corrupted one looks at the first token instead.
    """
    model = toy(1)
    model.embedding[CLEAN, 2], model.embedding[CORRUPTED, 2] = 50, -50
    model.embedding[RIGHT, 3], model.embedding[[CLEAN, CORRUPTED], 3] = -1, 1  # the key
    model.embedding[[CLEAN, CORRUPTED], 4] = 3  # the value
    layer = model.layers[0]
    layer.w_qkv[0, 2], layer.w_qkv[1, 3], layer.w_qkv[2, 4] = 1, 1, 1
    layer.w_o[OUT, 0] = 1
    return model


def cancelling() -> Transformer:
    """m0 writes h = 1.278 (clean) or 0, which reaches the output as h - silu(h), whose slope is 0 there."""
    model = toy(2, activation="silu")
    first, second = model.layers
    # silu(x) - silu(-x) = x, so the two neurons of m0 pass x on.
    model.embedding[CLEAN, 2] = 1.2784645427610738
    first.w_in[0, 2], first.w_in[1, 2] = 1, -1
    first.w_out[3] = torch.tensor([1, -1])
    first.w_out[OUT] = torch.tensor([1, -1])
    second.w_in[0, 3] = 1
    second.w_out[OUT, 0] = -1
    return model
