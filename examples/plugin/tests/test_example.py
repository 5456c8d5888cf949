"""What the package adds, on a toy model: no download is needed."""

from __future__ import annotations

import torch
from gradpath_example import each_target, opposites, right_probability

import gradpath as gp
from gradpath.attribution.methods import METHODS
from gradpath.graph import Graph
from gradpath.selection import SELECTIONS, Context
from gradpath.tasks import METRICS, TASKS


def test_gradpath_knows_all_four_by_name():
    assert METHODS["eap-stratified"].options({"steps": 3}) == {"steps": 3, "seed": 0}
    assert SELECTIONS["each-target"].function is each_target
    assert METRICS["right-probability"] is right_probability
    assert TASKS["opposites"].candidates is opposites


def test_the_selection_takes_the_best_edge_of_every_target_first():
    graph = Graph(n_layers=2, n_heads=2)
    scores = gp.Scores(graph, torch.randn(graph.mask.shape, generator=torch.Generator().manual_seed(0)) * graph.mask)
    order = each_target(scores, Context()).edges
    assert sorted(order.tolist()) == graph.mask.flatten().nonzero()[:, 0].tolist()
    first = order[: graph.n_targets]
    assert sorted((first % graph.n_targets).tolist()) == list(range(graph.n_targets))
    assert set(first.tolist()) == {
        int(scores.values[:, target].abs().argmax()) * graph.n_targets + target for target in range(graph.n_targets)
    }


def test_the_metric_is_a_probability():
    assert right_probability(torch.zeros(2, 4), torch.tensor([[1, 0], [3, 2]])).tolist() == [0.25, 0.25]


def test_no_word_of_the_task_is_in_both_splits():
    halves = [opposites(split, None).pairs for split in ("train", "test")]
    words = [{word for pair in pairs for word in (*pair.right, *pair.wrong)} for pairs in halves]
    assert words[0]
    assert words[1]
    assert not words[0] & words[1]
