"""ACDC against a plain implementation, which runs the slow model once for every edge."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import reference
import torch
from small_models import prompts, tiny_model

import gradpath as gp
from gradpath.attribution.attribute import attribute
from gradpath.errors import UsageError
from gradpath.model.cache import cache_folder
from gradpath.selection import acdc as acdc_module
from gradpath.selection import select_many
from gradpath.selection.acdc import acdc_masks

TASK = prompts([6, 7, 6], [[0], [2, 3], [1]])


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADPATH_CACHE", str(tmp_path))


@pytest.fixture(scope="module")
def found():
    model = tiny_model("gpt2")
    return model, attribute(model, TASK, "eap")


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
    [mask] = acdc_masks(model, TASK, scores, [threshold], among=among)
    assert torch.equal(mask, plain_acdc(model, TASK, order.mask, threshold))
    assert 0 < mask.sum() < len(order)


def test_a_larger_threshold_keeps_fewer_edges(found):
    model, scores = found
    strict, loose = acdc_masks(model, TASK, scores, [0.1, 0.001], among=0.3)
    assert 0 < strict.sum() < loose.sum() < round(0.3 * model.graph.n_edges)


def test_kl_is_measured_too(found):
    model, scores = found
    [mask] = acdc_masks(model, TASK, scores, [1e-4], among=0.2, measure="kl")
    assert 0 < mask.sum() < round(0.2 * model.graph.n_edges)


def test_select_takes_the_options_in_the_name_and_needs_no_size(found):
    model, scores = found
    circuit = gp.select(scores, selection="acdc+threshold=0.05+among=0.2", model=model, task=TASK, prune=False)
    [mask] = acdc_masks(model, TASK, scores, [0.05], among=0.2)
    assert torch.equal(circuit.mask, mask)
    assert circuit.requested == len(circuit)


def test_several_thresholds_share_what_their_searches_have_in_common(found, monkeypatch):
    model, scores = found
    runs, real = [], acdc_module.final_reads
    monkeypatch.setattr(acdc_module, "final_reads", lambda *given: runs.append(1) or real(*given))
    counts, alone = [], []
    for threshold in (0.1, 0.001):
        alone += acdc_masks(model, TASK, scores, [threshold], among=0.2)
        counts.append(len(runs))
    together = acdc_masks(model, TASK, scores, [0.1, 0.001], among=0.2)
    assert all(torch.equal(a, b) for a, b in zip(together, alone, strict=True))
    assert not torch.equal(*together)
    assert len(runs) - counts[1] < counts[1]  # the searches meet the same circuits at first


def test_select_many_gives_a_circuit_for_each_threshold(found):
    model, scores = found
    how = "acdc+threshold=0.05,0.01+among=0.2"
    circuits = select_many(scores, (), how=how, model=model, task=TASK, prune=False)
    masks = acdc_masks(model, TASK, scores, [0.05, 0.01], among=0.2)
    assert all(torch.equal(a.mask, b) for a, b in zip(circuits, masks, strict=True))
    assert [one.selection for one in circuits] == ["acdc+threshold=0.05+among=0.2", "acdc+threshold=0.01+among=0.2"]
    with pytest.raises(UsageError, match="gives 2 circuits"):
        gp.select(scores, selection=how, model=model, task=TASK)


def test_distances_of_another_metric_or_ablation_are_not_taken(found, monkeypatch):
    model, scores = found
    monkeypatch.setattr("gradpath.runtime.files.STORED_EVERY", 0.0)
    monkeypatch.setattr(acdc_module._Log, "remove", lambda self: None)
    other = replace(TASK, metric=lambda logits, labels: 2 * TASK.metric(logits, labels) + logits[:, 0])
    zero = replace(scores, recipe=scores.recipe.changed(ablation="zero"))
    for task, of in ((TASK, scores), (other, scores), (TASK, zero)):
        acdc_masks(model, task, of, [0.05], among=0.05)
    acdc_masks(model, TASK, scores, [0.05], among=0.05, measure="kl")
    assert len(list((cache_folder() / "acdc").iterdir())) == 4


def test_a_search_that_was_stopped_continues(found, monkeypatch):
    model, scores = found
    [whole] = acdc_masks(model, TASK, scores, [0.05], among=0.1)
    monkeypatch.setattr("gradpath.runtime.files.STORED_EVERY", 0.0)
    runs, real = [], acdc_module.final_reads

    def stopped(prepared, plans):
        runs.append(1)
        if len(runs) == 12:
            raise KeyboardInterrupt
        return real(prepared, plans)

    monkeypatch.setattr(acdc_module, "final_reads", stopped)
    with pytest.raises(KeyboardInterrupt):
        acdc_masks(model, TASK, scores, [0.05], among=0.1)
    [stored] = (cache_folder() / "acdc").iterdir()
    assert json.loads(stored.read_text())
    before = len(runs)
    [mask] = acdc_masks(model, TASK, scores, [0.05], among=0.1)
    assert torch.equal(mask, whole)
    assert len(runs) - before < before + round(0.1 * model.graph.n_edges)
    assert not stored.exists()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("acdc+threshold=0.0", "thresholds above 0"),
        ("acdc+threshold=many", "the option threshold of acdc must be a number, or several separated by commas"),
        ("acdc+threshold=0.1,many", "must be a number, or several separated by commas: got '0.1,many'"),
        ("acdc+among=0.1,0.2", "the option among of acdc must be a number: got '0.1,0.2'"),
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
    monkeypatch.setattr("gradpath.limits.MOST_PASSES", 10)
    with pytest.raises(UsageError, match=r"acdc on [\d,]+ edges and 3 examples takes about [\d,]+ forward passes"):
        gp.select(scores, selection="acdc", model=model, task=TASK)
    with pytest.raises(UsageError, match=r"at each of 2 thresholds.* or thresholds, or confirm with sure=true"):
        select_many(scores, (), how="acdc+threshold=0.1,0.2", model=model, task=TASK)
    gp.select(scores, selection="acdc+sure=true+among=0.1", model=model, task=TASK)
