"""Ways of selecting that measure: what they promise, on models small enough to check it."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from covering import some
from small_models import prompts, tiny_model

import gradpath as gp
from gradpath.attribution.attribute import attribute
from gradpath.errors import InputError, UsageError
from gradpath.evaluation import evaluate
from gradpath.graph import pruned
from gradpath.selection import Context, probe, rank, select
from gradpath.selection import refine as refined_module
from gradpath.selection.probe import CircuitProbe
from gradpath.selection.ranking import top
from gradpath.selection.refine import Paths, refined, to_remove

TASK = prompts([6, 9, 6, 7, 9, 8, 6, 7], [[0], [4], [2, 3], [6], [1, 8], [5], [3], [2]])


@pytest.fixture(scope="module")
def found():
    model = tiny_model("gpt2")
    return model, attribute(model, TASK, "eap-ig")


class Alone:
    """Edges that go alone, each once."""

    def __init__(self):
        self.gone = set()

    def __call__(self, edge):
        return [] if edge in self.gone else (self.gone.add(edge) or [edge])


def removed(off, effects, n, **options):
    return to_remove(off, effects, n, Alone(), **options).tolist()


def test_edges_go_whose_effect_the_circuit_has_too_much_of():
    off = torch.tensor([1.0, -2.0, 0.0])
    effects = torch.tensor([[0.0, 1.0, 3.0], [0.1, -2.0, 0.0], [0.0, 0.0, 1.0]])
    assert removed(off, effects, 1, caution=0.0) == [1]
    # What is left afterwards is nothing, so the smallest goes next and the largest last.
    assert removed(off, effects, 3, caution=0.0) == [1, 0, 2]


def test_caution_prefers_small_effects_to_those_that_fit():
    off, effects = torch.tensor([1.0, -2.0]), torch.tensor([[0.1, 1.0], [0.0, -2.0]])
    assert removed(off, effects, 1, caution=0.0) == [1]
    assert removed(off, effects, 1, caution=2.0) == [0]


def test_the_effect_of_an_edge_that_goes_with_another_does_not_count_twice():
    off, effects = torch.tensor([1.0]), torch.tensor([[1.0, 0.9, 0.3]])
    together = {0: [0, 1], 1: [], 2: [2]}
    assert to_remove(off, effects, 3, together.get, caution=0.0).tolist() == [0, 1, 2]
    # Had the second one's effect counted, too, the third would have gone before it.
    assert removed(off, effects, 3, caution=0.0) == [0, 2, 1]


@pytest.mark.parametrize("n", [1, 7, 199, 201, 650, 1000])
def test_few_sweeps_leave_examples_no_further_off_than_one_for_every_edge(n, monkeypatch):
    generator = torch.Generator().manual_seed(n)
    effects = torch.randn(5, 1000, generator=generator) * torch.rand(1000, generator=generator) ** 4
    off = 30 * torch.randn(5, generator=generator)

    def left():
        taken = removed(off, effects, n)
        assert len(taken) == len(set(taken)) == n
        return float((off - effects[:, taken].sum(1)).norm() + effects[:, taken].square().sum())

    monkeypatch.setattr(refined_module, "GROUPS", 20)
    few = left()
    monkeypatch.setattr(refined_module, "GROUPS", n)
    assert few <= 1.05 * left()


@pytest.mark.parametrize("few", [0, 512])
def test_edges_are_removed_in_the_order_of_the_definition(few, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    effects, off = torch.randn(5, 60, generator=generator), 3 * torch.randn(5, generator=generator)
    expected, left, n = list[int](), off.clone(), 50
    for _ in range(n):
        cost = (4 * effects.square() - 2 * left[:, None] * effects).sum(0)
        cost[expected] = torch.inf
        expected.append(int(cost.argmin()))
        left = left - effects[:, expected[-1]]
    monkeypatch.setattr(refined_module, "FEW", few)  # one sweep for all edges, or one for each
    assert removed(off, effects, n, caution=3.0) == expected


@pytest.mark.parametrize("family", ["gpt2", "neox"])
def test_edges_on_no_path_are_removed_at_once(family):
    graph = tiny_model(family).graph
    generator = torch.Generator().manual_seed(0)
    mask = pruned(graph, graph.mask & (torch.rand(graph.mask.shape, generator=generator) < 0.2))
    edges = mask.flatten().nonzero()[:, 0]
    paths = Paths(graph, edges)
    for edge in torch.randperm(len(edges), generator=generator).tolist():
        before = mask.flatten()[edges[edge]]
        removed = paths.remove(edge)
        assert bool(removed) == bool(before)
        expected = mask.flatten().clone()
        expected[edges[edge]] = False
        expected = pruned(graph, expected.view(mask.shape))
        mask.view(-1)[edges[removed]] = False
        assert torch.equal(mask, expected)
    assert not mask.any()


def test_every_beginning_of_a_single_descent_is_a_circuit_of_its_own(found, monkeypatch):
    monkeypatch.setattr(probe, "START", 0.5)
    model, scores = found
    order = rank(scores, "refined", model, TASK, smallest=5, resamples=1)
    assert sorted(order.edges.tolist()) == scores.graph.mask.flatten().nonzero()[:, 0].tolist()
    sizes = [len(order.circuit(n)) for n in range(5, scores.graph.n_edges // 3)]
    # Edges on no path are removed at once: a circuit has all of its edges, or those of the next smaller one.
    for n, (before, size) in enumerate(pairwise(sizes), start=6):
        assert size in (n, before)
    assert sum(size == n for n, size in enumerate(sizes, start=5)) > len(sizes) / 2
    with pytest.raises(UsageError, match="made for circuits of 5 to"):
        order.circuit(4)


def test_halves_of_the_examples_count_alike():
    for n_parts, n in ((4, 6), (6, 20), (2, 2)):
        halves = refined_module.resampled(n_parts, 99)
        assert len(halves) == len(set(halves)) == n
        assert all(sum(part in half for half in halves) == n // 2 for part in range(n_parts))
    assert refined_module.resampled(4, 1) == [(0, 1)]
    assert refined_module.resampled(1, 6) == [(0,)]


def test_resamples_have_a_descent_of_their_own_below_the_fork(found, monkeypatch):
    monkeypatch.setattr(probe, "START", 1.0)
    monkeypatch.setattr(refined_module, "FORK", 40)
    measured, measure_on = [], CircuitProbe.measure_on

    def seen(self, pairs, plan, asked, batches):
        assert sorted(torch.cat([batch.index for batch in batches]).tolist()) == sorted(pairs.index.tolist())
        measured.append((len(asked), frozenset(pairs.index.tolist())))
        return measure_on(self, pairs, plan, asked, batches)

    monkeypatch.setattr(CircuitProbe, "measure_on", seen)
    model, scores = found
    order = refined(scores, Context(model, TASK))
    shared = [examples for size, examples in measured if size > 40]
    forked = [examples for size, examples in measured if size <= 40]
    assert {len(examples) for _, examples in measured} == {len(TASK) // 2}
    assert shared[0] | shared[1] == set(range(len(TASK)))
    assert all(a == b for a, b in zip(shared, shared[2:], strict=False))  # one half, then the other
    assert list(dict.fromkeys(forked)) == [frozenset(x.examples.tolist()) for x in order.samples]
    assert len({*forked}) == 6
    # Above the fork there is a single order; below it, the order is the mean of the logarithms of ranks.
    n = len(order.samples[0].edges)
    assert n <= 40
    assert all(set(x.edges.tolist()) == set(order.edges[:n].tolist()) for x in order.samples)
    ranks = [{edge: rank for rank, edge in enumerate(x.edges.tolist(), 1)} for x in order.samples]
    means = [math.prod(rank[edge] for rank in ranks) for edge in order.edges[:n].tolist()]
    assert means == sorted(means)


def test_a_circuit_says_how_many_resamples_have_each_edge(found, monkeypatch):
    monkeypatch.setattr(probe, "START", 0.5)
    model, scores = found
    order = rank(scores, "refined", model, TASK)
    for n in (12, 30):
        circuit = order[:n]
        names = [
            [scores.graph.edge(*ends) for ends in scores.graph.unflattened(x.edges[:n]).tolist()] for x in order.samples
        ]
        shares = [sum(edge in first for first in names) / 6 for edge in circuit.edges]
        assert circuit.frequency.tolist() == pytest.approx(shares)
        assert circuit.core == circuit.without(
            *(edge for edge, share in zip(circuit.edges, shares, strict=True) if share < 1)
        )
        assert circuit.recipe.resamples == 6
    assert 0 < len(order[:30].core) < 30
    # Resamples do not differ in a circuit above the fork, which says nothing about frequencies.
    assert order[: len(order.samples[0].edges) + 1].frequency is None
    single = gp.select(scores, 30, model=model, task=TASK, resamples=1)
    assert single.frequency is None
    assert single.recipe.resamples == 1


@pytest.mark.parametrize("how", ["refined", "learned+steps=2", "acdc+among=0.1"])
def test_no_circuit_depends_on_the_batch_size_or_the_memory(how):
    model = tiny_model("gpt2")
    circuits = [
        gp.find(
            model, gp.Task(TASK.clean, TASK.corrupted, TASK.labels, TASK.metric), selection=how, split="same", **limits
        )
        for limits in ({}, {"batch_size": 1}, {"batch_size": 3}, {"memory": 300_000_000})
    ]
    assert len({tuple(found.circuit.edges) for found in circuits}) == 1


def test_refined_gives_as_many_edges_as_asked_for_whatever_else_was_asked_for(found):
    model, scores = found
    n_edges = scores.graph.n_edges
    counts = [3, 12, n_edges // 3, n_edges]
    together = rank(scores, "refined", model, TASK, sizes=counts).edges
    assert sorted(together.tolist()) == scores.graph.mask.flatten().nonzero()[:, 0].tolist()
    for n in counts:
        alone = rank(scores, "refined", model, TASK, sizes=[n]).edges
        assert set(alone.tolist()) == set(together[:n].tolist())
    # Above the circuit that the descent begins with, edges come by |score|.
    third = n_edges // 3
    assert set(together[:third].tolist()) == set(top(scores).edges[:third].tolist())


@pytest.mark.parametrize(
    "families", some([("gpt2", "gpt2-variant", "llama-grouped", "mistral"), ("gpt2", "mistral")], [("gpt2", "mistral")])
)
def test_measured_circuits_err_less_than_the_largest_scores_on_the_examples_they_saw(families, monkeypatch):
    monkeypatch.setattr(probe, "START", 0.6)
    errors = {"top": 0.0, "refined": 0.0}  # of a single model of random weights, they can be the other way round
    for family in families:
        model = tiny_model(family)
        scores = attribute(model, TASK, "eap-ig")
        counts = [scores.graph.n_edges // 10, scores.graph.n_edges // 5]
        for how in errors:
            order = rank(scores, how, model, TASK, sizes=counts)
            errors[how] += sum(x.error for x in evaluate(model, [order[:n] for n in counts], TASK))
    assert errors["refined"] < 0.8 * errors["top"]


@pytest.mark.parametrize("how", ["refined", "learned+steps=2", "acdc+among=0.1"])
def test_select_remembers_how_and_needs_what_it_measures_with(found, how):
    model, scores = found
    circuit = gp.select(scores, 50, selection=how, model=model, task=TASK)
    assert circuit.selection == how
    assert circuit.requested == 50
    assert 0 < len(circuit) <= 50
    with pytest.raises(UsageError, match="give it model= and task="):
        select(scores, 50, selection=how)
    with pytest.raises(InputError, match="another model"):
        select(attribute(tiny_model("llama-grouped"), TASK, "eap"), 5, selection=how, model=model, task=TASK)
