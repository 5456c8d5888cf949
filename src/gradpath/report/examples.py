"""The examples that a page shows: from the one that the circuit preserves best to the worst."""

from __future__ import annotations

from typing import Any

from gradpath.evaluation.result import Result
from gradpath.model.tokenizer import Tokenizer
from gradpath.report.data import Example
from gradpath.tasks.metrics import logit_difference, probability_difference
from gradpath.tasks.task import Task, encode

SHOWN = 16


def spread_examples(result: Result, n: int) -> list[int]:
    """The numbers of n examples, evenly from the one that the circuit preserves best to the worst."""
    distance = (result.circuit_values - result.clean_values).abs()
    total = len(distance)
    step = (total - 1) / (n - 1) if total > n >= 2 else 1
    places = [round(i * step) for i in range(min(total, n))]
    examples: list[int] = distance.argsort(stable=True)[places].tolist()
    return examples


def evidence(task: Task, result: Result, tokenizer: Tokenizer | None, n: int = SHOWN) -> tuple[Example, ...]:
    """Pick examples to show, evenly from the one that the circuit preserves best to the worst.

    Args:
        task: The examples that the circuit was evaluated on.
        result: What ``evaluate`` gave.
        tokenizer: The model's tokenizer; without one, tokens are shown as numbers.
        n: The number of examples.

    Returns:
        The examples, in order of the circuit's distance from the model.
    """
    pairs = encode(task, tokenizer)
    has_answers = task.metric in (logit_difference, probability_difference)

    def example(i: int) -> Example:
        end = int(pairs.last[i]) + 1
        return Example(
            clean_tokens=[_text(token, tokenizer) for token in pairs.clean[i, :end].tolist()],
            corrupted_tokens=[_text(token, tokenizer) for token in pairs.corrupted[i, :end].tolist()],
            answer=_answer(pairs.labels[i], tokenizer) if has_answers else "",
            clean=float(result.clean_values[i]),
            corrupted=float(result.corrupted_values[i]),
            circuit=float(result.circuit_values[i]),
        )

    return tuple(map(example, spread_examples(result, n)))


def _text(token: int, tokenizer: Tokenizer | None) -> str:
    return f" {token}" if tokenizer is None else tokenizer.decode([token])


def _answer(label: Any, tokenizer: Tokenizer | None) -> str:
    """The correct answer; of several the first, with the number of the others."""
    correct = [token for token in label[0].reshape(-1).tolist() if token >= 0]
    if not correct:
        return ""
    return _text(correct[0], tokenizer) + (f" (or {len(correct) - 1} more)" if len(correct) > 1 else "")
