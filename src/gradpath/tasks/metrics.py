"""Metrics: how much of the behaviour the logits show, one number per example, higher is better.

A metric is a function of the logits at the last position of each prompt, (batch, vocab), and the labels of the same
rows, of any shape. Users pass their own in the same form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gradpath.errors import InputError
from gradpath.registry import Registry

Metric = Callable[[Any, Any], Tensor]

_PADDING = -1  # fills the shorter list of answers


def logit_difference(logits: Float[Tensor, "batch vocab"], labels: Int[Tensor, "batch 2"]) -> Float[Tensor, " batch"]:
    """The logit of the right answer, labels[:, 0], minus that of the wrong one, labels[:, 1]."""
    pair = logits.gather(1, labels)  # (batch, 2)
    return pair[:, 0] - pair[:, 1]


def probability_difference(
    logits: Float[Tensor, "batch vocab"], labels: Int[Tensor, "batch 2 width"]
) -> Float[Tensor, " batch"]:
    """The probability of all right answers, labels[:, 0], minus that of all wrong ones, labels[:, 1].

    Both are lists of token ids, and the shorter one is padded with -1.
    """
    batch = torch.arange(len(logits), device=logits.device)[:, None, None]
    picked = logits.softmax(-1)[batch, labels.clamp(min=0)]  # (batch, 2, width)
    right, wrong = torch.where(labels >= 0, picked, 0).sum(-1).unbind(1)
    return right - wrong


def kl_divergence(
    logits: Float[Tensor, "batch vocab"], labels: Float[Tensor, "batch vocab"]
) -> Float[Tensor, " batch"]:
    """Minus KL(clean || these logits), with the log-probabilities of the clean run as labels.

    It is 0 for the clean output and negative otherwise. Its gradient at the clean input is zero, so a method that uses
    only that gradient (EAP) gives zero scores: use one with a path.
    """
    return -(labels.exp() * (labels - logits.log_softmax(-1))).sum(-1)


METRICS = Registry[Metric]("metric")
METRICS.add("logit-difference", logit_difference, __name__)
METRICS.add("probability-difference", probability_difference, __name__)


def check_metric(value: Any, batch: int) -> None:
    """Refuse a metric that does not return one number per example."""
    if not isinstance(value, Tensor) or value.shape != (batch,):
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise InputError(f"a metric has to return one number per example, shape ({batch},): got {got}.")


def label_tensor(answers: Sequence[tuple[Sequence[int], Sequence[int]]], *, many: bool) -> Tensor:
    """Right and wrong answers as the labels of a metric: (n, 2), or (n, 2, width) for ``many``.

    >>> label_tensor([((5, 6), (7,))], many=True).tolist()
    [[[5, 6], [7, -1]]]
    """
    if not many:
        return torch.tensor([[right[0], wrong[0]] for right, wrong in answers], device="cpu")
    width = max(len(side) for pair in answers for side in pair)
    padded = [[[*side, *[_PADDING] * (width - len(side))] for side in pair] for pair in answers]
    return torch.tensor(padded, device="cpu")  # (n, 2, width)
