"""Metrics against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from gradpath.errors import InputError
from gradpath.tasks import Task, judged_by_kl, kl_divergence, logit_difference, probability_difference
from gradpath.tasks.metrics import label_tensor


def test_logit_difference_is_right_minus_wrong():
    logits = torch.tensor([[1.0, 5.0, 2.0], [0.0, -1.0, 4.0]])
    assert logit_difference(logits, torch.tensor([[1, 2], [0, 2]])).tolist() == [3.0, -4.0]


def test_probability_difference_sums_each_side_and_skips_the_filling():
    logits = torch.log(torch.tensor([[0.1, 0.2, 0.3, 0.4]]))
    labels = label_tensor([((1, 3), (2,))], many=True)
    assert probability_difference(logits, labels).item() == pytest.approx(0.2 + 0.4 - 0.3)


def test_filling_is_not_token_zero():
    logits = torch.log(torch.tensor([[0.9, 0.05, 0.05]]))
    labels = label_tensor([((1, 2), (1,))], many=True)
    assert probability_difference(logits, labels).item() == pytest.approx(0.05)


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
    assert judged.about["metric"] == "kl"


def test_judged_by_kl_refuses_logits_of_other_examples():
    task = Task(clean=["a", "b"], corrupted=["c", "d"], labels=torch.zeros(2, 2))
    with pytest.raises(InputError, match=r"\(2, vocabulary\): got \(3, 7\)"):
        judged_by_kl(task, torch.randn(3, 7))


def test_label_tensor_shapes():
    assert label_tensor([((3,), (4,)), ((5,), (6,))], many=False).tolist() == [[3, 4], [5, 6]]
    assert label_tensor([((3,), (4,)), ((5, 6, 7), (8,))], many=True).shape == (2, 2, 3)
