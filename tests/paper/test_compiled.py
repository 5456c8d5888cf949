"""Compiled models: they compute their program, as GPT-2 checkpoints, and their circuits are what is stored."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

import gradpath as gp
from gradpath.errors import UsageError
from gradpath.paper import compiled as compiled_module
from gradpath.paper import truth
from gradpath.paper.compiled import LEVELS, hf_model, layout_of, load_program, program_names, rotation_of
from gradpath.paper.truth import agreement, circuits_of_ranking
from gradpath.study import Study
from gradpath.study.bench import Bench, Store
from gradpath.study.outcome import reproduce
from true_edges import CHANGE, true_edges, without

load_compiled = cache(compiled_module.load_compiled)
# What auto-circuit has (Miller et al. 2024); reverse is read at the last position, as everything here.
PUBLISHED = {
    "xproportion": {"input->m0", "m0->a1.h0<v>", "a1.h0->logits"},
    "reverse": {"input->a3.h0<v>", "a3.h0->logits"},
}


def test_there_are_enough_programs_of_every_kind():
    assert len(program_names()) >= 12
    kinds = [kind for name in program_names() for kind in load_compiled(name).kinds.values()]
    assert min(kinds.count(kind) for kind in ("open", "saturated", "redundant")) >= 5


@pytest.mark.parametrize("name", program_names())
def test_a_compiled_model_gives_the_answers_of_its_program_at_all_levels(name):
    for level in LEVELS:
        own = load_compiled(name, level)
        task = own.all_pairs
        clean, corrupted = (own.model.logits(ids)[:, -1] for ids in (task.clean, task.corrupted))
        gap = task.metric(clean, task.labels) - task.metric(corrupted, task.labels)
        if own.program.answers is None:
            assert (gap > 0.1).all()
        else:
            assert torch.allclose(gap, torch.full_like(gap, 2.0), atol=1e-3)


@pytest.mark.parametrize("name", PUBLISHED)
def test_true_edges_are_the_published_ones(name):
    assert load_compiled(name).kinds.keys() == PUBLISHED[name]


@pytest.mark.parametrize("name", ["previous", "count"])
def test_stored_true_edges_are_those_that_interventions_give(name):
    own = load_compiled(name)
    assert true_edges(own.model, own.all_pairs) == own.kinds


@pytest.mark.slow
@pytest.mark.parametrize("name", ["xproportion", "first-is-last", "pattern", "two-copies"])
def test_more_stored_true_edges_are_those_that_interventions_give(name):
    own = load_compiled(name)
    assert true_edges(own.model, own.all_pairs) == own.kinds


@pytest.mark.parametrize("name", ["two-copies", "induction"])
def test_the_true_circuit_is_all_of_a_model_that_hides_it(name):
    own = load_compiled(name, "curved")
    assert gp.evaluate(own.model, own.circuit, own.all_pairs).error < CHANGE


def test_redundant_edges_do_nothing_one_by_one_and_everything_together():
    own = load_compiled("two-copies")
    graph, exact = own.model.graph, gp.attribute(own.model, own.task, "exact")
    redundant = [edge for edge, kind in own.kinds.items() if kind == "redundant"]
    assert redundant
    assert all(abs(float(exact[edge])) < CHANGE for edge in redundant)
    edges = [graph.edge(u, v) for u, v in graph.mask.nonzero().tolist()]
    both = without(graph, tuple(i for i, edge in enumerate(edges) if edge in redundant))
    assert gp.evaluate(own.model, both, own.task).error > 0.5


def test_a_saturated_edge_has_an_effect_but_no_gradient():
    own = load_compiled("count")
    exact, eap = (gp.attribute(own.model, own.task, method) for method in ("exact", "eap"))
    saturated = [edge for edge, kind in own.kinds.items() if kind == "saturated"]
    assert saturated
    assert all(abs(float(eap[edge])) < 1e-6 for edge in saturated)
    assert max(abs(float(exact[edge])) for edge in saturated) > 0.1


def test_a_curved_model_has_gradients_where_nothing_happens():
    own = load_compiled("previous", "curved")
    exact, eap = (gp.attribute(own.model, own.task, method).values for method in ("exact", "eap"))
    misleading = (eap.abs() > 0.1) & (exact.abs() < CHANGE)
    assert misleading.any()
    assert not (misleading & own.circuit.mask).any()


def test_a_rotation_leaves_the_mean_and_two_coordinates_alone():
    rotation = rotation_of(12, (4, 5), torch.Generator().manual_seed(0))
    ones = torch.ones(12, dtype=torch.float64)
    assert torch.allclose(rotation @ rotation.T, torch.eye(12, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(rotation @ ones, ones, atol=1e-12)
    assert (rotation[:4, :4].abs() > 1e-3).all()
    assert rotation[4, 4] == rotation[5, 5] == 1


def test_scores_do_not_depend_on_the_rotation(monkeypatch):
    turned = load_compiled("pattern", "hidden")
    monkeypatch.setattr(compiled_module, "rotation_of", lambda d, *_: torch.eye(d, dtype=torch.float64))
    straight = compiled_module.load_compiled("pattern", "hidden")
    a, b = (gp.attribute(own.model, own.task, "eap-ig").values for own in (turned, straight))
    assert not torch.equal(turned.model.embedding, straight.model.embedding)
    assert torch.allclose(a, b, atol=1e-3 * float(a.abs().max()))


def test_a_saved_model_is_a_checkpoint_with_data_and_a_circuit(tmp_path):
    own = load_compiled("pattern", "hidden")
    own.save(tmp_path)
    model = gp.load_model(tmp_path)
    task = gp.load_task(None, model, data=tmp_path / "pairs.csv", n=20)
    assert torch.equal(model.embedding, own.model.embedding)
    circuit = gp.load_circuit(tmp_path / "circuit.json")
    assert set(circuit.edges) == own.kinds.keys()
    result = gp.evaluate(model, circuit, task)
    assert result.error < CHANGE
    assert result.clean - result.corrupted == pytest.approx(2, abs=1e-3)


def test_transformers_computes_the_same():
    own = load_compiled("pointer", "curved")
    with torch.no_grad():
        expected = hf_model(own.program, "curved")(own.task.clean).logits
    assert torch.allclose(own.model.logits(own.task.clean), expected, atol=1e-3)


def test_places_of_a_hidden_program_map_edge_by_edge():
    layout = layout_of(load_program("parity"), "hidden")
    assert layout.edge("input->logits") == "input->logits"
    assert layout.node("m1") == f"m{layout.layers[1]}"
    assert layout.node("a0.h1<v>") == f"a{layout.layers[0]}.h{layout.heads[0][1]}<v>"


def test_an_unknown_program_or_level_is_refused_by_name():
    with pytest.raises(UsageError, match="xproportion"):
        load_compiled("xproportions")
    with pytest.raises(UsageError, match="curved, hidden, plain"):
        load_compiled("xproportion", "hard")


def test_agreement_is_average_precision():
    kinds = {"a": "open", "b": "saturated"}
    row = agreement([frozenset("a"), frozenset("ax"), frozenset("axb"), frozenset("axbyz")], kinds)
    assert row["area"] == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert (row["f1"], row["edges"]) == (pytest.approx(0.8), 3)
    assert (row["open_found"], row["saturated_found"], row["redundant_true"]) == (1, 1, 0)


def test_equal_scores_come_together():
    own = load_compiled("previous")
    scores = gp.attribute(own.model, own.task, "eap")
    tied = replace(scores, values=torch.zeros_like(scores.values))
    assert [len(circuit) for circuit in circuits_of_ranking(tied)] == [scores.graph.n_edges]


@pytest.mark.slow
def test_truth_writes_its_models_and_tables_and_a_second_run_computes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(truth, "program_names", lambda: ["previous"])
    monkeypatch.setattr(truth, "SELECTIONS", ("refined",))
    study = Study(methods=("eap", "exact"))

    def written():
        bench = Bench(truth.own_model(), study, Store(tmp_path))
        [one] = reproduce(bench, [truth.TRUTH], tmp_path, command="gradpath reproduce truth")
        return one, {file: file.stat().st_mtime_ns for file in (tmp_path / "cells").iterdir()}

    (first, cells), (second, same) = written(), written()
    assert cells == same
    assert len(cells) == len(LEVELS) * 3 == len(first.outcome.rows)
    assert first.outcome.text == second.outcome.text
    exact = [row for row in first.outcome.rows if row["method"] == "exact"]
    assert all(row["area"] == 1 for row in exact)
    circuit = gp.load_circuit(tmp_path / "models" / "previous-curved" / "circuit.json")
    assert set(circuit.edges) == load_compiled("previous", "curved").kinds.keys()
