"""Where the layers of a model go that is too large for one device: in order, each device to its share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradpath.errors import InputError
from gradpath.model.transformer import Transformer

AUTO = "auto"


def spread_over(model: Transformer, devices: Sequence[torch.device], room: Sequence[float]) -> Transformer:
    """The model with its layers on the devices, in proportion to the room that each has."""
    sizes = [_bytes(layer) for layer in model.layers]
    sizes[0] += model.embedding.nbytes
    sizes[-1] += model.unembedding.nbytes
    return model.spread([devices[i] for i in shares(sizes, room)])


def shares(sizes: Sequence[int], room: Sequence[float]) -> list[int]:
    """For each of some things in a row the number of the place it goes to; places are filled in turn.

    >>> shares([1, 1, 1, 1], [1, 1])
    [0, 0, 1, 1]
    >>> shares([1, 1, 1, 1], [3, 1])
    [0, 0, 0, 1]
    """
    whole, part, ends = sum(sizes), sum(room), list[float]()
    for one in room:
        ends.append((ends[-1] if ends else 0.0) + one / part)
    found, before = [], 0.0
    for size in sizes:
        middle = (before + size / 2) / whole
        found.append(next((i for i, end in enumerate(ends) if middle < end), len(ends) - 1))
        before += size
    return found


def gpus(model: Transformer) -> tuple[list[torch.device], list[float]]:
    """The GPUs of this machine and the bytes that each has free; refuses a model that they cannot hold."""
    from accelerate.utils import get_max_memory

    room = {device: free for device, free in get_max_memory().items() if isinstance(device, int)}
    needed = sum(map(_bytes, model.layers)) + model.embedding.nbytes + model.unembedding.nbytes
    if room and needed > sum(room.values()):
        raise InputError(
            f"{model.name or 'the model'} takes {needed / 1e9:.1f} GB and the GPUs here have "
            f"{sum(room.values()) / 1e9:.1f} GB free. Use --dtype bfloat16, or a machine with more."
        )
    return [torch.device(device) for device in room], [float(free) for free in room.values()]


def _bytes(thing: object) -> int:
    return sum(x.nbytes for x in vars(thing).values() if isinstance(x, Tensor))
