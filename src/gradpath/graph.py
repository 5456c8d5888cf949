"""The computational graph of a decoder-only transformer: its nodes, its edges and their names.

A *source* writes to the residual stream, a *target* reads from it, an edge joins a source to a
later target and is written ``a0.h3->a5.h1<k>``. With L layers of H heads::

    sources  input, then per layer  a{l}.h{h} (H of them), m{l}              1 + L (H + 1)
    targets  per layer  a{l}.h{h}<q>, <k>, <v> (3 H), m{l}; then logits      L (3 H + 1) + 1

``input`` is the token embedding alone. Positional embeddings and biases are the same in the clean
and in the corrupted run, so they belong to no edge. An attention target reads every source of the
layers below; an MLP reads those and the heads of its own layer, unless attention and MLP run in
parallel; ``logits`` reads everything.

Axis names, used in every shape of the package: ``batch`` examples, ``pos`` token positions,
``d_model`` the residual stream, ``head`` attention heads, ``d_head`` the width of one, ``source`` and
``target`` as above, ``vocab`` tokens, ``point`` points of a path, ``row`` = (batch, pos) flattened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from gradpath.errors import InputError

QKV = ("q", "k", "v")


@dataclass(frozen=True)
class Graph:
    """The nodes and edges of a transformer: their names, their indices, and the mask of all edges.

    Args:
        n_layers: The number of layers.
        n_heads: The number of attention heads in a layer.
        parallel: Whether attention and MLP of a layer read the same residual stream.

    >>> graph = Graph(n_layers=12, n_heads=12)
    >>> graph.n_edges
    32491
    >>> graph.edge(*graph.index("a0.h3->a5.h1<k>"))
    'a0.h3->a5.h1<k>'
    """

    n_layers: int
    n_heads: int
    parallel: bool = False

    @property
    def shape(self) -> str:
        """The shape of the model in words, for messages: ``30 layers of 9 heads``."""
        return f"{self.n_layers} {'parallel ' if self.parallel else ''}layers of {self.n_heads} heads"

    @property
    def n_sources(self) -> int:
        """The number of sources."""
        return 1 + self.n_layers * (self.n_heads + 1)

    @property
    def n_targets(self) -> int:
        """The number of targets."""
        return self.n_layers * (3 * self.n_heads + 1) + 1

    @cached_property
    def n_edges(self) -> int:
        """The number of edges."""
        return int(self.sources_before_target.sum())

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The names of all sources, in order."""
        names = ["input"]
        for layer in range(self.n_layers):
            names += [f"a{layer}.h{head}" for head in range(self.n_heads)] + [f"m{layer}"]
        return tuple(names)

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """The names of all targets, in order."""
        names = []
        for layer in range(self.n_layers):
            names += [f"a{layer}.h{head}<{x}>" for x in QKV for head in range(self.n_heads)]
            names.append(f"m{layer}")
        return (*names, "logits")

    def source_head(self, layer: int, head: int = 0) -> int:
        """The index of the source ``a{layer}.h{head}``; the heads of a layer are consecutive."""
        return 1 + layer * (self.n_heads + 1) + head

    def source_mlp(self, layer: int) -> int:
        """The index of the source ``m{layer}``."""
        return self.source_head(layer, self.n_heads)

    def source_heads(self, layer: int) -> slice:
        """The indices of the sources that are heads of a layer."""
        return slice(self.source_head(layer), self.source_mlp(layer))

    def target_head(self, layer: int, qkv: int = 0, head: int = 0) -> int:
        """The index of the target ``a{layer}.h{head}<q|k|v>``; the 3 H of a layer are consecutive."""
        return layer * (3 * self.n_heads + 1) + qkv * self.n_heads + head

    def target_mlp(self, layer: int) -> int:
        """The index of the target ``m{layer}``."""
        return self.target_head(layer, 3)

    def target_heads(self, layer: int) -> slice:
        """The indices of the targets of a layer's heads: all queries, all keys, all values."""
        return slice(self.target_head(layer), self.target_mlp(layer))

    def targets_of_heads(self, layer: int, heads: Sequence[int]) -> list[int]:
        """The indices of the targets of some heads of a layer: their queries, then their keys, then their values."""
        return [self.target_head(layer, qkv, head) for qkv in range(len(QKV)) for head in heads]

    def layer_of_target(self, target: int) -> int:
        """The layer of a target; n_layers for ``logits``."""
        return target // (3 * self.n_heads + 1)

    @cached_property
    def layers_of_targets(self) -> Int[Tensor, " target"]:
        """The layer of each target; n_layers for ``logits``."""
        return torch.arange(self.n_targets, device="cpu") // (3 * self.n_heads + 1)

    def place_in_layer(self, target: int) -> tuple[int, int]:
        """Query, key or value (0, 1, 2) and the head of a target; (3, 0) for the MLP."""
        return divmod(target % (3 * self.n_heads + 1), self.n_heads)

    def place_of_source(self, source: int) -> tuple[int, int]:
        """The layer and the head of a source other than ``input``; the head is n_heads for an MLP."""
        return divmod(source - 1, self.n_heads + 1)

    @property
    def logits(self) -> int:
        """The index of the target ``logits``."""
        return self.n_targets - 1

    @cached_property
    def sources_before_target(self) -> Tensor:
        """The number of sources that each target reads, (target,). They are always the first ones."""
        counts = []
        for layer in range(self.n_layers):
            below = self.source_head(layer)
            counts += [below] * (3 * self.n_heads)
            counts.append(below if self.parallel else self.source_mlp(layer))
        counts.append(self.n_sources)
        return torch.tensor(counts, device="cpu")

    @cached_property
    def mask(self) -> Bool[Tensor, "source target"]:
        """Which (source, target) pairs are edges."""
        return torch.arange(self.n_sources, device="cpu")[:, None] < self.sources_before_target

    @cached_property
    def node_of_target(self) -> Tensor:
        """The source index of each target's node, (target,); n_sources for ``logits``."""
        nodes = [self._source_index.get(node_of(target), self.n_sources) for target in self.targets]
        return torch.tensor(nodes, device="cpu")

    def sources_by_layer(self, values: Shaped[Tensor, "*axes source"]) -> Shaped[Tensor, "*axes layer head_or_mlp"]:
        """A view of the values of all sources but ``input``: for each layer its heads, then its MLP."""
        return values[..., 1:].view(*values.shape[:-1], self.n_layers, -1)

    @property
    def n_pairs(self) -> int:
        """The number of (source, target) pairs, edges or not: the size of the flattened matrix."""
        return self.n_sources * self.n_targets

    def flattened(self, index: Int[Tensor, "edge 2"]) -> Int[Tensor, " edge"]:
        """The positions of (source, target) pairs in the flattened (source, target) matrix."""
        return index[:, 0] * self.n_targets + index[:, 1]

    def unflattened(self, flat: Int[Tensor, " edge"]) -> Int[Tensor, "edge 2"]:
        """Positions in the flattened (source, target) matrix as (source, target)."""
        return torch.stack([flat // self.n_targets, flat % self.n_targets], 1)

    def mask_of(self, flat: Int[Tensor, " edge"]) -> Bool[Tensor, " flat"]:
        """True at these positions of the flattened (source, target) matrix."""
        mask = torch.zeros(self.n_pairs, dtype=torch.bool, device="cpu")
        mask[flat] = True
        return mask

    def among(self, nodes: Sequence[int]) -> Bool[Tensor, "source target"]:
        """The mask of all edges among some nodes, given as sources, and ``input`` and ``logits``."""
        inside = torch.zeros(self.n_sources + 1, dtype=torch.bool, device="cpu")  # the last one is ``logits``
        inside[[0, self.n_sources, *nodes]] = True
        return self.mask & inside[:-1, None] & inside[self.node_of_target]

    @cached_property
    def _source_index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.sources)}

    @cached_property
    def _target_index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.targets)}

    def to_json(self) -> dict[str, int]:
        """The shape as values that JSON can store."""
        return {"n_layers": self.n_layers, "n_heads": self.n_heads, "parallel": self.parallel}

    def layer_of(self, node: str) -> int:
        """The layer of a node by name: -1 for ``input``, n_layers for ``logits``."""
        if node in ("input", "logits"):
            return -1 if node == "input" else self.n_layers
        return int(node[1:].partition(".")[0])

    def edge(self, source: int, target: int) -> str:
        """The name of an edge."""
        return f"{self.sources[source]}->{self.targets[target]}"

    def edge_at(self, flat: int) -> str:
        """The name of the edge at a position of the flattened (source, target) matrix."""
        return self.edge(*divmod(flat, self.n_targets))

    def source(self, node: str) -> int:
        """The index of a source by name. The error for an unknown name says how nodes are named."""
        if node not in self._source_index:
            raise InputError(
                f"a model with {self.n_layers} layers of {self.n_heads} heads has no node {node!r} that writes: "
                "write input, a head as a0.h0 or an MLP as m0."
            )
        return self._source_index[node]

    def index(self, edge: str) -> tuple[int, int]:
        """The (source, target) indices of an edge by name."""
        if not isinstance(edge, str):  # a name may come from any file
            raise InputError(f"an edge is written as 'source->target': got {edge!r}.")
        source, arrow, target = edge.partition("->")
        if not arrow or source not in self._source_index or target not in self._target_index:
            raise InputError(
                f"a model with {self.n_layers} layers of {self.n_heads} heads has no edge {edge!r}: "
                "write it as source->target, for example 'input->a0.h0<q>' or 'a0.h0->m0'."
            )
        pair = self._source_index[source], self._target_index[target]
        if pair[0] >= int(self.sources_before_target[pair[1]]):
            raise InputError(f"there is no edge {edge!r}: {target} does not read what {source} writes.")
        return pair


def kind(target: str) -> str:
    """What an edge into this target feeds: q, k, v, mlp or logits."""
    if target == "logits":
        return "logits"
    return target[-2] if target.endswith(">") else "mlp"


def node_of(target: str) -> str:
    """The node that a target belongs to: its name without q, k or v."""
    return target.partition("<")[0]


MAX_PAIRS = 10**9  # (source, target) pairs: a model of 126 layers with 128 heads has 0.8 of it


def graph_from_json(shape: Any) -> Graph:
    """The graph of ``Graph.to_json``, from a file that may contain anything."""
    names = ("n_layers", "n_heads", "parallel")
    if not isinstance(shape, Mapping) or not all(name in shape for name in names):
        raise InputError(f"the model's shape must be an object with {', '.join(names)}: got {shape!r}.")
    layers, heads, parallel = (shape[name] for name in names)
    valid = type(layers) is int and type(heads) is int and type(parallel) is bool and layers > 0 and heads > 0
    if not valid or Graph(layers, heads, parallel).n_pairs > MAX_PAIRS:
        raise InputError(f"{layers!r} layers of {heads!r} heads (parallel: {parallel!r}) cannot be a model.")
    return Graph(layers, heads, parallel)


def pruned(graph: Graph, mask: Bool[Tensor, "source target"]) -> Bool[Tensor, "source target"]:
    """The edges of ``mask`` that lie on a path from ``input`` to ``logits``.

    Nodes without an incoming or without an outgoing edge are removed with their edges, until none is left. ``input``
    needs no incoming edge and ``logits`` no outgoing one. An edge into a head's q, k or v counts as incoming. The graph
    has no cycles, so two sweeps over the layers suffice.
    """
    reached = torch.zeros(graph.n_sources, dtype=torch.bool, device="cpu")  # from input
    reached[0] = True
    for layer in range(graph.n_layers):
        reads = (mask[:, graph.target_heads(layer)] & reached[:, None]).any(0)  # of q, k and v of each head
        reached[graph.source_heads(layer)] = reads.view(3, -1).any(0)
        reached[graph.source_mlp(layer)] = (mask[:, graph.target_mlp(layer)] & reached).any()

    leading = torch.zeros(graph.n_targets, dtype=torch.bool, device="cpu")  # to logits
    leading[graph.logits] = True
    for layer in reversed(range(graph.n_layers)):
        leading[graph.target_mlp(layer)] = (mask[graph.source_mlp(layer)] & leading).any()
        leading[graph.target_heads(layer)] = (mask[graph.source_heads(layer)] & leading).any(1).repeat(3)
    return mask & reached[:, None] & leading
