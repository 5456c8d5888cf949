"""``gp.find``: the same defaults and the same numbers as its parts, and files to go on with."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from dataclasses import replace

import pytest
import torch
from covering import some
from small_models import prompts, tiny_model

import gradpath as gp
from gradpath import defaults
from gradpath.errors import GradpathWarning, UsageError
from gradpath.pipeline import checked
from gradpath.pipeline.found import Found
from gradpath.prepared import PreparedBatches
from gradpath.recipe import Recipe
from gradpath.selection.faithful import smallest_faithful


@pytest.fixture(scope="module")
def model(model_folder):
    return gp.load_model(str(model_folder))


def page_data(file):
    return json.loads(re.search(r'id="data">(.*?)</script>', file.read_text(), re.DOTALL)[1])


def test_find_is_attribute_select_and_evaluate(model, tmp_path):
    found = gp.find(model, "ioi", edges=40, examples=4, curve=False)
    train, test = (gp.load_task("ioi", model, n=4, split=split) for split in ("train", "test"))
    scores = gp.attribute(model, train)
    circuit = gp.select(scores, 40, model=model, task=train)
    result = gp.evaluate(model, circuit, test)
    assert torch.equal(found.scores.values, scores.values)
    assert found.circuit.edges == circuit.edges
    assert torch.equal(found.result.circuit_values, result.circuit_values)
    found.save(tmp_path)
    assert gp.load_circuit(tmp_path / "circuit.json").edges == circuit.edges
    found.report(tmp_path / "mine.html")
    assert "<html" in (tmp_path / "mine.html").read_text()


def test_find_without_a_size_gives_the_smallest_circuit_that_keeps_its_share(model):
    found = gp.find(model, "ioi", examples=4, curve=False)
    examples = PreparedBatches(model, found.attributed)
    assert found.circuit.requested == smallest_faithful(examples, found.order, defaults.FAITHFULNESS)
    assert found.circuit.recipe.faithfulness == defaults.FAITHFULNESS
    with pytest.warns(GradpathWarning, match="the method 'eap' has no steps: steps=5 is ignored"):
        gp.find(model, "ioi", examples=4, method="eap", steps=5, edges=5, curve=False)


def test_a_circuit_too_large_to_read_has_the_best_small_one_beside_it(model, tmp_path, monkeypatch):
    for module in ("gradpath.pipeline", "gradpath.pipeline.found"):
        monkeypatch.setattr(f"{module}.READABLE", 30)
    found = gp.find(model, "ioi", examples=4, method="eap", selection="top")
    assert len(found.circuit) > 30
    sizes = [result.edges_requested for result in found.curve]
    assert 30 in sizes
    readable = [result for result in found.curve if 0 < result.edges_kept <= 30]
    assert found.small in readable
    assert abs(1 - found.small.faithfulness) == min(abs(1 - result.faithfulness) for result in readable)
    assert "no circuit of up to 30 edges with faithfulness 85% was found" in str(found)
    found.report(tmp_path / "report.html")
    page = page_data(tmp_path / "report.html")
    assert page["small"] == found.small.edges_requested
    assert page["small_text"].startswith("No circuit of up to 30 edges")
    assert gp.find(model, "ioi", examples=4, method="eap", selection="top", edges=len(found.circuit)).small is None


def test_few_pairs_for_attribution_are_said(run, model_folder, tmp_path):
    options = ("--model", model_folder, "--method", "eap", "--selection", "top", "--edges", 20)
    few = run("find", *options, "--examples", 19, "--out", tmp_path / "few")
    assert "19 pairs are few for attribution" in few.err
    assert "few for attribution" in (tmp_path / "few" / "report.html").read_text()
    assert "few for attribution" not in run("find", *options, "--examples", 20, "--out", tmp_path / "enough").err


@pytest.mark.parametrize("how", some(["refined", "top", "random-paths"], ["refined", "random-paths"]))
def test_report_has_measured_circuits_of_many_sizes_and_those_of_top(model, tmp_path, how, monkeypatch):
    monkeypatch.setattr("gradpath.pipeline.READABLE", 25)
    found = gp.find(model, "ioi", edges=30, selection=how, examples=4)
    sizes = [result.edges_requested for result in found.curve]
    assert sizes == [1, 2, 3, 4, 6, 10, 16, 25]
    assert [result.edges_requested for result in found.top] == ([] if how == "top" else [*sizes[-2::-3], 30])
    chosen = gp.select(found.scores, 30, selection=how, model=model, task=found.attributed)
    assert found.circuit.edges == chosen.edges
    file = tmp_path / "report.html"
    found.report(file)
    data = page_data(file)
    points = data["runs"][0]["curve"]
    assert sorted(p["requested"] for p in points if p["how"] == how) == [*sizes, 30]
    assert (data["chosen"]["requested"], data["chosen"]["found"]) == (30, True)


def test_every_call_has_the_same_default_method_and_selection(model):
    methods = [inspect.signature(function).parameters["method"].default for function in (gp.attribute, gp.find)]
    assert methods == [defaults.METHOD, defaults.METHOD]
    assert checked(Recipe()).selection == defaults.SELECTION
    task = gp.load_task("ioi", model, n=2)
    scores = gp.attribute(model, task)
    assert scores.recipe.method == defaults.METHOD
    assert gp.select(scores, 10, model=model, task=task).selection == defaults.SELECTION
    assert gp.select(scores, 10).selection == defaults.RANKING


def test_find_takes_a_task_and_measures_on_its_other_half(model):
    task = gp.load_task("ioi", model, n=9)
    own = gp.Task(task.clean, task.corrupted, task.labels, name="mine")
    options = {"edges": 40, "method": "eap", "selection": "top", "curve": False}
    found = gp.find(model, own, **options)
    assert (list(found.attributed.clean), list(found.measured.clean)) == (task.clean[::2], task.clean[1::2])
    assert found.circuit.recipe.task == "mine"
    scores = gp.attribute(model, own.take(range(0, 9, 2)), "eap")
    assert torch.equal(found.scores.values, scores.values)
    assert len(gp.find(model, own, examples=2, **options).measured) == 2
    assert len(gp.find(model, own, split="all", **options).measured) == 9
    with pytest.warns(GradpathWarning, match="nothing is held out, because there are fewer than 8 usable pairs"):
        few = gp.find(model, own[:7], **options)
    assert (len(few.attributed), few.measured is few.attributed) == (7, True)
    with pytest.raises(UsageError, match="a Task has its own metric"):
        gp.find(model, own, metric="kl")
    with pytest.raises(UsageError, match="give either a Task or `data`"):
        gp.find(model, own, data="pairs.csv")


def test_find_compares_with_random_circuits_in_one_sentence(model, tmp_path):
    found = gp.find(model, "ioi", edges=40, selection="top", examples=14)
    assert Counter(result.edges_requested for result in found.random).most_common(1) == [(40, 19)]
    assert sorted(Counter(result.edges_requested for result in found.random).values()) == [3, 3, 3, 19]
    assert all(len(result.clean_values) == 12 for result in [found.few, *found.random])
    again = gp.select(found.scores, 40, selection="random-paths+seed=1")
    assert found.random[4].circuit_values.tolist() == pytest.approx(
        gp.evaluate(model, again, found.measured[:12]).circuit_values.tolist(), abs=1e-5
    )
    errors = [result.error for result in found.random if result.edges_requested == 40]
    better = sum(error > found.few.error for error in errors)
    if found.result.does_task == "no":
        assert "does not do this task" in found.summary
    else:
        assert f"better than {f'all {better}' if better == 19 else f'{better} of 19'} random" in found.summary
    found.report(tmp_path / "report.html")
    data = page_data(tmp_path / "report.html")
    assert data["verdict"]["checks"] == []
    assert data["verdict"]["sentence"] == found.summary[0].upper() + found.summary[1:]
    assert ("gradpath test" in data["verdict"]["command"]) == (found.result.does_task != "no")
    assert sum(point["how"] == "random" for point in data["runs"][0]["curve"]) == len(found.random)


def test_the_sentence_on_a_circuit_has_its_interval_and_its_core(model, monkeypatch):
    found = gp.find(model, "ioi", edges=10, examples=14)
    result, n = replace(found.result, has_answers=False), len(found.circuit)
    circuit = replace(found.circuit, frequency=torch.tensor([1.0] * (n - 1) + [0.5]))
    monkeypatch.setattr(type(result), "does_task", "yes")
    monkeypatch.setattr(type(result), "interval", (0.681, 0.924))
    random = [replace(result, edges_requested=10)] * 19
    found = replace(found, circuit=circuit, result=result, few=result, random=random)
    assert found.summary == (
        f"keeps {result.faithfulness:.0%} [68, 92] of the behaviour; {n - 1} of {n} edges are in every resample; "
        "better than 0 of 19 random circuits of its size"
    )


def test_the_whole_verdict_takes_the_place_of_the_sentence(model, tmp_path, monkeypatch):
    found = gp.find(model, "ioi", edges=40, selection="top", examples=12)
    monkeypatch.setattr(type(found.result), "does_task", "yes")  # of others, nothing is tested
    verdict = gp.test(model, found.circuit, found.measured)
    found.report(tmp_path / "report.html", verdict=verdict)
    shown = page_data(tmp_path / "report.html")["verdict"]
    assert {check["name"]: check["passed"] for check in shown["checks"]} == {
        name: check.passed for name, check in verdict.checks.items()
    }
    assert shown["command"] == ""


def test_a_report_of_a_metric_without_a_gradient_says_why_it_has_no_inside(tmp_path):
    model, task = tiny_model("gpt2"), prompts([5, 6], [[2], [3]])
    ranks = replace(
        task, metric=lambda logits, labels: (logits.argsort(-1).argsort(-1).gather(1, labels)[:, 0]).float()
    )
    scores = gp.attribute(model, ranks, "exact")
    circuit = gp.select(scores, n=20, selection="top")
    found = Found(ranks, PreparedBatches(model, ranks), scores, circuit, gp.evaluate(model, circuit, ranks), [])
    found.report(tmp_path / "report.html")
    data = page_data(tmp_path / "report.html")
    assert data["inside"] is None
    assert "gradient" in data["no_inside"]
