"""Metrics against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from random_circuits import MIXED
from small_models import tiny_model

from gradpath.attribution.attribute import attribute
from gradpath.errors import InputError
from gradpath.evaluation import evaluate
from gradpath.model.transformer import Transformer
from gradpath.selection import select
from gradpath.tasks import Task, judged_by_kl, kl_divergence, logit_difference, probability_difference
from gradpath.tasks.metrics import label_tensor, metric_of


def test_logit_difference_is_right_minus_wrong():
    logits = torch.tensor([[1.0, 5.0, 2.0], [0.0, -1.0, 4.0]])
    assert logit_difference(logits, torch.tensor([[1, 2], [0, 2]])).tolist() == [3.0, -4.0]


def test_probability_difference_sums_each_side_and_skips_the_filling():
    logits = torch.log(torch.tensor([[0.1, 0.2, 0.3, 0.4]]))
    labels = label_tensor([((1, 3), (2,))], many=True)
    assert probability_difference(logits, labels).item() == pytest.approx(0.2 + 0.4 - 0.3)


def test_kl_divergence_is_zero_at_the_clean_output_and_negative_elsewhere():
    clean = torch.log(torch.tensor([[0.5, 0.5], [0.5, 0.5]]))
    other = torch.log(torch.tensor([[0.5, 0.5], [0.9, 0.1]]))
    expected = -(0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1))
    assert kl_divergence(other, clean).tolist() == pytest.approx([0.0, expected], abs=1e-6)


def test_judged_by_kl_takes_the_models_own_logits():
    task = Task(clean=["a", "b"], corrupted=["c", "d"], labels=torch.zeros(2, 2))
    logits = torch.randn(2, 7)
    judged = judged_by_kl(task, logits)
    assert judged.metric(logits, judged.labels).abs().max() < 1e-6
    assert judged.metric(logits.flip(1), judged.labels).max() < 0
    assert judged.clean == task.clean
    assert judged.record.metric == "kl"


@pytest.fixture
def own_gpt2():
    return tiny_model("gpt2")


def test_a_metric_of_a_few_tokens_is_that_of_all_logits(own_gpt2):
    final, labels = torch.randn(3, len(MIXED), own_gpt2.arch.d_model), MIXED.labels
    expected = torch.stack([logit_difference(logits, labels) for logits in own_gpt2.unembed(final)])
    assert torch.allclose(metric_of(own_gpt2, logit_difference, final, labels), expected, atol=1e-5)


def test_a_metric_of_a_few_tokens_unembeds_no_others(own_gpt2, monkeypatch):
    widths, real = [], Transformer.unembed

    def unembed(self, x, tokens=None):
        logits = real(self, x, tokens)
        widths.append(logits.shape[-1])
        return logits

    monkeypatch.setattr(Transformer, "unembed", unembed)
    scores = attribute(own_gpt2, MIXED, "eap-ig", steps=2, batch_size=2)
    evaluate(own_gpt2, select(scores, sparsity=0.9, model=own_gpt2, task=MIXED), MIXED, batch_size=2)
    assert widths
    assert max(widths) <= 2 * MIXED.labels.shape[1]


def test_an_answer_outside_the_vocabulary_is_refused_by_its_number(own_gpt2):
    labels = MIXED.labels.clone()
    labels[1, 0] = len(own_gpt2.unembedding)
    with pytest.raises(InputError, match=f"token {len(own_gpt2.unembedding)} was given"):
        metric_of(own_gpt2, logit_difference, torch.zeros(1, len(MIXED), own_gpt2.arch.d_model), labels)


def right_logit(logits, labels):
    return logits.gather(1, labels[:, :1]).squeeze(1)


def mean_of_the_batch(logits, labels):
    values = right_logit(logits, labels)
    return values.mean().expand(len(values))


def share_of_the_largest(logits, labels):
    values = right_logit(logits, labels)
    return values / values.max()


def test_a_metric_that_mixes_the_examples_of_a_batch_is_refused_by_name(own_gpt2):
    circuit = select(attribute(own_gpt2, MIXED, "eap"), n=20, selection="top")
    for metric in (mean_of_the_batch, share_of_the_largest):
        task = replace(MIXED, metric=metric)
        for work in (lambda t=task: attribute(own_gpt2, t, "eap-ig"), lambda t=task: evaluate(own_gpt2, circuit, t)):
            with pytest.raises(InputError, match=f"its own number: {metric.__name__} gives one example .* in a batch"):
                work()


def test_a_metric_of_each_example_passes_in_every_precision(own_gpt2):
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        scores = attribute(own_gpt2.to(dtype=dtype), replace(MIXED, metric=right_logit), "eap-ig")
        assert scores.values.abs().max() > 0


@pytest.mark.parametrize("labels", [MIXED.labels, list(MIXED.labels)])
def test_a_metric_that_edits_its_labels_does_not_change_those_of_later_batches(own_gpt2, labels):
    def edits(logits, labels):
        for row in labels:
            row += 1
        return logits[:, 3]

    labels = [row.clone() for row in labels] if isinstance(labels, list) else labels.clone()
    metric_of(own_gpt2, edits, torch.randn(1, len(MIXED), own_gpt2.arch.d_model), labels)
    assert [row.tolist() for row in labels] == MIXED.labels.tolist()
