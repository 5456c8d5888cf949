"""A task's examples are encoded once in one ``find``, and a part of them is a task of its own."""

from __future__ import annotations

import pytest
import torch
from covering import some
from small_models import prompts, tiny_model

import gradpath as gp
from gradpath.evaluation import evaluate_many
from gradpath.pipeline import run_find
from gradpath.prepared import PreparedBatches
from gradpath.recipe import Recipe
from gradpath.tasks.task import encode

TASK = prompts([9, 8, 7], [[6], [5, 7], [4]])


def test_find_and_its_report_encode_each_task_once(gpt2, monkeypatch, tmp_path):
    encoded = []
    monkeypatch.setattr("gradpath.prepared.encode", lambda *args: encoded.append(args[0]) or encode(*args))
    task, held_out = (prompts([6, 6, 6], [[4], [4], [4]], seed=seed) for seed in (0, 1))
    monkeypatch.setattr("gradpath.pipeline.load_examples", lambda *args, **options: (task, held_out))
    found = run_find(gpt2, Recipe(edges=20))
    found.save(tmp_path)
    assert (tmp_path / "report.html").exists()
    assert [len(x) for x in encoded] == [3, 3]
    again = gp.evaluate(gpt2, found.circuit, held_out)
    assert torch.allclose(found.result.circuit_values, again.circuit_values, atol=1e-5)


def test_a_part_of_prepared_examples_gives_their_values():
    model = tiny_model("llama-grouped")
    circuit = gp.select(gp.attribute(model, TASK, "eap"), n=30)
    part = PreparedBatches(model, TASK).take([2, 0])
    [result] = evaluate_many(part, [circuit])
    expected = gp.evaluate(model, circuit, TASK).circuit_values[[2, 0]]
    assert torch.allclose(result.circuit_values, expected, atol=1e-5)


@pytest.mark.parametrize("selection", some(["refined", "acdc+threshold=0.02", "learned+steps=4"], ["refined"]))
def test_no_circuit_depends_on_the_batch_size_or_the_memory(selection):
    model = tiny_model("llama-grouped")
    task = prompts([9, 8, 7, 8] * 4, [[6], [5], [4], [3]] * 4)
    limits = ({}, {"batch_size": 1}, {"batch_size": 3}, {"memory": 10**9})
    found = [gp.find(model, task, selection=selection, edges=40, curve=False, **limit) for limit in limits]
    assert len({tuple(one.circuit.edges) for one in found}) == 1
