"""Random circuits, and prompts of unequal lengths to run them on."""

from __future__ import annotations

import torch
from small_models import prompts
from torch import Tensor

from gradpath.circuit import Circuit
from gradpath.graph import Graph

MIXED = prompts([6, 9, 6, 7, 9], [[0], [4], [2, 3, 5], [6], [1, 8]])


def circuit_of(graph: Graph, mask: Tensor) -> Circuit:
    index = mask.nonzero()
    return Circuit(graph, index, torch.ones(len(index)))


def random_mask(graph: Graph, share: float, seed: int = 0) -> Tensor:
    return graph.mask & (torch.rand(graph.mask.shape, generator=torch.Generator().manual_seed(seed)) < share)
