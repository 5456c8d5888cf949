"""Short names for things that a result depends on: a model's weights, a task's tokens."""

from __future__ import annotations

from dataclasses import fields
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from gradpath.model.transformer import Transformer
from gradpath.tasks import Task, encode

# Numbers taken from either end of every weight. Any training moves all of them, and reading the whole of a
# large model would take longer than a small experiment.
_SAMPLE = 256
# What a model may have beside its layers, counted only where it has it.
_LATER = ("embedding_scale", "unembedding_bias")


def of_weights(model: Transformer) -> str:
    """Changes whenever the model does, whatever its name or folder says."""
    gains = [rotary.gain for rotary in model.rotary] or [1.0]
    shape = ", ".join(f"{name}={value!r}" for name, value in _chosen(model.arch).items())
    seen = sha256(f"(Architecture({shape}), {', '.join(map(repr, gains))})".encode())
    parts: list[Any] = [model.embedding, model.unembedding, model.final_gain, model.final_shift]
    parts += [model.positions]
    parts += [rotary.frequencies for rotary in model.rotary] if model.rotary else [None]
    parts += [value for layer in model.layers for _, value in sorted(_chosen(layer).items())]
    more = {name: value for name, value in _chosen(model).items() if name in _LATER}
    parts += [value for _, value in sorted(more.items())]
    for part in parts:
        if isinstance(part, Tensor):
            flat = part.detach().flatten()
            some = torch.cat([flat[:_SAMPLE], flat[-_SAMPLE:]]).float().cpu()
            seen.update(repr((tuple(part.shape), some.tolist())).encode())
        else:
            seen.update(repr(part).encode())
    return seen.hexdigest()[:16]


def _chosen(thing: Any) -> dict[str, Any]:
    """A dataclass's values but for those left at their default: a new choice renames no result without it."""
    values = {field.name: (getattr(thing, field.name), field.default) for field in fields(thing)}
    return {name: value for name, (value, default) in values.items() if value is not default}


def of_task(task: Task, model: Transformer) -> str:
    """Changes with the prompts, their tokens (so with BOS), the labels and the metric."""
    pairs = encode(task, model.tokenizer)
    labels = pairs.labels.tolist() if isinstance(pairs.labels, Tensor) else [x.tolist() for x in pairs.labels]
    metric = task.about.get("metric", getattr(task.metric, "__name__", "custom"))
    content = (pairs.clean.tolist(), pairs.corrupted.tolist(), pairs.last.tolist(), labels, metric)
    return sha256(repr(content).encode()).hexdigest()[:16]
