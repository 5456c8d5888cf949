"""Examples for the page come from all over the task, with their own tokens and values."""

from __future__ import annotations

import pytest
import torch
from making import Maker
from small_models import tiny_model

from gradpath.evaluation import evaluate
from gradpath.report import evidence
from gradpath.selection import select
from gradpath.tasks.task import Task


def test_evidence_goes_from_the_best_kept_example_to_the_worst_with_tokens_and_answers() -> None:
    clean = [f"5 {i} 17 {i + 1}" for i in range(2, 12)]
    corrupted = [f"5 {i} 18 {i + 1}" for i in range(2, 12)]
    task, model = Task(clean, corrupted, torch.tensor([[i, i + 1] for i in range(2, 12)])), tiny_model("gpt2")
    circuit = select(Maker().scores(model.graph.n_layers, model.graph.n_heads), 20)
    result = evaluate(model, circuit, task)
    examples = evidence(task, result, model.tokenizer, 4)
    off = [abs((each.circuit or 0.0) - each.clean) for each in examples]
    errors = (result.circuit_values - result.clean_values).abs()
    assert off == sorted(off)
    assert (off[0], off[-1]) == pytest.approx((float(errors.min()), float(errors.max())))
    for one in examples:
        tokens = [text.strip() for text in one.clean_tokens]
        assert [text.strip() for text in one.corrupted_tokens] == [*tokens[:2], "18", tokens[3]]
        assert one.answer.strip() == tokens[1]
    own = Task(clean, corrupted, list(range(10)), metric=lambda logits, _: logits[:, 3])
    assert {each.answer for each in evidence(own, evaluate(model, circuit, own), model.tokenizer)} == {""}
