"""Selections that use only the scores: an order of all edges, of which the first n are selected.

``top`` ranks by |score|, ``signed`` by the score itself, so that edges that raise the metric come first.
``greedy`` starts from ``logits``. Its frontier is every edge
into a node of the circuit; it adds the edge of largest |score|, and if the edge's source is new, the edges into that
source join the frontier. Each of these is one nested sequence, computed once for circuits of all sizes. Ties go to the
lower index.

``random`` draws edges one by one. That is a weak baseline: in a large model they hardly ever form a path, so nothing
reaches ``logits`` and every circuit beats them. So the circuits of ``random-paths`` grow by whole paths, like the
random circuits of Shi et al. (2024, arXiv 2410.13032). A path begins at a random target of the circuit and goes
backwards, each time to a random source that the target reads and to a random q, k or v of that head, until it meets the
circuit or ``input``. Paths are added until there are n edges. (In the code of Shi et al. paths go forward from the
input, and the last one may exceed n.)

An order contains positions in the flattened (source, target) matrix.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal, get_origin, get_type_hints

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from gradpath.circuit import Circuit
from gradpath.errors import InputError, UsageError, check_option, whole_number
from gradpath.graph import Graph, pruned
from gradpath.recipe import Recipe
from gradpath.registry import NamedFunction, Registry, option_value, owner_of
from gradpath.scores import Scores

Order = Int[Tensor, " edge"]
Orders = list[Order]  # one for each size
TRIES = 50  # paths in a row that do not fit, before single edges are added


@dataclass(frozen=True)
class NestedOrder:
    """Circuits of all sizes from one selection: the first n edges of an order are the circuit of n edges.

    Args:
        scores: The scores that the edges were selected by.
        edges: The positions of edges in the flattened matrix of the scores.
        how: The selection.
        smallest: The smallest number of edges that the order was made for.
    """

    scores: Scores
    edges: Order
    how: str
    smallest: int = 1

    def circuit(self, n: int, *, prune: bool = True) -> Circuit:
        """The circuit of the first ``n`` edges, by default pruned."""
        if not self.smallest <= n <= len(self.edges):
            raise UsageError(
                f"this order of edges by {self.how} was made for circuits of {self.smallest:,} to "
                f"{len(self.edges):,} edges: {n:,} were requested. Select again with this size."
            )
        return circuit_of(self.scores, self.edges[:n], how=self.how, prune=prune)


@dataclass(frozen=True)
class Selection(NamedFunction):
    """A registered selection; the decorator ``selection`` documents the fields."""

    kind = "selection"
    measures: bool
    nested: bool
    sized: bool
    varies: str | None

    @property
    def n_inputs(self) -> int:
        return 6 if self.measures else 2

    def checked(self, name: str, value: Any) -> Any:
        """As for every function; but the option that varies may have several values, and its type is its default's."""
        default = self.defaults[name]
        values = value if name == self.varies and isinstance(value, list) and value else [value]
        hint = get_type_hints(self.function).get(name)
        kind = hint if get_origin(hint) is Literal else type(default)
        for x in values:
            check_option(self.name, name, x, kind, several=name == self.varies)
        values = [float(x) if type(default) is float else x for x in values]
        return values if isinstance(value, list) else values[0]


SELECTIONS = Registry[Selection](
    "selection", [f"gradpath.selection.{module}" for module in ("ranking", "refine", "learned", "acdc")]
)


def selection(
    name: str, *, measures: bool = False, nested: bool = True, sized: bool = True, varies: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as a selection.

    The function takes the scores and a number of edges, and returns an order of edges, as positions in the flattened
    (source, target) matrix. Its keyword-only parameters are the options of the selection.

    Args:
        name: The name of the selection.
        measures: Whether it runs circuits. Its function then takes the model, the task, the scores, all sizes, the
            ``Limits`` and the task's ``PreparedBatches`` or None, and returns one order for each size.
        nested: Whether a smaller circuit is a part of every larger one.
        sized: Whether it selects as many edges as are requested.
        varies: The option that may have several values, each of which gives a circuit.

    Returns:
        A decorator.
    """

    def register(order: Callable[..., Any]) -> Callable[..., Any]:
        SELECTIONS.add(name, Selection(name, order, measures, nested, sized, varies), owner_of(order))
        return order

    return register


def find_selection(how: str) -> tuple[Selection, dict[str, Any]]:
    """The selection that ``how`` names, and its options, as in ``acdc+threshold=0.01``."""
    name, *texts = how.split("+")
    chosen, options = SELECTIONS.find(name), dict[str, Any]()
    for text in texts:
        key, _, value = text.partition("=")
        several = key == chosen.varies and "," in value and not value.startswith("[")
        listed = option_value(f"[{value}]") if several else None
        options[key] = listed if isinstance(listed, list) else option_value(value)
    options = chosen.options(options)
    return chosen, options


def variants(how: str) -> dict[float | None, str]:
    """For each value of the option that a selection varies, the name of the selection of its circuit.

    >>> variants("acdc+threshold=0.01,0.1+among=0.2")
    {0.01: 'acdc+threshold=0.01+among=0.2', 0.1: 'acdc+threshold=0.1+among=0.2'}
    """
    chosen, options = find_selection(how)
    if chosen.varies is None:
        return {None: how}
    values = options[chosen.varies]
    return {value: with_values(how, [value]) for value in values} if isinstance(values, list) else {values: how}


def with_values(how: str, values: Sequence[float]) -> str:
    """The same selection with other values of the option that it varies; without the option if there are no values."""
    varies = find_selection(how)[0].varies
    name, *texts = how.split("+")
    listed = f"{varies}={','.join(json.dumps(value) for value in values)}"
    if not any(text.startswith(f"{varies}=") for text in texts):
        return how
    texts = [listed if text.startswith(f"{varies}=") else text for text in texts]
    return "+".join([name, *(text for text in texts if values or text != listed)])


def _candidates(scores: Scores) -> tuple[Order, Tensor]:
    """The positions of all edges in the flattened matrix, and their scores."""
    edges = scores.graph.mask.flatten().nonzero()[:, 0]
    return edges, scores.values.flatten()[edges]


@selection("top")
def top(scores: Scores, n: int) -> Order:
    """The n edges of largest |score|."""
    edges, values = _candidates(scores)
    return edges[values.abs().sort(descending=True, stable=True).indices[:n]]


@selection("greedy")
def greedy(scores: Scores, n: int) -> Order:
    """Search backwards from ``logits``: take the edge of largest |score| at the frontier, n times.

    Each target's sources are sorted once; the heap has one edge per target, so n edges cost n pops.
    """
    graph = scores.graph
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
    return graph.flattened(torch.tensor(order, dtype=torch.long, device="cpu").view(-1, 2))


def _targets_of_nodes(graph: Graph) -> list[list[int]]:
    """The targets of each node, by source: none for ``input``."""
    readers: list[list[int]] = [[] for _ in range(graph.n_sources)]
    for target, node in enumerate(graph.node_of_target.tolist()[:-1]):
        readers[node].append(target)
    return readers


@selection("signed")
def signed(scores: Scores, n: int) -> Order:
    """The n edges of largest score, sign included: those that raise the metric most."""
    edges, values = _candidates(scores)
    return edges[values.sort(descending=True, stable=True).indices[:n]]


@selection("random")
def random(scores: Scores, n: int, *, seed: int = 0) -> Order:
    """n edges drawn at random: the baseline that a circuit has to beat."""
    edges, _ = _candidates(scores)
    generator = torch.Generator(device="cpu").manual_seed(seed)
    return edges[torch.randperm(len(edges), generator=generator, device="cpu")[:n]]


@selection("random-paths", nested=False)
def random_paths(scores: Scores, n: int, *, seed: int = 0) -> Order:
    """n edges that form random paths from input to logits: a stronger baseline than random edges."""
    return random_circuit(scores.graph, n, Random(seed)).flatten().nonzero()[:, 0]


def random_circuit(graph: Graph, n: int, dice: Random) -> Bool[Tensor, "source target"]:
    """A circuit of n random edges, each on a path from ``input`` to ``logits``.

    Args:
        graph: The graph of the model.
        n: The number of edges.
        dice: The source of randomness.

    Returns:
        The edges; fewer than n only where no further edge fits.
    """
    edges, nodes, readers, failed = set[tuple[int, int]](), {0}, [graph.logits], 0
    before, targets_of = graph.sources_before_target.tolist(), _targets_of_nodes(graph)
    while len(edges) < n:
        path, target = list[tuple[int, int]](), dice.choice(readers)
        while not path or path[-1][0] not in nodes:
            source = dice.randrange(before[target])
            path.append((source, target))
            target = dice.choice(targets_of[source]) if source else target
        new = set(path) - edges
        if failed == TRIES:
            between = [(u, v) for v in readers for u in nodes if u < before[v] and (u, v) not in edges]
            new = set(dice.sample(sorted(between), min(len(between), n - len(edges))))
            failed = 0
            if not new and (len(nodes) == graph.n_sources or n - len(edges) < 2):
                break  # another node takes two edges
        if not new or len(edges) + len(new) > n:
            failed += 1
            continue
        failed = 0
        edges |= new
        for source in {source for source, _ in new} - nodes:
            nodes.add(source)
            readers += targets_of[source]
    mask = torch.zeros_like(graph.mask)
    for edge in edges:
        mask[edge] = True
    return mask


def checked(scores: Scores) -> Scores:
    """The scores on the CPU; an error if they cannot be ranked."""
    if not scores.values.isfinite().all():
        raise InputError("scores that are not finite numbers cannot be ranked. Attribute again.")
    return replace(scores, values=scores.values.cpu())


def check_sparsity(sparsity: float) -> None:
    """Refuse a sparsity that leaves no edges, or more than there are."""
    if not 0 <= sparsity < 1:
        raise UsageError(f"a sparsity is the share of edges left out, at least 0 and less than 1: got {sparsity}.")


def given_size(**sizes: object) -> str | None:
    """The name of the size that is not None, if there is one; more than one is refused."""
    names = [name for name, size in sizes.items() if size is not None]
    if len(names) > 1:
        *first, last = (f"`{name}`" for name in names)
        raise UsageError(f"{', '.join(first)} and {last} each set the size of the circuit: give one of them.")
    return names[0] if names else None


def sets_own_size(how: str, advice: str, *, but: str = "") -> UsageError:
    """The error for a size that is given to a selection without one, such as ``acdc``."""
    reason = f", but {but}" if but else ""
    return UsageError(f"{how} determines the number of edges itself{reason}: {advice}.")


def check_edges_or_nodes(how: str | None, nodes: int | None) -> None:
    """Refuse to select edges and nodes at once."""
    if how is not None and nodes is not None:
        raise UsageError("`selection` selects edges and `nodes` selects nodes: give one of them.")


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


def circuit_of(
    scores: Scores, order: Order, *, how: str = "", prune: bool = True, requested: int | None = None
) -> Circuit:
    """The circuit of these edges; ``requested`` is the requested number of edges, if it is not the number of these."""
    graph, n = scores.graph, len(order) if requested is None else requested
    if prune:
        order = order[pruned(graph, graph.mask_of(order).view_as(graph.mask)).flatten()[order]]
    recipe = (scores.recipe or Recipe()).selected(how or None, edges=n or None)
    scored = scores.values.flatten()[order]
    return Circuit(graph, graph.unflattened(order), scored, recipe, scores.facts, n_requested=n, pruned=prune)
