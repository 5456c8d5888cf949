"""``gp.patch`` against patched runs by their definition."""

from __future__ import annotations

import pytest
import reference
import torch
from small_models import prompts, tiny_model

import gradpath as gp

TASK = prompts([5, 7], [[2], [3, 4]])
EDGES = ["input->a1.h0<k>", "a0.h2->m1", "m2->logits"]


@pytest.mark.parametrize("kind", ["gpt2", "gemma2"])
def test_edges_are_corrupted_or_kept_as_defined(kind):
    model = tiny_model(kind)
    named = torch.zeros_like(model.graph.mask)
    for edge in EDGES:
        named[model.graph.index(edge)] = True
    corrupted = gp.patch(model, TASK, edges=EDGES)
    kept = gp.patch(model, TASK, edges=EDGES, keep=True)
    without = reference.patched_metric(model, TASK, model.graph.mask & ~named).float()
    alone = reference.patched_metric(model, TASK, named).float()
    assert torch.allclose(corrupted.circuit_values, without, atol=1e-4)
    assert torch.allclose(kept.circuit_values, alone, atol=1e-4)
    assert (kept.edges_kept, corrupted.edges_kept) == (3, model.graph.n_edges - 3)


def test_a_node_is_corrupted_with_all_that_it_writes_and_kept_with_the_edges_among_them():
    model = tiny_model("gpt2")
    corrupted = gp.patch(model, TASK, nodes=["a0.h1"])
    every = [edge for edge in names(model) if edge.startswith("a0.h1->")]
    assert torch.equal(corrupted.circuit_values, gp.patch(model, TASK, edges=every).circuit_values)
    inside = ("input->", "a0.h1->", "m2->"), ("->a0.h1<q>", "->a0.h1<k>", "->a0.h1<v>", "->m2", "->logits")
    among = [edge for edge in names(model) if edge.startswith(inside[0]) and edge.endswith(inside[1])]
    kept = gp.patch(model, TASK, nodes=["a0.h1", "m2"], keep=True)
    assert kept.edges_kept == len(among)
    assert torch.equal(kept.circuit_values, gp.patch(model, TASK, edges=among, keep=True).circuit_values)


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
        gp.patch(tiny_model("gpt2"), TASK, **options)
