"""Learned masks: the gradients they follow, and what they promise."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import reference
import torch
from small_models import prompts, tiny_model

import gradpath as gp
from gradpath.attribution.attribute import attribute
from gradpath.errors import UsageError
from gradpath.evaluation import evaluate
from gradpath.prepared import PreparedBatches
from gradpath.selection import Context, probe, rank
from gradpath.selection import learned as learned_module
from gradpath.selection.learned import Sizes, gradient_by_values, shifted, sizes_of, weights_of
from gradpath.selection.ranking import top
from gradpath.tasks.load import more_examples

TASK = prompts([6, 9, 6, 7, 9, 8, 6, 7], [[0], [4], [2, 3], [6], [1, 8], [5], [3], [2]])


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADPATH_CACHE", str(tmp_path))
    monkeypatch.setattr(probe, "START", 0.6)


@pytest.fixture(scope="module")
def found():
    model = tiny_model("gpt2").to(dtype=torch.float64)
    return model, attribute(model, TASK, "eap-ig")


def random_values(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("size", "temperature"), [(1.0, 0.5), (7.5, 0.1), (40.0, 0.5), (90.0, 0.05)])
def test_weights_sum_to_the_size_and_keep_the_order(size, temperature):
    values = random_values(100)
    weights = weights_of(values, size, temperature)
    assert float(weights.sum()) == pytest.approx(size, rel=1e-6)
    assert torch.equal(weights.argsort(stable=True), values.argsort(stable=True)) or temperature < 0.1
    assert ((weights >= 0) & (weights <= 1)).all()


def test_cold_weights_are_the_hard_circuit():
    values = random_values(50)
    weights = weights_of(values, 12.0, 1e-4)
    hard = torch.zeros(50, dtype=torch.float64)
    hard[values.argsort(descending=True)[:12]] = 1
    assert torch.allclose(weights, hard, atol=1e-6)


def test_the_gradient_by_scores_is_that_of_finite_differences_on_the_slow_model(found, monkeypatch):
    """The whole chain: scores, threshold, weights, patched run, squared deviations."""
    monkeypatch.setattr(learned_module, "NEGLIGIBLE", 0.0)
    model, scores = found
    edges = top(scores).edges[:40]
    values, size, temperature = random_values(40), 15.0, 0.4
    goal = reference.patched_metric(model, TASK, scores.graph.mask.double())

    def loss(values):
        weights = torch.zeros(scores.graph.n_pairs, dtype=torch.float64)
        weights[edges] = weights_of(values, size, temperature)
        deviations = reference.patched_metric(model, TASK, weights.view(scores.graph.n_sources, -1)) - goal
        return float(deviations.square().mean())

    def difference(edge):
        step = torch.zeros(40, dtype=torch.float64)
        step[edge] = 1e-4
        return (loss(values + step) - loss(values - step)) / 2e-4

    circuit_probe = probe.CircuitProbe.of(PreparedBatches(model, TASK), scores, rows=24)
    learner = learned_module._Learner(circuit_probe, edges, Sizes((15,), 15, 40), True, 1, len(TASK), 0.1, 0)
    weights = weights_of(values, size, temperature)
    learner_gradient = 2 * gradient_by_values(weights, learner._gradient(weights, 0), temperature)
    checked = [0, 3, 11, 25, 39]
    expected = torch.tensor([difference(edge) for edge in checked], dtype=torch.float64)
    assert torch.allclose(learner_gradient[checked], expected, atol=1e-5 * float(learner_gradient.abs().max()))


def test_learned_circuits_err_less_than_the_largest_scores(found):
    model, scores = found
    counts = [scores.graph.n_edges // share for share in (5, 3)]
    plain = evaluate(model, [rank(scores)[:n] for n in counts], TASK)
    order = rank(scores, "learned+steps=25", model, TASK, sizes=counts)
    circuits = [order[:n] for n in sorted(counts)]
    by_learning = evaluate(model, circuits, TASK)
    assert sum(x.error for x in by_learning) < 0.7 * sum(x.error for x in plain)
    for small, large in pairwise(circuits):
        assert set(small.edges) <= set(large.edges)


def test_the_order_holds_every_edge_once_and_other_losses_learn_something_else(found):
    model, scores = found
    orders = {}
    for loss in ("match", "kl"):
        order = rank(scores, f"learned+steps=2+loss={loss}", model, TASK, smallest=5)
        assert sorted(order.edges.tolist()) == scores.graph.mask.flatten().nonzero()[:, 0].tolist()
        orders[loss] = tuple(order.edges.tolist())
    assert len(set(orders.values())) == 2


def test_the_last_step_is_measured_on_a_sample_that_nothing_was_learned_from(found, monkeypatch):
    model, scores = found
    monkeypatch.setattr(learned_module, "UNSEEN", 2)
    circuit_probe = probe.CircuitProbe.of(PreparedBatches(model, TASK), scores, rows=24)
    learner = learned_module._Learner(circuit_probe, top(scores).edges[:40], Sizes((15,), 15, 40), True, 1, 2, 0.1, 0)
    seen, unseen = ([int(i) for batch in part for i in batch.index] for part in learner._split)
    # Not the longest pairs: the last ones of an order that looks random.
    assert sorted(unseen) == sorted(circuit_probe.pairs.index[-2:].tolist())
    assert sorted(seen + unseen) == list(range(len(TASK)))
    assert max(len(batch) for batch in learner._split[0]) == 2


@pytest.mark.parametrize(("n_seen", "sizes", "clear"), [(8, [30, 60], 0.0), (6, [30, 60], 1e9), (8, [], 0.0)])
def test_the_last_step_takes_a_few_examples(found, monkeypatch, n_seen, sizes, clear):
    """A run with its backward pass for each size, on two examples; and another run where the mean is off."""
    model, scores = found
    monkeypatch.setattr(learned_module, "UNSEEN", 2)
    monkeypatch.setattr(learned_module, "CLEAR", clear)
    is_off = not clear
    task, made, prepared_examples = TASK.take(list(range(n_seen))), [], set()

    def counted(measure):
        def count(self, pairs, plan, asked, *others):
            made.append((len(pairs), len(asked) > 0))
            prepared_examples.update(pairs.index.tolist())
            return measure(self, pairs, plan, asked, *others)

        return count

    for name in ("measure_on", "gradient_on"):
        monkeypatch.setattr(probe.CircuitProbe, name, counted(getattr(probe.CircuitProbe, name)))
    how = f"learned+steps=1+batch=2+examples={n_seen}"
    rank(scores, how, model, task, sizes=sizes, smallest=5, largest=scores.n_edges)
    n_measured = len(sizes) or learned_module.LADDER
    forward, backward = sum(n for n, _ in made), sum(n for n, has_gradients in made if has_gradients)
    assert (forward, backward) == (2 + 2 * n_measured * (1 + is_off), 2 + 2 * n_measured)
    assert len(prepared_examples) <= n_seen


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("steps=0", "steps of learned"),
        ("batch=-1", "batch of learned"),
        ("examples=0", "examples of learned"),
        ("rate=0.0", "a rate above 0"),
        ("loss=mse", "match or kl"),
        ("speed=2", "has no option 'speed'"),
        ("steps=many", "must be a whole number"),
    ],
)
def test_options_that_make_no_sense_are_refused_in_a_sentence(found, option, message):
    model, scores = found
    with pytest.raises(UsageError, match=message):
        gp.select(scores, 5, selection=f"learned+{option}", model=model, task=TASK)


def test_sizes_are_drawn_around_those_asked_for():
    assert sizes_of(Context(sizes=(40,), smallest=40, largest=40), 9000, 1000) == Sizes((40,), 40, 40)
    assert sizes_of(Context(sizes=(40, 90), smallest=5, largest=5000), 9000, 1000) == Sizes((40, 90), 5, 1000)
    assert sizes_of(Context(smallest=5), 9000, 1000) == Sizes((), 5, 1000)
    assert sizes_of(Context(sizes=(2000,), smallest=2000, largest=2000), 9000, 1000) == Sizes((), 1000, 1000)
    generator = torch.Generator().manual_seed(0)
    drawn = [Sizes((40,), 5, 1000).draw(generator) for _ in range(300)]
    assert 40 / learned_module.SPREAD <= min(drawn) < 30 < 50 < max(drawn) <= 40 * learned_module.SPREAD
    drawn = [Sizes((), 5, 1000).draw(generator) for _ in range(300)]
    assert 5 <= min(drawn) < 10 < 500 < max(drawn) <= 1000
    assert Sizes((), 5, 1000).measured[-1] == 5


@pytest.mark.parametrize("change", [-1.5, -0.2, 0.2, 1.5])
def test_a_shift_changes_the_sum_of_effects_by_as_much_as_asked_for_and_little_else(change):
    values, effects = random_values(500).sort(descending=True).values, 0.1 * random_values(500, seed=1)
    inside = torch.arange(60)
    order = shifted(values, effects, inside, change)
    assert sorted(order.tolist()) == list(range(500))
    after = effects[order[:60]].sum() - effects[:60].sum()
    assert float(after) == pytest.approx(change, abs=0.15)
    # Edges far from the boundary stay where they are: 10 of the best 20 even where the change is large.
    assert len(set(order[:60].tolist()) & set(range(20))) >= 10
    assert torch.equal(shifted(values, effects * 0, inside, change)[:60], inside)


def test_the_mean_of_a_circuit_is_brought_back_to_the_models(found, monkeypatch):
    model, scores = found
    helpful = replace(scores, values=scores.values.clamp_min(0))  # a circuit of these alone is far too strong
    how = "learned+steps=1+rate=0.000001"
    gaps = {}
    for clear in (0.0, math.inf):
        monkeypatch.setattr(learned_module, "CLEAR", clear)
        order = rank(helpful, how, model, TASK, sizes=[30, 60])
        results = evaluate(model, [order[:n] for n in (30, 60)], TASK)
        gaps[clear] = [abs(1 - result.faithfulness) for result in results]
    assert sum(gaps[0.0]) < 0.7 * sum(gaps[math.inf])


def test_a_task_of_its_own_has_no_further_examples(found):
    assert more_examples(TASK, found[0], 100) is TASK
    assert math.isclose(len(more_examples(TASK, found[0], 3)), len(TASK))
