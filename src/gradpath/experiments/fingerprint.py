"""Short names for things that a result depends on: a model's weights, a task's tokens."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from gradpath.model.transformer import Transformer
from gradpath.tasks import Task, encode

# Numbers taken from either end of every weight. Any training moves all of them, and reading the whole of a
# large model would take longer than a small experiment.
_SAMPLE = 256


def of_weights(model: Transformer) -> str:
    """Changes whenever the model does, whatever its name or folder says."""
    seen = sha256(repr((model.arch, model.rotary_gain)).encode())
    parts: list[Any] = [model.embedding, model.unembedding, model.final_gain, model.final_shift]
    parts += [model.positions, model.rotary]
    parts += [value for layer in model.layers for _, value in sorted(vars(layer).items())]
    for part in parts:
        if isinstance(part, Tensor):
            flat = part.detach().flatten()
            some = torch.cat([flat[:_SAMPLE], flat[-_SAMPLE:]]).float().cpu()
            seen.update(repr((tuple(part.shape), some.tolist())).encode())
        else:
            seen.update(repr(part).encode())
    return seen.hexdigest()[:16]


def of_task(task: Task, model: Transformer) -> str:
    """Changes with the prompts, their tokens (so with BOS), the labels and the metric."""
    pairs = encode(task, model.tokenizer)
    labels = pairs.labels.tolist() if isinstance(pairs.labels, Tensor) else [x.tolist() for x in pairs.labels]
    metric = task.about.get("metric", getattr(task.metric, "__name__", "custom"))
    content = (pairs.clean.tolist(), pairs.corrupted.tolist(), pairs.last.tolist(), labels, metric)
    return sha256(repr(content).encode()).hexdigest()[:16]
