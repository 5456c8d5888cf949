"""Examples for the page come from all over the task, with their own tokens and values."""

from __future__ import annotations

import pytest
import torch
from making import Maker
from small_models import tiny_model

from gradpath.circuit import Circuit
from gradpath.evaluation import evaluate
from gradpath.model.transformer import Transformer
from gradpath.report import evidence
from gradpath.selection import select
from gradpath.tasks.task import Task


@pytest.fixture(scope="module")
def ran() -> tuple[Task, Transformer, Circuit]:
    clean = [f"5 {i} 17 {i + 1}" for i in range(2, 12)]
    corrupted = [f"5 {i} 18 {i + 1}" for i in range(2, 12)]
    model = tiny_model("gpt2")
    circuit = select(Maker().scores(model.graph.n_layers, model.graph.n_heads), 20)
    return Task(clean, corrupted, torch.tensor([[i, i + 1] for i in range(2, 12)])), model, circuit


def test_evidence_goes_from_the_best_kept_example_to_the_worst(ran) -> None:
    task, model, circuit = ran
    result = evaluate(model, circuit, task)
    examples = evidence(task, result, model.tokenizer, 4)
    off = [abs((each.circuit or 0.0) - each.clean) for each in examples]
    errors = (result.circuit_values - result.clean_values).abs()
    assert off == sorted(off)
    assert (off[0], off[-1]) == pytest.approx((float(errors.min()), float(errors.max())))


def test_evidence_has_the_tokens_and_the_answer_if_the_metric_has_one(ran) -> None:
    task, model, circuit = ran
    (example,) = evidence(task[:1], evaluate(model, circuit, task[:1]), model.tokenizer)
    assert [text.strip() for text in example.clean_tokens] == ["5", "2", "17", "3"]
    differ = [a != b for a, b in zip(example.clean_tokens, example.corrupted_tokens, strict=True)]
    assert differ == [False, False, True, False]
    assert example.answer.strip() == "2"
    own = Task(task.clean, task.corrupted, list(range(10)), metric=lambda logits, _: logits[:, 3])
    examples = evidence(own, evaluate(model, circuit, own), model.tokenizer)
    assert {each.answer for each in examples} == {""}
