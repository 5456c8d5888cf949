"""A few examples of a task as a page can show them: tokens, the answer, the metric in the three runs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gradpath.evaluation import Result
from gradpath.model.tokenizer import Tokenizer
from gradpath.report.data import Example
from gradpath.tasks.metrics import METRICS
from gradpath.tasks.task import Task, encode


def evidence(task: Task, result: Result, tokenizer: Tokenizer | None, n: int = 6) -> tuple[Example, ...]:
    """``n`` examples of the task that ``result`` was measured on, from the best kept to the worst.

    They are spread evenly over all examples as the circuit's distance from the model orders them, so that
    nobody has to wonder how they were picked.
    """
    pairs = encode(task, tokenizer)
    off = (result.circuit_values - result.clean_values).abs()
    chosen = off.argsort(stable=True)[_spread(len(task), n)].tolist()
    known = task.metric in METRICS.values()
    examples = []
    for i in chosen:
        end = int(pairs.last[i]) + 1
        examples.append(
            Example(
                clean_tokens=_tokens(pairs.clean[i, :end], tokenizer),
                corrupted_tokens=_tokens(pairs.corrupted[i, :end], tokenizer),
                answer=_answer(pairs.labels[i], tokenizer) if known else "",
                clean=float(result.clean_values[i]),
                corrupted=float(result.corrupted_values[i]),
                circuit=float(result.circuit_values[i]),
            )
        )
    return tuple(examples)


def _spread(total: int, n: int) -> list[int]:
    """At most n positions from the first to the last, evenly."""
    if total <= n or n < 2:
        return list(range(min(total, n)))
    return [round(i * (total - 1) / (n - 1)) for i in range(n)]


def _tokens(ids: Tensor, tokenizer: Tokenizer | None) -> list[str]:
    return [_text([i], tokenizer) for i in ids.tolist()]


def _text(ids: list[int], tokenizer: Tokenizer | None) -> str:
    return " ".join(["", *map(str, ids)]) if tokenizer is None else tokenizer.decode(ids)


def _answer(label: Any, tokenizer: Tokenizer | None) -> str:
    """The right answer, or the first of several with their number."""
    right = [i for i in label[0].reshape(-1).tolist() if i >= 0]
    if not right:
        return ""
    more = f" (or {len(right) - 1} more)" if len(right) > 1 else ""
    return _text(right[:1], tokenizer) + more
