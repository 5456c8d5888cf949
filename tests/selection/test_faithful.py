"""The smallest circuit that keeps a share of the behaviour, against measuring every size."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_models import prompts, tiny_model

from gradpath import pipeline, prepared
from gradpath.attribution.attribute import attribute
from gradpath.errors import UsageError
from gradpath.evaluation import evaluate
from gradpath.pipeline import run_find
from gradpath.prepared import PreparedBatches, prepare
from gradpath.recipe import Recipe
from gradpath.selection import faithful, rank
from gradpath.selection.faithful import grid_sizes, log_spaced, smallest_faithful
from gradpath.selection.ranking import consensus
from gradpath.sweep import Limits

TASK = prompts([6, 9, 6, 7], [[0], [4], [2, 3], [6]])


@pytest.fixture(scope="module")
def circuits():
    model = tiny_model("gpt2")
    order = rank(attribute(model, TASK))
    every = [order.circuit(n) for n in range(1, len(order.edges) + 1)]
    return model, order, torch.tensor([one.faithfulness for one in evaluate(model, every, TASK)])


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.85, 0.97])
def test_the_size_is_the_first_that_passes_with_its_neighbours(circuits, share, times):
    model, order, _ = circuits
    grid, task = grid_sizes(1, len(order)), TASK.take([0, 1, 2, 3] * times)
    results = evaluate(model, [order.circuit(n) for n in grid], task)
    distances = []
    for result in results:
        values = (result.circuit_values - result.clean_values).double()
        behaviour = (result.clean_values - result.corrupted_values).double()
        off = values.mean() / behaviour.mean()
        standard_error = (values - off * behaviour).std() / behaviour.mean().abs() / len(values) ** 0.5
        distances.append(max(0.0, float(off.abs() - 1.645 * standard_error * (len(values) >= 10))))
    padded = [*distances[:-1], 0.0, 0.0, 0.0]
    passing = [n for i, n in enumerate(grid[1:]) if sum(padded[i : i + 3]) / 3 <= 1 - share + 1e-6]
    assert smallest_faithful(PreparedBatches(model, task), order, share) == passing[0]


def test_sizes_are_of_a_grid_that_depends_on_nothing():
    assert grid_sizes(5, 20) == [5, 6, 7, 9, 12, 15, 18, 20]
    assert grid_sizes(8, 1000)[:3] == [9, 12, 15]
    assert grid_sizes(3, 3) == [3]


def test_a_consensus_is_judged_on_examples_that_its_resamples_left_out(monkeypatch):
    model, task = tiny_model("gpt2"), prompts([6] * 8, [[0], [4], [2], [1], [3], [0], [2], [5]])
    examples = PreparedBatches(model, task)
    order = rank(attribute(model, task), "refined", smallest=5, prepared=examples)
    assert len(order.samples) == 6
    seen, measure = [], faithful.metric_values

    def noted(examples, circuits, batches):
        seen.append((torch.cat([batch.index for batch in batches]), circuits))
        return measure(examples, circuits, batches=batches)

    monkeypatch.setattr(faithful, "metric_values", noted)
    smallest_faithful(examples, order, 0.85)
    parts = seen[:4]  # of the first two sizes
    assert sorted(torch.cat([rows for rows, _ in parts]).tolist()) == list(range(8))
    for rows, circuits in parts:
        left_out = [x for x in order.samples if not set(rows.tolist()) & set(x.examples.tolist())]
        assert len(left_out) == 3
        edges = torch.cat([consensus(left_out), order.edges[len(left_out[0].edges) :]])
        assert [circuit.requested for circuit in circuits] == [5, 6]
        assert circuits[0] == replace(order, edges=edges)[:5]


def test_a_search_runs_the_prompts_once_while_there_is_room(circuits, monkeypatch):
    model, order, _ = circuits
    made = []
    monkeypatch.setattr(prepared, "prepare", lambda *args: made.append(args[1]) or prepare(*args))
    smallest_faithful(PreparedBatches(model, TASK, limits=Limits(batch_size=2)), order, 0.85)
    assert [len(batch) for batch in made] == [2, 2]


def test_find_sets_its_examples_up_once_for_the_selection_and_the_search(circuits, monkeypatch):
    model, _, _ = circuits
    to_measure, made = replace(TASK), []
    monkeypatch.setattr(prepared, "prepare", lambda *args: made.append(args[1]) or prepare(*args))
    monkeypatch.setattr(pipeline, "load_examples", lambda *args, **options: (TASK, to_measure))
    found = run_find(model, Recipe(selection="refined"), curve=False)
    assert found.circuit.selection == "refined"
    assert sum(len(batch) for batch in made) == len(TASK) + len(to_measure)


@pytest.mark.parametrize("share", [0.0, -1.0, 85.0])
def test_a_share_that_no_circuit_can_keep_is_refused(circuits, share):
    model, order, _ = circuits
    with pytest.raises(UsageError, match=r"as in 0.85: got"):
        smallest_faithful(PreparedBatches(model, TASK), order, share)


def test_sizes_are_spread_evenly_and_differ():
    assert log_spaced(20, 12_321, 16)[:6] == [20, 31, 47, 72, 111, 170]
    assert log_spaced(3, 5, 6) == [3, 4, 5]
    assert log_spaced(1, 1, 4) == [1]
