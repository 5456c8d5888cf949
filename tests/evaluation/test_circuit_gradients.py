"""Effects of a circuit's edges against the gradient of the plain patched run by the edges' weights."""

from __future__ import annotations

import pytest
import reference
import torch
from covering import BLOCKS, FAMILIES, FEW_BLOCKS, covering
from random_circuits import circuit_of, random_mask
from small_models import prompts, tiny_model

from gradpath.evaluation import circuit_gradients
from gradpath.evaluation.circuit_gradients import edge_effects, loss_gradient
from gradpath.evaluation.patched_run import plan_of, run_circuits
from gradpath.graph import pruned
from gradpath.prepared import prepare
from gradpath.tasks.task import encode

MIXED = prompts([6, 9, 6], [[0], [4], [2, 3, 5]])


def effects_of(model, mask, batch_size, asked=None, weights=None):
    todo = plan_of(model, circuit_of(model.graph, mask), weights)
    asked = (mask if asked is None else asked).flatten().nonzero()[:, 0]
    values = torch.empty(len(MIXED), dtype=model.dtype)
    effects = torch.empty(len(MIXED), len(asked), dtype=model.dtype)
    for batch in encode(MIXED, model.tokenizer).batches(batch_size):
        with torch.no_grad():
            stage = prepare(model, batch)
        values[batch.index], effects[batch.index] = edge_effects(stage, todo, MIXED.metric, asked)
    return values, effects


@pytest.mark.parametrize(("model", "share"), covering(FAMILIES, [0.3, 0.9], quick=BLOCKS), indirect=["model"])
def test_effects_are_the_gradients_of_the_patched_run_by_the_edges_weights(model, share):
    single, model = model, model.to(dtype=torch.float64)
    mask = pruned(model.graph, random_mask(model.graph, share))
    generator = torch.Generator().manual_seed(0)
    weights = (mask * torch.rand(mask.shape, generator=generator, dtype=torch.float64)).requires_grad_()
    expected = reference.patched_metric(model, MIXED, weights)
    gradients = torch.stack([torch.autograd.grad(value, weights, retain_graph=True)[0][mask] for value in expected])
    values, effects = effects_of(model, mask, 2, weights=weights.detach())
    assert torch.allclose(values, expected.detach(), rtol=0, atol=1e-10)
    assert torch.allclose(effects / gradients.abs().max(), gradients / gradients.abs().max(), rtol=0, atol=1e-10)
    # Weights of 1 are the circuit itself, to the last bit.
    _, whole = effects_of(model, mask, 2, weights=torch.ones_like(weights))
    _, plain = effects_of(model, mask, 2)
    assert torch.equal(whole, plain)
    _, rounded = effects_of(single, mask, 3)
    assert torch.allclose(rounded.double(), plain, rtol=0, atol=1e-4 * float(plain.abs().max()))


@pytest.mark.parametrize(("model", "share"), covering(FAMILIES, [0.3, 0.9], quick=FEW_BLOCKS), indirect=["model"])
def test_the_gradient_of_a_loss_is_that_of_the_patched_run(model, share, monkeypatch):
    model, graph = model.to(dtype=torch.float64), model.graph
    mask = pruned(graph, random_mask(graph, share))
    generator = torch.Generator().manual_seed(0)
    weights = (mask * torch.rand(mask.shape, generator=generator, dtype=torch.float64)).requires_grad_()
    [batch] = encode(MIXED, model.tokenizer).batches(len(MIXED))
    goal = torch.linspace(-1, 1, len(MIXED), dtype=torch.float64)
    expected = reference.patched_metric(model, MIXED, weights)
    loss = (expected - goal).square().sum()
    gradient = torch.autograd.grad(loss, weights)[0].flatten()
    with torch.no_grad():
        prepared = prepare(model, batch)
    plan = plan_of(model, circuit_of(graph, mask), weights.detach())
    asked = graph.mask.flatten().nonzero()[:, 0].flip(0)
    _, effects = edge_effects(prepared, plan, MIXED.metric, asked)
    monkeypatch.setattr(circuit_gradients, "TARGETS", 1)  # a product for each layer, instead of one for all
    _, by_layer = edge_effects(prepared, plan, MIXED.metric, asked)
    assert torch.allclose(effects, by_layer, rtol=0, atol=1e-10 * float(effects.abs().max()))
    for layers in (1, 6):  # one product for each layer, and one for all
        monkeypatch.setattr(circuit_gradients, "LAYERS", layers)
        values, found = loss_gradient(
            prepared, plan, MIXED.metric, asked, lambda x: (x - goal[batch.index]).square().sum()
        )
        assert torch.allclose(values, expected.detach()[batch.index], rtol=0, atol=1e-10)
        inside = mask.flatten()[asked]
        scale = gradient.abs().max()
        assert torch.allclose(found[inside] / scale, gradient[asked][inside] / scale, rtol=0, atol=1e-10)
        by_examples = 2 * (values - goal[batch.index]) @ effects
        assert torch.allclose(found / scale, by_examples / scale, rtol=0, atol=1e-10)
        assert torch.equal(found == 0, (effects == 0).all(0))


@pytest.mark.parametrize("model", ["gpt2", "gemma2"], indirect=True)
def test_edges_around_a_circuit_have_the_effects_that_taking_them_in_would_have_at_first(model):
    model = model.to(dtype=torch.float64)
    mask = pruned(model.graph, random_mask(model.graph, 0.3))
    weights = mask.double().requires_grad_()
    expected = reference.patched_metric(model, MIXED, weights)
    gradients = torch.stack([torch.autograd.grad(x, weights, retain_graph=True)[0] for x in expected])
    around = model.graph.mask & ~mask & mask.any(1)[:, None] & mask.any(0)
    asked = mask | around
    assert around.any()
    _, effects = effects_of(model, mask, 2, asked)
    scale = gradients.abs().max()
    assert torch.allclose(effects / scale, gradients[:, asked] / scale, rtol=0, atol=1e-10)
    assert gradients[:, around].abs().max() > 0.01 * scale


def mask_of(graph, edges):
    mask = torch.zeros_like(graph.mask)
    for edge in edges:
        mask[graph.index(edge)] = True
    return mask


@pytest.mark.parametrize("model", ["gemma2", "olmo2"], indirect=True)
def test_a_head_that_shares_a_norm_differs_where_its_neighbours_do(model):
    model = model.to(dtype=torch.float64)
    mask = mask_of(model.graph, ("input->a0.h0<v>", "a0.h0->logits", "a0.h1->m0", "m0->logits"))
    expected = reference.patched_metric(model, MIXED, mask.double())
    assert torch.allclose(effects_of(model, mask, 3)[0], expected, rtol=0, atol=1e-10)


def test_mlps_run_only_where_they_can_differ_and_are_read(monkeypatch):
    model, rows = tiny_model("gpt2").to(dtype=torch.float64), []
    real = type(model).mlp
    [batch] = encode(prompts([6], [[1, 3]]), model.tokenizer).batches(1)
    with torch.no_grad():
        stage = prepare(model, batch)
    monkeypatch.setattr(type(model), "mlp", lambda self, layer, x: rows.append(len(x)) or real(self, layer, x))

    def run(*edges, times=1):
        rows.clear()
        plan = plan_of(model, circuit_of(model.graph, mask_of(model.graph, edges)))
        list(run_circuits(stage, times * [plan], MIXED.metric))
        return list(rows)

    # The two changed tokens are read by a key of the last token's head, but m0 itself is not at the last token.
    assert run("input->m0", "m0->a1.h0<k>", "a1.h0->logits") == [2]
    assert run("input->m0", "m0->a1.h0<q>", "a1.h0->logits") == []
    # A head carries them to all later tokens, of which only the last one is read.
    assert run("input->a0.h0<v>", "a0.h0->m0", "m0->logits") == [1]
    assert run("input->a0.h0<v>", "a0.h0->m0", "m0->a1.h1<v>", "a1.h1->logits") == [5]
    # Small circuits share one product.
    assert run("input->a0.h0<v>", "a0.h0->m0", "m0->logits", times=2) == [2]
