"""Which ablation is used where; ``attribution`` and ``evaluation`` compare each of them with the reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from random_circuits import MIXED, circuit_of

from gradpath import selection
from gradpath.attribution.attribute import attribute
from gradpath.errors import UsageError
from gradpath.evaluation import evaluate
from gradpath.selection import select


def test_a_positive_score_is_of_an_edge_that_ablation_hurts(gpt2):
    """Leaving out one edge into the logits moves the metric by about its score."""
    scores = attribute(gpt2, MIXED, "eap", ablation="mean")
    for edge in ("a2.h0->logits", "m2->logits", "a2.h1->logits"):
        mask = gpt2.graph.mask.clone()
        mask[gpt2.graph.index(edge)] = False
        result = evaluate(gpt2, circuit_of(gpt2.graph, mask), MIXED, ablation="mean")
        drop = float((result.clean_values - result.circuit_values).mean())
        assert drop == pytest.approx(scores[edge], rel=0.5, abs=0.02)


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
    own, other = (selection.select(x, 25, selection="refined", model=gpt2, task=MIXED) for x in (scores, as_if))
    assert set(own.edges) != set(other.edges)
