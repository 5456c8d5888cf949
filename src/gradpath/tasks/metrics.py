"""Metrics: how much of the behaviour the logits show, one number per example, higher is better.

A metric is a function of the logits at the last position of each prompt, (batch, vocab), and the labels of the same
rows, of any shape. Users pass their own in the same form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gradpath.errors import InputError, UsageError
from gradpath.model.transformer import Transformer
from gradpath.registry import Registry, failure_of, load_function, owner_of

Metric = Callable[[Any, Any], Tensor]

_PADDING = -1  # fills up the shorter list of answers


def logit_difference(logits: Float[Tensor, "batch vocab"], labels: Int[Tensor, "batch 2"]) -> Float[Tensor, " batch"]:
    """The logit of the correct answer, labels[:, 0], minus that of the wrong one, labels[:, 1]."""
    _check_vocabulary(labels, logits.shape[-1])
    pair = logits.gather(1, labels.long())  # (batch, 2)
    return pair[:, 0] - pair[:, 1]


def probability_difference(
    logits: Float[Tensor, "batch vocab"], labels: Int[Tensor, "batch 2 width"]
) -> Float[Tensor, " batch"]:
    """The probability of all correct answers, labels[:, 0], minus that of all wrong ones, labels[:, 1].

    Both are lists of token ids, and the shorter one is padded with -1.
    """
    _check_vocabulary(labels, logits.shape[-1])
    batch = torch.arange(len(logits), device=logits.device)[:, None, None]
    picked = logits.softmax(-1)[batch, labels.clamp(min=0)]  # (batch, 2, width)
    right, wrong = torch.where(labels >= 0, picked, 0).sum(-1).unbind(1)
    return right - wrong


def kl_divergence(
    logits: Float[Tensor, "batch vocab"], labels: Float[Tensor, "batch vocab"]
) -> Float[Tensor, " batch"]:
    """Minus the KL divergence from the clean run's output: 0 for the same output, negative otherwise.

    This is -KL(clean || these logits), with the log-probabilities of the clean run as labels. Its gradient at the clean
    input is zero, so a method that uses only that gradient (EAP) gives zero scores: use one with a path.
    """
    return -(labels.exp() * (labels - logits.log_softmax(-1))).sum(-1)


class NoGradientError(InputError):
    """A metric that gradients cannot be taken of."""


def check_gradient(value: Tensor) -> None:
    """Refuse the values of a metric that is not a differentiable function of the logits."""
    if not value.requires_grad:
        raise NoGradientError("the metric has no gradient: it has to be a differentiable function of the logits.")


METRICS = Registry[Metric]("metric", [__name__])
METRICS.add("logit-difference", logit_difference, __name__)
METRICS.add("probability-difference", probability_difference, __name__)
METRICS.add("kl", kl_divergence, __name__)


def metric_of(
    model: Transformer, metric: Metric, final: Float[Tensor, "run batch d_model"], labels: Tensor
) -> Float[Tensor, "run batch"]:
    """The metric of each example in several runs, from what ``logits`` reads at the last position in each.

    The unembedding can be larger than all layers together, so a logit difference computes only the logits it needs.
    """
    if metric is logit_difference:
        _check_vocabulary(labels, len(model.unembedding))
        tokens, labels = torch.unique(labels, return_inverse=True)
        logits = model.unembed(final, tokens)
    else:
        logits = model.unembed(final)
    values = [_value(metric, rows, labels) for rows in logits]
    if metric not in _LABELS:
        _check_examples_alone(metric, logits[0].detach(), labels, values[0].detach())
    return torch.stack(values)


def _value(metric: Metric, logits: Tensor, labels: Any) -> Tensor:
    """The metric of one run; what is wrong with a metric of the user's own is reported as such.

    It gets its own copy of the labels, which later batches use again.
    """
    try:
        value = metric(logits, labels if metric in _LABELS else deepcopy(labels))
    except Exception as problem:
        shapes = [tuple(x.shape) if isinstance(x, Tensor) else f"a {type(x).__name__}" for x in (logits, labels)]
        facts = f"it was given logits of shape {shapes[0]} and labels of shape {shapes[1]}"
        if failure := failure_of(f"the metric {metric_name(metric)}", metric, problem, facts):
            raise failure from problem
        raise
    if not isinstance(value, Tensor) or value.shape != (len(logits),):
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise InputError(f"a metric has to return one number per example, shape ({len(logits)},): got {got}.")
    if value.is_complex():
        raise InputError(f"a metric has to return real numbers: got {value.dtype}. Take .real or .abs() of it.")
    return value


@torch.no_grad()
def _check_examples_alone(metric: Metric, logits: Tensor, labels: Any, together: Tensor) -> None:
    """Refuse a metric that mixes the examples of a batch: its numbers would depend on the batch size.

    Two examples are enough: if one is alone what it is in the batch, for instance its maximum, the other is not.
    """
    rounding = math.sqrt(torch.finfo(logits.dtype).eps) * float(together.abs().max())
    for row in {0, len(logits) - 1} if len(logits) > 1 else ():
        value = float(_value(metric, logits[row : row + 1], labels[row : row + 1]))
        if abs(value - float(together[row])) > rounding:
            raise InputError(
                f"a metric has to give every example its own number: {metric_name(metric)} gives one example "
                f"{value:.4g} alone and {float(together[row]):.4g} in a batch of {len(logits)}. Take out sums, means, "
                "maxima and random numbers over the batch."
            )


def metric(name: str) -> Callable[[Metric], Metric]:
    """Register a function as a metric that users can name, as a decorator.

    Args:
        name: The name of the metric. The first line of the function's docstring is what ``gradpath ls metrics`` shows.

    Returns:
        A decorator.
    """
    return lambda function: METRICS.add(name, function, owner_of(function))


def find_metric(metric: str | Metric) -> Metric:
    """The metric of that name, of a user's file (``FILE.py:function``), or the function itself."""
    if not isinstance(metric, str):
        if not callable(metric):
            raise UsageError(f"a metric is a name, FILE.py:function or a function: got {metric!r}.")
        return metric
    if metric.endswith(".py"):
        raise UsageError(f"{metric} is a file: name the function in it that is the metric, as in {metric}:my_metric.")
    return load_function(metric) if ".py:" in metric else METRICS.find(metric)


def metric_name(metric: str | Metric) -> str:
    """The name of a metric in saved files, without the folder of a user's file."""
    if isinstance(metric, str):
        return Path(metric).name if ".py:" in metric else metric
    names = [name for name, function in METRICS.items() if function is metric]
    return names[0] if names else getattr(metric, "__name__", "custom")


def check_labels(metric: Metric, labels: Any) -> None:
    """Refuse labels that a built-in metric would misread; labels for a user's own metric are not checked.

    Labels of different shapes are a list of tensors.
    """
    if metric not in _LABELS:
        return
    name, form, ndim, pairs = _LABELS[metric]
    if isinstance(labels, list):
        shapes = ", ".join(str(tuple(row.shape)) for row in labels[:3])
        raise InputError(f"the labels of {name} are {form}: got rows of different shapes, {shapes}. {_OTHER_FORM}")
    if labels.ndim != ndim or (pairs and labels.shape[1] != 2):
        raise InputError(f"the labels of {name} are {form}: got shape {tuple(labels.shape)}. {_OTHER_FORM}")
    if not pairs:
        if not labels.is_floating_point():
            raise InputError(f"the labels of {name} are {form}: got {labels.dtype}. {_OTHER_FORM}")
        return
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"the labels of {name} are token ids, which are whole numbers: got {labels.dtype}.")
    for i, sides in enumerate(labels.reshape(len(labels), 2, -1).tolist()):
        _check_answers(name, i, *sides, padding=ndim == 3)


_OTHER_FORM = "Pass your own metric for labels of another form."
_LISTS = "lists of correct and wrong token ids per example, (n, 2, width) padded with -1"
_LABELS: dict[Metric, tuple[str, str, int, bool]] = {  # name, form, axes, whether they are correct and wrong answers
    logit_difference: ("logit_difference", "a correct and a wrong token id per example, (n, 2)", 2, True),
    probability_difference: ("probability_difference", _LISTS, 3, True),
    kl_divergence: ("kl_divergence", "clean log-probabilities, (n, vocabulary)", 2, False),
}


def _check_answers(name: str, example: int, right: list[int], wrong: list[int], *, padding: bool) -> None:
    """Refuse answers of one example that would be misread, counted twice, or cancel."""
    for side, padded in (("correct", right), ("wrong", wrong)):
        ids = [i for i in padded if not (padding and i == _PADDING)]
        if not ids:
            raise InputError(f"{name} needs a {side} answer for every example: example {example} has none.")
        if min(ids) < 0:
            raise InputError(f"a token id is 0 or above: example {example} has the {side} answer {min(ids)}.")
        if len(set(ids)) < len(ids):
            raise InputError(f"a token counts once: example {example} has a {side} answer twice, {ids}. Remove one.")
    if both := (set(right) & set(wrong)) - ({_PADDING} if padding else set()):
        raise InputError(
            f"an answer cannot be both correct and wrong: example {example} has token {min(both)} on both sides, "
            "so that it would cancel. Remove it, or drop the example."
        )


def _check_vocabulary(labels: Tensor, size: int) -> None:
    if labels.numel() and (largest := int(labels.max())) >= size:
        raise InputError(
            f"an answer has to be a token of the model, which has {size:,} of them: token {largest} was given. "
            "Give answers as text, or ids of this model's vocabulary."
        )


def label_tensor(answers: Sequence[tuple[Sequence[int], Sequence[int]]], *, many: bool) -> Tensor:
    """Correct and wrong answers as the labels of a metric: (n, 2), or (n, 2, width) for ``many``.

    >>> label_tensor([((5, 6), (7,))], many=True).tolist()
    [[[5, 6], [7, -1]]]
    """
    if not many:
        return torch.tensor([[right[0], wrong[0]] for right, wrong in answers], device="cpu")
    width = max(len(side) for pair in answers for side in pair)
    padded = [[[*side, *[_PADDING] * (width - len(side))] for side in pair] for pair in answers]
    return torch.tensor(padded, device="cpu")  # (n, 2, width)
