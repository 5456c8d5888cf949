"""``print``, ``repr``, ``==`` and ``hash``: what a thing is, without tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_models import prompts, tiny_model

from gradpath.attribution.attribute import attribute
from gradpath.circuit import Circuit
from gradpath.evaluation import evaluate
from gradpath.evaluation.result import Result
from gradpath.pipeline.found import Found
from gradpath.prepared import PreparedBatches
from gradpath.scores import Scores
from gradpath.selection import select
from gradpath.tasks.task import Task


@pytest.fixture(scope="module")
def things() -> dict[str, object]:
    model, task = tiny_model("gpt2"), prompts([6] * 4, [[2]] * 4)
    scores = attribute(model, task, "eap-ig")
    circuit = select(scores, 60, selection="top")
    result = evaluate(model, circuit, task)
    found = Found(task, PreparedBatches(model, task), scores, circuit, result, [])
    return {one.__class__.__name__: one for one in (model, task, scores, circuit, result, found)}


@pytest.mark.parametrize("name", ["Transformer", "Task", "Scores", "Result", "Found"])
def test_what_holds_tensors_equals_itself_alone_and_can_be_in_a_set(things, name):
    one = things[name]
    assert one == one
    assert one != replace(one)
    assert len({one, one, replace(one)}) == 2


def test_a_result_shows_faithfulness_error_both_intervals_and_edges(things):
    result = things["Result"]
    assert isinstance(result, Result)
    text = str(result)
    assert result.interval is None
    assert text.count("4 examples: no interval") == 3
    assert f"{result.faithfulness:.1%}" in text
    assert f"{result.error:.3f}" in text
    assert f"{result.edges_kept} after pruning, 60 requested" in text
    assert str(result).splitlines()[0].strip() in str(things["Found"])


def test_scores_and_circuits_list_their_strongest_edges_and_how_they_were_made(things):
    for one in (things["Scores"], things["Circuit"]):
        assert isinstance(one, Scores | Circuit)
        assert "by eap-ig (5 steps, 4 examples)" in str(one)
        strongest = str(one).splitlines()[2].split()
        scores = things["Scores"]
        assert isinstance(scores, Scores)
        assert strongest[2] == f"{scores[strongest[1]]:+.4g}"
    largest = float(scores.values.abs().max())
    assert abs(float(str(scores).splitlines()[2].split()[2])) == pytest.approx(largest, rel=1e-3)


def test_a_task_shows_its_metric_and_its_first_pair_however_long():
    text = str(Task(["5 " * 400 + "6"], ["7 " * 400 + "6"], [(" 8", " 9")]))
    assert "logit-difference" in text
    assert "(' 8', ' 9')" in text
    assert all(len(line) < 130 for line in text.splitlines())
    assert "5 6" in text
    ids = Task(
        torch.tensor([[5, 6, 7]]), torch.tensor([[5, 9, 7]]), torch.tensor([[3, 4]]), metric=lambda x, y: x[:, 0]
    )
    assert "[5, 6, 7]" in str(ids)
    assert "lambda" in str(ids)
