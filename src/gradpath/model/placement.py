"""Placement of a model's layers on several devices: in order, each device gets its share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from gradpath.errors import InputError
from gradpath.model.fingerprint import fields_of
from gradpath.model.transformer import Transformer

AUTO = "auto"


def spread_over(model: Transformer, devices: Sequence[torch.device], room: Sequence[float]) -> Transformer:
    """The model with its layers on the devices, in proportion to the room on each."""
    sizes = [_bytes(layer) for layer in model.layers]
    sizes[0] += model.embedding.nbytes
    sizes[-1] += model.unembedding.nbytes
    return model.spread([devices[i] for i in shares(sizes, room)])


def shares(sizes: Sequence[int], room: Sequence[float]) -> list[int]:
    """The index of the device for each of a sequence of sizes; devices are filled one after the other.

    >>> shares([1, 1, 1, 1], [1, 1])
    [0, 0, 1, 1]
    >>> shares([1, 1, 1, 1], [3, 1])
    [0, 0, 0, 1]
    """
    ends = list(accumulate(share / sum(room) for share in room))
    middles = [(end - size / 2) / sum(sizes) for size, end in zip(sizes, accumulate(sizes), strict=True)]
    return [next((i for i, end in enumerate(ends) if middle < end), len(ends) - 1) for middle in middles]


def gpus(model: Transformer) -> tuple[list[torch.device], list[float]]:
    """The GPUs of this machine and the free bytes of each; refuses a model that does not fit."""
    from accelerate.utils import get_max_memory

    room = {device: free for device, free in get_max_memory().items() if isinstance(device, int)}
    needed = sum(map(_bytes, model.layers)) + model.embedding.nbytes + model.unembedding.nbytes
    if room and needed > sum(room.values()):
        raise InputError(
            f"{model.name or 'the model'} takes {needed / 1e9:.1f} GB and the GPUs here have "
            f"{sum(room.values()) / 1e9:.1f} GB free. Use --dtype bfloat16, or a machine with more."
        )
    return [torch.device(device) for device in room], [float(free) for free in room.values()]


def _bytes(weights: object) -> int:
    return sum(x.nbytes for x in fields_of(weights).values() if isinstance(x, Tensor))
