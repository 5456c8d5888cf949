"""ACDC against a plain implementation, which runs the slow model once for every edge."""

from __future__ import annotations

import pytest
import reference
import torch
from small_models import prompts, tiny_model

import gradpath as gp
from gradpath.attribution.attribute import attribute
from gradpath.errors import UsageError
from gradpath.selection import rank

TASK = prompts([6, 7, 6], [[0], [2, 3], [1]])


@pytest.fixture(scope="module")
def found():
    model = tiny_model("gpt2")
    return model, attribute(model, TASK, "eap")


def kept(model, scores, options):
    order = rank(scores, f"acdc+{options}", model, TASK)
    return order.circuit(order.size, prune=False)


def plain_acdc(model, task, start, threshold):
    """The algorithm as the paper has it, edge by edge, on the slow model."""
    graph, mask = model.graph, start.clone()
    clean = reference.patched_metric(model, task, graph.mask.float())
    unit = (clean - reference.patched_metric(model, task, torch.zeros_like(graph.mask).float())).abs().mean()

    def distance():
        return float((reference.patched_metric(model, task, mask.float()) - clean).abs().mean() / unit)

    last = distance()
    for v in reversed(range(graph.n_targets)):
        for u in reversed(range(graph.n_sources)):
            if mask[u, v]:
                mask[u, v] = False
                value = distance()
                if value - last < threshold:
                    last = value
                else:
                    mask[u, v] = True
    return mask


@pytest.mark.parametrize("threshold", [0.05, 0.005])
def test_acdc_keeps_what_the_plain_algorithm_keeps(found, threshold):
    model, scores = found
    among = 0.12  # the slow model takes its time
    order = gp.select(scores, n=round(among * model.graph.n_edges), selection="top", prune=False)
    mask = kept(model, scores, f"threshold={threshold}+among={among}").mask
    assert torch.equal(mask, plain_acdc(model, TASK, order.mask, threshold))
    assert 0 < mask.sum() < len(order)


def test_a_larger_threshold_keeps_fewer_edges(found):
    model, scores = found
    strict, loose = (len(kept(model, scores, f"threshold={x}+among=0.3")) for x in (0.1, 0.001))
    assert 0 < strict < loose < round(0.3 * model.graph.n_edges)


def test_kl_is_measured_too(found):
    model, scores = found
    assert 0 < len(kept(model, scores, "threshold=0.0001+among=0.2+measure=kl")) < round(0.2 * model.graph.n_edges)


def test_the_order_begins_with_the_edges_that_remain_and_has_all_others(found):
    model, scores = found
    how = "acdc+threshold=0.05+among=0.2"
    order, plain = rank(scores, how, model, TASK), rank(scores)
    assert sorted(order.edges.tolist()) == sorted(plain.edges.tolist())
    sizes = scores.values.flatten()[order.edges].abs()
    assert (sizes[: order.size].diff() <= 0).all()
    assert (sizes[order.size :].diff() <= 0).all()
    circuit = gp.select(scores, selection=how, model=model, task=TASK)  # needs no size
    assert circuit == order[: order.size]
    assert circuit.requested == order.size
    more = gp.select(scores, order.size + 5, selection=how, model=model, task=TASK, prune=False)
    assert len(more) == order.size + 5
    assert set(circuit.edges) < set(more.edges)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("acdc+threshold=0.0", "a threshold above 0"),
        ("acdc+threshold=many", "the option threshold of acdc must be a number: got 'many'"),
        ("acdc+threshold=0.1,0.2", "the option threshold of acdc must be a number: got '0.1,0.2'"),
        ("acdc+measure=mean", "must be metric or kl: got 'mean'"),
        ("acdc+steps=3", "no option 'steps'. Its options: threshold, among, measure, sure"),
        ("top+seed=3", "Its options: none"),
    ],
)
def test_a_wrong_option_is_refused(found, how, message):
    model, scores = found
    with pytest.raises(UsageError, match=message):
        gp.select(scores, n=10 if how.startswith("top") else None, selection=how, model=model, task=TASK)


def test_what_would_take_very_long_has_to_be_confirmed(found, monkeypatch):
    model, scores = found
    monkeypatch.setattr("gradpath.sweep.MOST_PASSES", 10)
    with pytest.raises(UsageError, match=r"acdc on [\d,]+ edges and 3 examples takes about [\d,]+ forward passes"):
        gp.select(scores, selection="acdc", model=model, task=TASK)
    gp.select(scores, selection="acdc+sure=true+among=0.1", model=model, task=TASK)
