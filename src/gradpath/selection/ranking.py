"""Orders of edges: what a selection is, and the selections that use only the scores.

A selection is a function of the scores, a ``Context`` and its options. It returns an ``Order``: edges, best first, of
which the first n, pruned, are the circuit of n edges. So circuits of all sizes come from one order, and a smaller one
is a part of every larger one.

``top`` ranks by |score|, ``signed`` by the score itself, so that edges that raise the metric come first. ``greedy``
starts from ``logits``. Its frontier is every edge into a node of the circuit; it adds the edge of largest |score|, and
if the edge's source is new, the edges into that source join the frontier. Ties go to the lower index.

``random`` draws edges one by one. That is a weak baseline: in a large model they hardly ever form a path, so nothing
reaches ``logits`` and every circuit beats them. So the circuits of ``random-paths`` grow by whole paths, like the
random circuits of Shi et al. (2024, arXiv 2410.13032). A path begins at a random target of the circuit and goes
backwards, each time to a random source that the target reads and to a random q, k or v of that head, until it meets the
circuit or ``input``. The order has path after path; of a path that n edges do not complete, nothing is left after
pruning. (In the code of Shi et al. paths go forward from the input.)
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from gradpath import defaults
from gradpath.circuit import Circuit
from gradpath.errors import InputError, UsageError, whole_number
from gradpath.graph import Graph, pruned
from gradpath.model.transformer import Transformer
from gradpath.prepared import PreparedBatches
from gradpath.recipe import Recipe
from gradpath.registry import NamedFunction, Registry, owner_of, parse_options
from gradpath.scores import Scores
from gradpath.sweep import Limits
from gradpath.tasks.task import Task

Edges = Int[Tensor, " edge"]  # positions in the flattened (source, target) matrix
TRIES = 50  # paths in a row that add nothing, before single edges are added


@dataclass(frozen=True, eq=False)
class Sample:
    """The order of edges on some of the examples: one resample of a consensus.

    Args:
        edges: The edges whose order is the consensus, best first; later ones are the same in all samples.
        examples: The numbers of the examples.
    """

    edges: Edges
    examples: Int[Tensor, " example"]


@dataclass(frozen=True, eq=False)
class Order:
    """Edges, best first. ``order.circuit(n)`` and ``order[:n]`` are the circuit of the first n of them, pruned.

    Args:
        scores: The scores that the edges were selected by.
        edges: The positions of edges in the flattened matrix of the scores.
        selection: The selection with its options, such as ``acdc+threshold=0.01``.
        smallest: The smallest number of edges that the order was made for.
        size: The number of edges that the selection decided on, if it did.
        resamples: The number of resamples that was requested, or that this order is the consensus of.
        samples: The orders on these resamples, if it is one.
    """

    scores: Scores
    edges: Edges
    selection: str = ""
    smallest: int = 1
    size: int | None = None
    resamples: int | None = None
    samples: tuple[Sample, ...] = ()

    def __len__(self) -> int:
        return len(self.edges)

    def __repr__(self) -> str:
        return f"<Order of {len(self):,} edges by {self.selection or 'hand'}>"

    def __getitem__(self, part: slice) -> Circuit:
        if not isinstance(part, slice) or part.start or part.step not in (None, 1):
            raise UsageError(f"a circuit is the first edges of an order, such as order[:100]: got {part!r}.")
        return self.circuit(len(self) if part.stop is None else part.stop)

    def circuit(self, n: int, *, prune: bool = True) -> Circuit:
        """The circuit of the first ``n`` edges, by default pruned."""
        if n != self.size and not self.smallest <= n <= len(self):
            raise UsageError(
                f"this order of edges by {self.selection} was made for circuits of {self.smallest:,} to "
                f"{len(self):,} edges: {n:,} were requested. Select again with this size."
            )
        circuit = circuit_of(self.scores, self.edges[:n], selection=self.selection, prune=prune)
        if self.resamples is not None and circuit.recipe is not None:
            circuit = replace(circuit, recipe=circuit.recipe.changed(resamples=self.resamples))
        if not self.samples or n > len(self.samples[0].edges):
            return circuit
        inside = torch.stack([torch.isin(circuit.flat, sample.edges[:n]) for sample in self.samples])
        return replace(circuit, frequency=inside.float().mean(0))


def consensus(samples: Sequence[Sample]) -> Edges:
    """The edges by the mean logarithm of their ranks in all samples."""
    edges = samples[0].edges.sort().values
    ranks = [sample.edges.sort().indices.double().log1p() for sample in samples]
    return edges[torch.stack(ranks).sum(0).argsort(stable=True)]


@dataclass(frozen=True)
class Context:
    """What a selection may use besides the scores.

    Args:
        model: The model, if it is there.
        task: The examples that were attributed, if they are there.
        limits: The batch size and memory.
        prepared: These examples, if they are prepared already.
        sizes: The sizes that matter most, if there are any.
        smallest: The smallest size that will be used.
        largest: The largest size that will be used: a selection may leave out the edges beyond it.
        resamples: The number of resamples of the examples, for a selection that is a consensus.
    """

    model: Transformer | None = None
    task: Task | None = None
    limits: Limits = Limits()
    prepared: PreparedBatches | None = None
    sizes: tuple[int, ...] = ()
    smallest: int = 1
    largest: int | None = None
    resamples: int = defaults.RESAMPLES

    def examples(self, selection: str, scores: Scores) -> PreparedBatches:
        """The prepared examples, for a selection that measures circuits on them."""
        if self.prepared is not None:
            return self.prepared
        if self.model is None or self.task is None:
            raise NeedsModelError(
                f"the selection {selection!r} measures circuits while it selects: give it model= and task=, the "
                "examples that were attributed."
            )
        return PreparedBatches(self.model, self.task, scores.ablation, self.limits)


NOTHING = Context()


class NeedsModelError(UsageError):
    """A selection measures circuits, and has no model or no task."""


@dataclass(frozen=True)
class Selection(NamedFunction):
    """A registered selection."""

    kind = "selection"

    @property
    def n_inputs(self) -> int:
        return 2


SELECTIONS = Registry[Selection](
    "selection", [f"gradpath.selection.{module}" for module in ("ranking", "refine", "learned", "acdc")]
)


def selection(name: str) -> Callable[[Callable[..., Order]], Callable[..., Order]]:
    """Register a function as a selection.

    The function takes the scores and a ``Context``, and returns an ``Order``. Its keyword-only parameters are the
    options of the selection.

    Args:
        name: The name of the selection.

    Returns:
        A decorator.
    """

    def register(function: Callable[..., Order]) -> Callable[..., Order]:
        SELECTIONS.add(name, Selection(name, function), owner_of(function))
        return function

    return register


def find_selection(text: str) -> tuple[Selection, dict[str, Any]]:
    """The selection that a text names, and all its options, as in ``acdc+threshold=0.01``."""
    name, *texts = text.split("+")
    chosen = SELECTIONS.find(name)
    return chosen, chosen.options(parse_options(texts))


def _by_size(scores: Scores, values: Tensor) -> Order:
    """All edges by values, (source, target), largest first."""
    edges = scores.graph.mask.flatten().nonzero()[:, 0]
    return Order(scores, edges[values.flatten()[edges].sort(descending=True, stable=True).indices])


@selection("top")
def top(scores: Scores, context: Context = NOTHING) -> Order:
    """The n edges of largest |score|."""
    return _by_size(scores, scores.values.abs())


@selection("signed")
def signed(scores: Scores, context: Context = NOTHING) -> Order:
    """The n edges of largest score, sign included: those that raise the metric most."""
    return _by_size(scores, scores.values)


@selection("greedy")
def greedy(scores: Scores, context: Context = NOTHING) -> Order:
    """Search backwards from ``logits``: take the edge of largest |score| at the frontier, n times.

    Each target's sources are sorted once; the heap has one edge per target, so n edges cost n pops.
    """
    graph = scores.graph
    n = graph.n_edges if context.largest is None else context.largest
    size = scores.values.abs().masked_fill(~graph.mask, -1)
    ranked = size.sort(dim=0, descending=True, stable=True)
    sizes, sources = ranked.values.T.tolist(), ranked.indices.T.tolist()  # [target][rank]
    limits = graph.sources_before_target.tolist()
    targets_of = _targets_of_nodes(graph)
    heap: list[tuple[float, int, int, int]] = []  # (-|score|, source, target, rank)

    def offer(target: int, rank: int) -> None:
        if rank < limits[target]:
            heapq.heappush(heap, (-sizes[target][rank], sources[target][rank], target, rank))

    offer(graph.logits, 0)
    order, reached = list[tuple[int, int]](), set[int]()
    while len(order) < n:
        _, source, target, rank = heapq.heappop(heap)
        order.append((source, target))
        offer(target, rank + 1)
        if source not in reached:
            reached.add(source)
            for reader in targets_of[source]:
                offer(reader, 0)
    return Order(scores, _flattened(graph, order))


def _flattened(graph: Graph, edges: list[tuple[int, int]]) -> Edges:
    return graph.flattened(torch.tensor(edges, dtype=torch.long, device="cpu").view(-1, 2))


def _targets_of_nodes(graph: Graph) -> list[list[int]]:
    """The targets of each node, by source: none for ``input``."""
    readers: list[list[int]] = [[] for _ in range(graph.n_sources)]
    for target, node in enumerate(graph.node_of_target.tolist()[:-1]):
        readers[node].append(target)
    return readers


@selection("random")
def random(scores: Scores, context: Context = NOTHING, *, seed: int = 0) -> Order:
    """n edges drawn at random: the baseline that a circuit has to beat."""
    edges = scores.graph.mask.flatten().nonzero()[:, 0]
    generator = torch.Generator(device="cpu").manual_seed(seed)
    return Order(scores, edges[torch.randperm(len(edges), generator=generator, device="cpu")])


@selection("random-paths")
def random_paths(scores: Scores, context: Context = NOTHING, *, seed: int = 0) -> Order:
    """Random paths from input to logits, one after the other: a stronger baseline than random edges."""
    graph, dice = scores.graph, Random(seed)
    n = graph.n_edges if context.largest is None else context.largest
    order = dict[tuple[int, int], None]()  # a set that keeps its order
    nodes, readers, failed = {0}, [graph.logits], 0
    before, targets_of = graph.sources_before_target.tolist(), _targets_of_nodes(graph)

    def backwards(path: list[tuple[int, int]], target: int) -> list[tuple[int, int]]:
        """The path that begins so, continued from a target to a node of the circuit."""
        while not path or path[-1][0] not in nodes:
            source = dice.randrange(before[target])
            path.append((source, target))
            target = dice.choice(targets_of[source]) if source else target
        return path

    while len(order) < n:
        path = backwards([], dice.choice(readers))
        failed = failed + 1 if path[0] in order else 0  # then it is the only edge of its path
        if failed == TRIES:  # few edges are left between the nodes of the circuit
            path = [(u, v) for v in readers for u in nodes if u < before[v] and (u, v) not in order]
            dice.shuffle(path)
            if not path:  # all of them are in: go through another node
                new = dice.choice([u for u in range(graph.n_sources) if u not in nodes])
                path = backwards([(new, graph.logits)], dice.choice(targets_of[new]))
            failed = 0
        for source, target in path:
            order[source, target] = None
            if source not in nodes:
                nodes.add(source)
                readers += targets_of[source]
    return Order(scores, _flattened(graph, list(order)[:n]))


def checked(scores: Scores) -> Scores:
    """The scores on the CPU; an error if they cannot be ranked."""
    if not scores.values.isfinite().all():
        raise InputError("scores that are not finite numbers cannot be ranked. Attribute again.")
    return replace(scores, values=scores.values.cpu())


def check_sparsity(sparsity: float) -> None:
    """Refuse a sparsity that leaves no edges, or more than there are."""
    if not 0 <= sparsity < 1:
        raise UsageError(f"a sparsity is the share of edges left out, at least 0 and less than 1: got {sparsity}.")


def edge_count(n_edges: int, n: int | None, sparsity: float | None) -> int:
    """The number of edges from a requested number or sparsity, out of ``n_edges``."""
    if (n is None) == (sparsity is None):
        raise UsageError("the circuit needs a size: give either a number of edges or a sparsity.")
    if sparsity is not None:
        check_sparsity(sparsity)
        n = max(1, round((1 - sparsity) * n_edges))
    n = whole_number("the number of edges", n, least=0)
    if not 1 <= n <= n_edges:
        raise UsageError(f"a circuit of this model has from 1 to {n_edges:,} edges: {n:,} were requested.")
    return n


def circuit_of(scores: Scores, edges: Edges, *, selection: str = "", prune: bool = True) -> Circuit:
    """The circuit of these edges, by default pruned."""
    graph, n = scores.graph, len(edges)
    if prune:
        edges = edges[pruned(graph, graph.mask_of(edges).view_as(graph.mask)).flatten()[edges]]
    recipe = (scores.recipe or Recipe()).selected(selection or None, edges=n or None)
    scored = scores.values.flatten()[edges]
    return Circuit(graph, graph.unflattened(edges), scored, recipe, scores.facts, n_requested=n, pruned=prune)
