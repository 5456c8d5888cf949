"""How the targets of a circuit read: what the corrupted run gives them, and what the kept edges bring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from gradpath.model.transformer import beside


@dataclass(frozen=True)
class Reader:
    """Some targets that read from the same sources: which they are and which edges feed them."""

    targets: list[int]  # indices among the 3 H of a layer, in order; [0] for an MLP or the logits
    n_sources: int  # the live sources that come before them
    edges: Tensor | tuple[Tensor, Tensor]  # (target, live source), or as lists: see ``of``

    @classmethod
    def of(cls, targets: list[int], edges: Tensor) -> Reader:
        """Take the edges, 1 where one is in the circuit, in the form in which they are quicker to sum over.

        On a CPU adding up a few rows beats a product with a matrix that is nearly empty, by up to ten
        times; elsewhere, and for circuits that hold most edges, the product is better. The lists, of
        sources and of where each target's begin, also take a fraction of the memory.
        """
        n_sources = edges.shape[1]
        few = edges.device.type == "cpu" and edges.numel() > 0 and float(edges.mean()) < 0.5
        if not few:
            return cls(targets, n_sources, edges)
        sizes = edges.sum(1).long()
        return cls(targets, n_sources, (edges.nonzero()[:, 1].clone(), sizes.cumsum(0) - sizes))

    def read(self, base: Tensor, deltas: Tensor, spans: Tensor | None = None) -> Tensor:
        """What the targets read: the corrupted input and what the kept edges bring, (target, *base)."""
        n_targets = len(self.targets)
        if not self.n_sources:
            return base.expand(n_targets, *base.shape)
        rows = deltas[: self.n_sources].flatten(1)
        if isinstance(self.edges, Tensor):
            brought = self.edges @ rows
        else:
            sources, begins = self.edges
            brought = F.embedding_bag(sources, rows, begins, mode="sum")
        return beside(brought, base).view(n_targets, *base.shape).add_(base)

    @property
    def kept(self) -> tuple[Tensor, Tensor]:
        """The edges as (target, source), both counted among those of this reader."""
        if isinstance(self.edges, Tensor):
            target, source = self.edges.nonzero().unbind(1)
            return target, source
        sources, begins = self.edges
        sizes = torch.diff(begins, append=begins.new_tensor([len(sources)]))
        return torch.arange(len(begins), device=begins.device).repeat_interleave(sizes), sources


@dataclass(frozen=True)
class SpanReader:
    """Targets that read other edges at other spans of a prompt: one reader for each span."""

    parts: Sequence[Reader]

    @property
    def targets(self) -> list[int]:
        return self.parts[0].targets

    def read(self, base: Tensor, deltas: Tensor, spans: Tensor | None = None) -> Tensor:
        """The same as of one reader; ``spans`` has the span of every position of ``base``."""
        assert spans is not None, "a circuit of positions needs prompts whose positions are named"
        read = base.expand(len(self.targets), *base.shape).clone()
        for i, part in enumerate(self.parts):
            here = spans == i
            if part.n_sources and bool(here.any()):
                there = beside(here, base)
                read[:, there] = part.read(base[there], deltas[: part.n_sources, here])
        return read
