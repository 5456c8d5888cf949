"""The patched run against the slow reference, its two ends, and the numbers made from it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import reference
import torch
from covering import FAMILIES, covering
from random_circuits import MIXED, circuit_of, random_mask
from small_models import prompts, tiny_model

import gradpath as gp
from gradpath.attribution.attribute import attribute
from gradpath.errors import GradpathError, InputError, UsageError
from gradpath.evaluation import evaluate, patched_run
from gradpath.evaluation.result import Result
from gradpath.selection import select
from gradpath.tasks.task import Task

TASK = MIXED[:3]
BOTH = (evaluate, attribute)
OTHERS = prompts([5, 8], [[1], [0, 6]])  # means are over these, which do not have the last position
ABLATIONS = {
    "corrupted": lambda *_: None,
    "zero": reference.zero,
    "mean": reference.mean,
    "mean-positional": reference.mean_positional,
}


@pytest.mark.parametrize(
    ("model", "ablation", "share"), covering(FAMILIES, ABLATIONS, [0.03, 0.3, 0.8]), indirect=["model"]
)
def test_circuits_equal_the_reference_and_all_edges_give_the_clean_run_and_none_the_ablated_one(
    model, ablation, share, monkeypatch
):
    """The random circuit is not pruned: there are nodes that write and read nothing."""
    every = model.graph.mask
    masks = [random_mask(model.graph, share), every, every & False]
    circuits = [circuit_of(model.graph, mask) for mask in masks]
    instead = ABLATIONS[ablation](model, OTHERS)
    expected = [reference.patched_metric(model, TASK, masks[i], instead) for i in (0, 2)]
    for small in (1.0, 0.0):  # MLPs run only where they matter, and everywhere
        monkeypatch.setattr(patched_run, "SMALL", small)
        part, full, empty = evaluate(model, circuits, TASK, batch_size=2, ablation=ablation, mean_over=OTHERS)
        for result, values in zip((part, empty), expected, strict=True):
            assert torch.allclose(result.circuit_values.double(), values, atol=1e-4)
        assert torch.allclose(full.circuit_values, full.clean_values, atol=1e-4)
        assert torch.allclose(empty.circuit_values, empty.corrupted_values, atol=1e-5)
        assert (full.faithfulness, full.error) == pytest.approx((1, 0), abs=1e-4)
        assert (empty.faithfulness, empty.error) == pytest.approx((0, 1), abs=1e-4)


def result(clean, corrupted, circuit) -> Result:
    return Result(*(torch.tensor(x, dtype=torch.float32) for x in (clean, corrupted, circuit)), 10, 8)


def test_faithfulness_and_error_by_hand():
    numbers = result([4.0, 2.0], [0.0, 0.0], [6.0, 0.0])
    assert numbers.faithfulness == 1.0  # the means agree
    assert numbers.error == pytest.approx(2 / 3)  # and both examples are off by 2, of a mean of 3


def test_a_circuit_of_another_model_is_refused(gpt2):
    other, parallel = tiny_model("llama-grouped"), tiny_model("neox")
    with pytest.raises(InputError, match="circuit is of another model"):
        evaluate(gpt2, circuit_of(other.graph, other.graph.mask), MIXED)
    with pytest.raises(InputError, match="it has 3 parallel layers of 3 heads, gpt2 has 3 layers of 3 heads"):
        evaluate(gpt2, circuit_of(parallel.graph, parallel.graph.mask), MIXED)


def test_pairs_with_equal_prompts_do_not_change_the_numbers_or_their_intervals(gpt2):
    circuit = circuit_of(gpt2.graph, random_mask(gpt2.graph, 0.5))
    few = MIXED.take([*range(len(MIXED)), 0, 1])
    same = ["8 9 10 11", "12 13 14", "9 8 7"] * 3
    more = Task([*few.clean, *same], [*few.corrupted, *same], torch.cat([few.labels, few.labels[:1].repeat(9, 1)]))
    without, with_same = (evaluate(gpt2, circuit, task) for task in (few, more))
    assert with_same.faithfulness == pytest.approx(without.faithfulness, abs=1e-5)
    assert with_same.interval == pytest.approx(without.interval, abs=1e-5)
    assert with_same.error_interval == pytest.approx(without.error_interval, abs=1e-5)


@pytest.mark.usefixtures("unchecked")
def test_swapped_and_wrong_arguments_are_named(gpt2):
    circuit = circuit_of(gpt2.graph, gpt2.graph.mask)
    for call, words in (
        (lambda: evaluate(circuit, gpt2, MIXED), "the model has to be a Transformer: got a Circuit"),
        (lambda: evaluate(gpt2, MIXED, circuit), "the circuit has to be a Circuit: got a Task"),
        (lambda: evaluate(gpt2, circuit, "ioi"), "the task has to be a Task: got a str"),
        (lambda: attribute(MIXED, gpt2), "the model has to be a Transformer: got a Task"),
        (lambda: attribute(gpt2, circuit), "the task has to be a Task: got a Circuit"),
        (lambda: select(gpt2, 5), "the first argument has to be a Scores: got a Transformer"),
    ):
        with pytest.raises(UsageError, match=words):
            call()


@pytest.mark.parametrize(
    ("task", "words", "verbs"),
    [
        (lambda: Task(MIXED.clean, MIXED.clean, MIXED.labels), "faithfulness is undefined", (evaluate,)),
        (lambda: replace(MIXED, metric=lambda logits, labels: logits[:, 0] / 0), "finite", (evaluate,)),
        (lambda: replace(MIXED, metric=lambda logits, _: logits[:, 0] * 1j), "real numbers: got torch.complex64", BOTH),
        (lambda: replace(MIXED, labels=MIXED.labels + 1000), "of them: token 10", BOTH),
        (lambda: Task(torch.tensor([[5, -1]]), torch.tensor([[6, -1]]), [[3, 4]]), "0 to 60: got -1 to 5", BOTH),
        (lambda: Task(torch.tensor([[5, 61]]), torch.tensor([[6, 61]]), [[3, 4]]), "0 to 60: got 5 to 61", BOTH),
        (lambda: prompts([40], [[3]]), "at most 32 tokens", BOTH),
    ],
)
def test_metrics_labels_and_prompts_that_a_model_cannot_use_end_in_a_sentence(gpt2, task, words, verbs):
    circuit = circuit_of(gpt2.graph, gpt2.graph.mask)
    for verb in verbs:
        with pytest.raises(GradpathError, match=words):
            verb(gpt2, circuit, task()) if verb is evaluate else verb(gpt2, task(), "eap")


def test_a_circuit_is_measured_with_what_it_was_found_with_unless_told(gpt2):
    scores = attribute(gpt2, MIXED, "eap", ablation="zero")
    circuit = select(scores, 40)
    assert circuit.recipe.ablation == "zero"
    own, zero, corrupted = (
        evaluate(gpt2, circuit, MIXED, ablation=name).circuit_values for name in (None, "zero", "corrupted")
    )
    assert torch.equal(own, zero)
    assert not torch.allclose(own, corrupted, atol=1e-3)
    other = select(attribute(gpt2, MIXED, "eap"), 40)
    with pytest.raises(UsageError, match=r"different ablations \(corrupted, zero\)"):
        evaluate(gpt2, [circuit, other], MIXED)


def test_selections_that_measure_do_so_with_the_ablation_of_the_scores(gpt2, monkeypatch):
    monkeypatch.setattr("gradpath.selection.probe.START", 0.8)
    scores = attribute(gpt2, MIXED, "eap", ablation="mean")
    as_if = replace(scores, recipe=scores.recipe.changed(ablation="corrupted"))
    own, other = (select(x, 25, selection="refined", model=gpt2, task=MIXED) for x in (scores, as_if))
    assert set(own.edges) != set(other.edges)


PATCHED = prompts([5, 7], [[2], [3, 4]])
EDGES = ["input->a1.h0<k>", "a0.h2->m1", "m2->logits"]


@pytest.mark.parametrize("kind", ["gpt2", "gemma2"])
def test_edges_are_corrupted_or_kept_as_defined(kind):
    model = tiny_model(kind)
    named = torch.zeros_like(model.graph.mask)
    for edge in EDGES:
        named[model.graph.index(edge)] = True
    corrupted = gp.patch(model, PATCHED, edges=EDGES)
    kept = gp.patch(model, PATCHED, edges=EDGES, keep=True)
    without = reference.patched_metric(model, PATCHED, model.graph.mask & ~named).float()
    alone = reference.patched_metric(model, PATCHED, named).float()
    assert torch.allclose(corrupted.circuit_values, without, atol=1e-4)
    assert torch.allclose(kept.circuit_values, alone, atol=1e-4)
    assert (kept.edges_kept, corrupted.edges_kept) == (3, model.graph.n_edges - 3)


def test_a_node_is_corrupted_with_all_that_it_writes_and_kept_with_the_edges_among_them():
    model = tiny_model("gpt2")
    corrupted = gp.patch(model, PATCHED, nodes=["a0.h1"])
    every = [edge for edge in names(model) if edge.startswith("a0.h1->")]
    assert torch.equal(corrupted.circuit_values, gp.patch(model, PATCHED, edges=every).circuit_values)
    inside = ("input->", "a0.h1->", "m2->"), ("->a0.h1<q>", "->a0.h1<k>", "->a0.h1<v>", "->m2", "->logits")
    among = [edge for edge in names(model) if edge.startswith(inside[0]) and edge.endswith(inside[1])]
    kept = gp.patch(model, PATCHED, nodes=["a0.h1", "m2"], keep=True)
    assert kept.edges_kept == len(among)
    assert torch.equal(kept.circuit_values, gp.patch(model, PATCHED, edges=among, keep=True).circuit_values)


def names(model):
    return [model.graph.edge(*pair) for pair in model.graph.mask.nonzero().tolist()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "patch needs edges or nodes: got none"),
        ({"edges": ["a9.h0->m0"]}, "no edge 'a9.h0->m0'"),
        ({"nodes": ["m7"]}, "no node 'm7'"),
        ({"nodes": "m0"}, r"nodes must be a list of names: got 'm0'\. Write \['m0'\]"),
    ],
)
def test_a_name_that_is_not_in_the_model_is_refused(options, message):
    with pytest.raises(gp.GradpathError, match=message):
        gp.patch(tiny_model("gpt2"), PATCHED, **options)
