"""Ways of selecting that measure: what they promise, on models small enough to check it."""

from __future__ import annotations

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
    return to_remove(off, effects, n, Alone(), **options)[0].tolist()


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
    edges, left = to_remove(off, effects, 3, together.get, caution=0.0)
    assert edges.tolist() == [0, 1, 2]
    assert torch.allclose(left, torch.tensor([-0.3]))
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
    weights, prior = 0.5 + torch.rand(5, generator=generator), torch.rand(60, generator=generator)
    expected, left, n, drift = list[int](), off.clone(), 50, 8.0
    for _ in range(n):
        cost = weights @ (2 * effects.square() - 2 * left[:, None] * effects) + weights.sum() * prior
        cost[expected] = torch.inf
        expected.append(int(cost.argmin()))
        left = left - effects[:, expected[-1]] + drift / n
    monkeypatch.setattr(refined_module, "FEW", few)  # one sweep for all edges, or one for each
    order, predicted = to_remove(off, effects, n, Alone(), drift=drift, weights=weights, prior=prior)
    assert order.tolist() == expected
    assert torch.allclose(predicted, left, atol=1e-4)


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


def test_of_edges_with_equal_effects_the_one_with_the_smaller_prior_is_removed_first():
    off, effects = torch.zeros(2), torch.tensor([[0.1, 0.1, 0.3], [0.1, 0.1, 0.3]])
    prior = torch.tensor([0.5, 0.0, 0.0])
    order, left = to_remove(off, effects, 3, Alone(), prior=prior)
    assert order.tolist() == [1, 2, 0]
    assert torch.allclose(left, torch.full((2,), -0.5))  # the prior does not change what is predicted
    twice, _ = to_remove(off, effects, 3, Alone(), prior=prior, weights=torch.tensor([2.0, 2.0]))
    assert twice.tolist() == order.tolist()  # it counts for every example, as effects do
    assert to_remove(off, effects, 3, Alone())[0].tolist() == [0, 1, 2]


def test_every_beginning_of_the_refined_order_is_a_circuit_of_its_own(found, monkeypatch):
    monkeypatch.setattr(probe, "START", 0.5)
    model, scores = found
    order = rank(scores, "refined", model, TASK, smallest=5)
    assert sorted(order.edges.tolist()) == scores.graph.mask.flatten().nonzero()[:, 0].tolist()
    sizes = [len(order.circuit(n)) for n in range(5, scores.graph.n_edges // 3)]
    # Edges on no path are removed at once: a circuit has all of its edges, or those of the next smaller one.
    for n, (before, size) in enumerate(pairwise(sizes), start=6):
        assert size in (n, before)
    assert sum(size == n for n, size in enumerate(sizes, start=5)) > len(sizes) / 2
    for n in (5, 20, 60):
        assert set(order.circuit(n).edges) == set(select(scores, n, selection="refined", model=model, task=TASK).edges)
    with pytest.raises(UsageError, match="made for circuits of 5 to"):
        order.circuit(4)


def test_rungs_are_measured_on_one_part_of_the_examples_after_another(found, monkeypatch):
    monkeypatch.setattr(probe, "START", 1.0)
    monkeypatch.setattr(probe, "PART", 2)
    monkeypatch.setattr(refined_module, "SMALL", 0.2)
    measured, decided, priors, measure_on = [], [], [], CircuitProbe.measure_on

    def seen(self, pairs, plan, asked, batches):
        assert sorted(torch.cat([batch.index for batch in batches]).tolist()) == sorted(pairs.index.tolist())
        measured.append((len(asked), set(pairs.index.tolist())))
        return measure_on(self, pairs, plan, asked, batches)

    def decide(deviations, effects, n, without, **options):
        decided.append((len(deviations), [round(float(x), 3) for x in sorted(set(options["weights"].tolist()))]))
        priors.append(options["prior"])
        return to_remove(deviations, effects, n, without, **options)

    monkeypatch.setattr(CircuitProbe, "measure_on", seen)
    monkeypatch.setattr(refined_module, "to_remove", decide)
    model, scores = found
    refined(scores, Context(model, TASK, smallest=5))
    large = [examples for size, examples in measured if size > 0.2 * scores.graph.n_edges]
    small = [examples for size, examples in measured if size <= 0.2 * scores.graph.n_edges]
    first, *quarters = large
    assert [len(examples) for examples in (first, *quarters)] == [len(TASK) // 2] + len(quarters) * [len(TASK) // 4]
    assert set.union(first, *quarters[:2]) == set(range(len(TASK)))
    assert {len(examples) for examples in small} == {len(TASK) // 2}
    assert set.union(*small[:2]) == set(range(len(TASK)))
    # Decisions use all examples that were measured so far; those of earlier rungs count less.
    weights = [round(refined_module.KEPT**age, 3) for age in (2, 1, 0)]
    assert decided[:3] == [(2 * n, weights[4 - n :]) for n in (2, 3, 4)]
    assert decided[-1] == (len(TASK), weights[1:])
    # Scores stand for the examples that a rung does not measure.
    assert all(prior is not None and (prior >= 0).all() for prior in priors)
    priors.clear()
    monkeypatch.setattr(probe, "PART", len(TASK))
    refined(scores, Context(model, TASK, smallest=5))
    assert set(priors) == {None}


def test_weights_of_examples_are_as_good_as_repetitions():
    generator = torch.Generator().manual_seed(0)
    deviations, effects = torch.randn(3, generator=generator), torch.randn(3, 12, generator=generator)
    twice = [0, 1, 1, 2]
    removed, left = to_remove(deviations, effects, 6, lambda edge: [edge], drift=0.1, weights=torch.tensor([1.0, 2, 1]))
    again, repeated = to_remove(deviations[twice], effects[twice], 6, lambda edge: [edge], drift=0.1)
    assert removed.tolist() == again.tolist()
    assert torch.allclose(left, repeated[[0, 1, 3]], atol=1e-5)


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


@pytest.mark.parametrize("family", some(["gpt2", "gpt2-variant", "llama-grouped", "mistral"], ["gpt2", "mistral"]))
def test_measured_circuits_err_less_than_the_largest_scores_on_the_examples_they_saw(family, monkeypatch):
    monkeypatch.setattr(probe, "START", 0.6)
    model = tiny_model(family)
    scores = attribute(model, TASK, "eap-ig")
    counts = [scores.graph.n_edges // 10, scores.graph.n_edges // 5]
    orders = [rank(scores, how, model, TASK, sizes=counts) for how in ("top", "refined")]
    plain, by_refining = (evaluate(model, [order[:n] for n in counts], TASK) for order in orders)
    assert sum(x.error for x in by_refining) < 0.8 * sum(x.error for x in plain)


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


def test_an_unknown_way_is_refused_with_those_there_are(found):
    with pytest.raises(UsageError, match="refined"):
        gp.select(found[1], 5, selection="refind")
