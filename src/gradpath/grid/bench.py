"""Short names for things that a result depends on: a model's weights, a task's tokens.

A model on the bench: it, what was asked for, and the store of what is finished.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from gradpath._version import __version__
from gradpath.ablation import CORRUPTED
from gradpath.attribution.attribute import attribute
from gradpath.circuit import Circuit
from gradpath.errors import UsageError
from gradpath.evaluation import mib
from gradpath.grid.request import GRIDS, MethodSpec, Request
from gradpath.grid.store import Key, Store
from gradpath.model.transformer import Transformer
from gradpath.paper.published import Published, published
from gradpath.runtime import distributed
from gradpath.scores import Scores
from gradpath.selection import select_many
from gradpath.selection.ranking import edge_count
from gradpath.sweep import Progress
from gradpath.tasks import Task, encode, load_task

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


@dataclass
class Bench:
    """Tasks and scores for one model, each made once and remembered."""

    model: Transformer
    request: Request
    store: Store
    _tasks: dict[tuple[str, str], Task] = field(default_factory=dict)
    _digests: dict[tuple[str, str], str] = field(default_factory=dict)

    @cached_property
    def weights(self) -> str:
        return of_weights(self.model)

    @cached_property
    def paper(self) -> Published | None:
        """The paper's figures, if the model is one of its own."""
        return published(self.model)

    @property
    def title(self) -> str:
        """The model's name without the folders in front of it."""
        return self.model.name.rstrip("/").rpartition("/")[2] or self.model.arch.family

    def task(self, name: str, split: str) -> Task:
        """The examples to attribute ("train") or to measure ("test"): as many as were asked for, or all."""
        if (name, split) not in self._tasks:
            self._tasks[name, split] = self._load(name, split)
        return self._tasks[name, split]

    def _load(self, name: str, split: str) -> Task:
        asked = self.request
        common: dict[str, Any] = {"seed": asked.seed, "split": split, "data": asked.data}
        named = None if asked.data is not None and name == "custom" else name
        try:
            return load_task(named, self.model, n=asked.examples, **common)
        except UsageError as too_few:
            # A task may have fewer pairs under this tokenizer: then all there are, and tables say how many.
            every = load_task(named, self.model, n=None, **common)
            if len(every) < asked.examples:
                return every
            raise too_few from None

    def task_key(self, name: str, split: str) -> dict[str, Any]:
        """What a result on a task depends on: enough to tell, and to find the examples again."""
        if (name, split) not in self._digests:
            self._digests[name, split] = of_task(self.task(name, split), self.model)
        task = self.task(name, split)
        return {
            "version": __version__,
            "model": self.model.name,
            "weights": self.weights,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "task": task.name,
            "split": split,
            "seed": self.request.seed,
            "examples": len(task),
            "tokens": self._digests[name, split],
        }

    def scores_key(self, task: str, method: MethodSpec) -> Key:
        own: dict[str, Any] = {"kind": "scores", "method": method.name, "options": method.options}
        if self.request.ablation != CORRUPTED:
            own["ablation"] = self.request.ablation
        return {**self.task_key(task, "train"), **own}

    def scores(self, task: str, method: MethodSpec, progress: Progress | None = None) -> Scores:
        """A method's scores: from the store, or computed and kept there."""
        key = self.scores_key(task, method)
        found = self.store.scores(key)
        if found is not None:
            return found
        begin = time.process_time()
        scores = attribute(
            self.model,
            self.task(task, "train"),
            method.name,
            batch_size=self.request.batch_size,
            memory=self.request.memory,
            progress=progress,
            ablation=self.request.ablation,
            **method.options,
        )
        return self.store.keep_scores(key, scores, distributed.total_over_ranks(time.process_time() - begin))

    def circuits(self, scores: Scores, task: str, how: str, counts: Sequence[int]) -> list[Circuit]:
        """Circuits of several sizes; ways that measure do so on the examples of the scores."""
        train = self.task(task, "train")
        return select_many(scores, counts, how=how, model=self.model, task=train, limits=self.request.limits)

    def sparsities(self, task: str) -> tuple[float, ...]:
        """The sparsities asked for; for a model of the paper those of its own table as well."""
        if self.request.sparsities is not None:
            return self.request.sparsities
        grid = GRIDS[self.request.grid]
        if self.request.grid == "paper" and self.paper is not None:
            own = self.paper.sparsities(task)
            return own if self.paper.name != "gpt2" else grid
        return grid

    def edges(self, sparsity: float) -> int:
        if self.request.measures_mib and sparsity in GRIDS["mib"]:
            return mib.edges_at(self.model.graph, round(1 - sparsity, 6))
        return edge_count(self.model.graph.n_edges, None, sparsity)
