"""What the caller has switched on around our functions does not change a number."""

from __future__ import annotations

import pytest
import torch
from small_models import Numbers, prompts, tiny_hf

import gradpath as gp

TASK = prompts([6, 9, 6], [[0], [4], [2, 3]])


def found() -> list[torch.Tensor]:
    model = gp.load_model(tiny_hf("gpt2"), tokenizer=Numbers())
    scores = gp.attribute(model, TASK, "eap-gp", steps=2)
    circuit = gp.select(scores, 30, selection="refined", model=model, task=TASK)
    result = gp.evaluate(model, circuit, TASK, ablation="mean")
    return [scores.values, circuit.index, result.circuit_values, result.clean_values]


SETTINGS = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference mode": torch.inference_mode,
    "no gradients": torch.no_grad,
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_numbers_do_not_depend_on_the_callers_settings(kind):
    expected = found()
    with SETTINGS[kind]():
        values = found()
    assert all(torch.equal(a, b) for a, b in zip(values, expected, strict=True))
