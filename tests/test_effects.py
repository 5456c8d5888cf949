"""Effects of a circuit's edges against the gradient of the plain patched run by the edges' weights."""

from __future__ import annotations

import pytest
import reference
import torch
from small_models import prompts

from gradpath.effects import edge_effects
from gradpath.intervention import plan, set_stage
from gradpath.selection import pruned
from gradpath.tasks.task import encode
from test_evaluation import circuit_of, random_mask

MIXED = prompts([6, 9, 6], [[0], [4], [2, 3, 5]])


def effects_of(model, mask, batch_size):
    todo = plan(model, circuit_of(model.graph, mask))
    values, effects = torch.empty(len(MIXED)), torch.empty(len(MIXED), int(mask.sum()))
    for batch in encode(MIXED, model.tokenizer).batches(batch_size):
        with torch.no_grad():
            stage = set_stage(model, batch)
        values[batch.index], effects[batch.index] = edge_effects(stage, todo, MIXED.metric)
    return values, effects


@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
def test_effects_are_the_gradients_of_the_patched_run_by_the_edges_weights(model, share):
    mask = pruned(model.graph, random_mask(model.graph, share))
    assert mask.any()
    weights = mask.double().requires_grad_()
    expected = reference.patched_metric(model, MIXED, weights)
    gradients = [torch.autograd.grad(value, weights, retain_graph=True)[0][mask] for value in expected]
    for batch_size in (1, 3):
        values, effects = effects_of(model, mask, batch_size)
        assert torch.allclose(values.double(), expected.detach(), atol=1e-4)
        scale = torch.stack(gradients).abs().max()
        assert torch.allclose(effects.double() / scale, torch.stack(gradients) / scale, atol=1e-5)


def test_a_circuit_without_edges_has_no_effects(model):
    values, effects = effects_of(model, model.graph.mask & False, 3)
    assert effects.shape == (3, 0)
    assert torch.allclose(
        values.double(), reference.patched_metric(model, MIXED, model.graph.mask & False), atol=1e-4
    )
