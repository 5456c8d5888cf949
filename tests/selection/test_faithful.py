"""The smallest circuit that keeps a share of the behaviour, against measuring every size."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from covering import some
from small_models import prompts, tiny_model

from gradpath import pipeline, prepared
from gradpath.attribution.attribute import attribute
from gradpath.errors import UsageError
from gradpath.evaluation import evaluate
from gradpath.limits import Limits
from gradpath.pipeline import run_find
from gradpath.prepared import PreparedBatches, prepare
from gradpath.recipe import Recipe
from gradpath.selection import faithful, rank
from gradpath.selection.faithful import log_spaced, smallest_faithful

TASK = prompts([6, 9, 6, 7], [[0], [4], [2, 3], [6]])


@pytest.fixture(scope="module")
def circuits():
    model = tiny_model("gpt2")
    order = rank(attribute(model, TASK))
    every = [order.circuit(n) for n in range(1, len(order.edges) + 1)]
    return model, order, torch.tensor([one.faithfulness for one in evaluate(model, every, TASK)])


@pytest.mark.parametrize("share", some([0.2, 0.6, 0.9], [0.6]))
def test_the_smallest_size_is_found_where_every_size_is_measured(circuits, share, monkeypatch):
    monkeypatch.setattr(faithful, "RATIO", 1.0001)  # neighbouring sizes
    model, order, kept = circuits
    passing = ((1 - kept).abs() <= 1 - share + 1e-6).nonzero()[:, 0] + 1
    assert smallest_faithful(PreparedBatches(model, TASK), order, share) == int(passing[0])


@pytest.mark.parametrize("share", [0.3, 0.85, 0.97])
def test_the_size_found_keeps_the_share_and_the_measured_ones_below_do_not(circuits, share, monkeypatch):
    model, order, kept = circuits
    measured, measure = [], faithful.measure_circuits

    def noted(prepared_batches, some, *args):
        measured.extend(one.requested for one in some)
        return measure(prepared_batches, some, *args)

    monkeypatch.setattr(faithful, "measure_circuits", noted)
    n = smallest_faithful(PreparedBatches(model, TASK), order, share)
    passing = (1 - kept).abs() <= 1 - share + 1e-6
    below = [size for size in measured if size < n]
    assert passing[n - 1]
    assert not any(passing[size - 1] for size in below)
    assert n <= max(max(below, default=0) + 1, faithful.FINE * max(below, default=0))
    assert len(measured) <= 2 * math.log(len(order.edges), faithful.RATIO)


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


def test_the_whole_model_keeps_everything(circuits):
    model, order, _ = circuits
    assert smallest_faithful(PreparedBatches(model, TASK), order, 1.0) <= len(order.edges)


@pytest.mark.parametrize("share", [0.0, -1.0, 85.0])
def test_a_share_that_no_circuit_can_keep_is_refused(circuits, share):
    model, order, _ = circuits
    with pytest.raises(UsageError, match=r"as in 0.85: got"):
        smallest_faithful(PreparedBatches(model, TASK), order, share)


def test_sizes_are_spread_evenly_and_differ():
    assert log_spaced(20, 12_321, 16)[:6] == [20, 31, 47, 72, 111, 170]
    assert log_spaced(3, 5, 6) == [3, 4, 5]
    assert log_spaced(1, 1, 4) == [1]
