"""A number that is none stops the run, and is traced to its example; what the caller has set changes no number."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from small_models import Numbers, prompts, tiny_hf, tiny_model

import gradpath as gp
from gradpath.errors import GradpathError

LENGTHS, DIFFER = [6, 9, 6, 7, 9, 8, 6], [[0], [4], [2, 3], [6], [1, 8], [5], [3]]
TASK = prompts(LENGTHS, DIFFER)
BAD = 3  # the example that is made to fail


def with_token(task: gp.Task, example: int, token: int) -> gp.Task:
    """The same task, whose example has the token at its third place, in both prompts."""

    def changed(prompts: list[str]) -> list[str]:
        words = prompts[example].split()
        words[2] = str(token)
        return [*prompts[:example], " ".join(words), *prompts[example + 1 :]]

    return replace(task, clean=changed(list(task.clean)), corrupted=changed(list(task.corrupted)))


def blown_up(name: str, size: float, dtype: torch.dtype = torch.float32):
    """A model whose embedding of token 1 is far too large, and the task with that token in one example."""
    model = tiny_model(name)
    embedding = model.embedding.clone()
    embedding[1] *= size
    return replace(model, embedding=embedding).to(dtype=dtype), with_token(TASK, BAD, 1)


def refusal(work) -> str:
    with pytest.raises(GradpathError) as caught:
        work()
    return str(caught.value)


@pytest.mark.parametrize("batch_size", [1, 20])
def test_overflow_is_traced_to_the_example_and_the_layer(batch_size):
    model, task = blown_up("llama-grouped", 1e30)
    said = refusal(lambda: gp.attribute(model, task, "eap-gp", batch_size=batch_size))
    assert said.startswith(f"eap-gp produced a non-finite number on example {BAD} ({task.clean[BAD]!r}) ")
    assert "occurs in layer 0 on the clean prompt" in said
    assert "float32" not in said


@pytest.mark.parametrize(("dtype", "size", "layer"), [(torch.float16, 3e4, 1), (torch.bfloat16, 1e36, 2)])
def test_overflow_in_half_precision_is_told_with_the_range(dtype, size, layer):
    model = tiny_model("llama-grouped")
    layers = list(model.layers)
    layers[1] = replace(layers[1], w_out=layers[1].w_out * size)
    model = replace(model, layers=tuple(layers)).to(dtype=dtype)
    said = refusal(lambda: gp.attribute(model, TASK, "eap", batch_size=3))
    # float16 ends in the MLP itself; bfloat16 holds its write, and the norm behind it cannot square it.
    assert f"occurs in layer {layer} on the clean prompt" in said
    assert f"Use float32, because {str(dtype).removeprefix('torch.')} overflows above" in said


def test_a_metric_that_is_no_number_is_traced():
    def metric(logits, labels):
        return torch.where(labels[:, 0] == TASK.labels[BAD, 0], torch.nan, 1.0) * logits[:, 3]

    model, task = tiny_model("gpt2"), replace(TASK, metric=metric)
    scores = gp.attribute(model, TASK, "eap")
    works = {
        "eap": lambda: gp.attribute(model, task, "eap"),
        "evaluation": lambda: gp.evaluate(model, gp.select(scores, n=20), task),
        "the selection of edges": lambda: gp.select(scores, n=3, selection="refined", model=model, task=task),
    }
    for name, work in works.items():
        said = refusal(work)
        assert said.startswith(f"{name} produced a non-finite number on example {BAD} ")
        assert "occurs in the metric on the clean prompt" in said


def test_a_gradient_that_is_no_number_is_told_from_finite_prompts():
    def metric(logits, labels):
        return logits[:, 3] + (logits[:, 4] * 0).abs().sqrt()  # its slope at 0 is infinite

    said = refusal(lambda: gp.attribute(tiny_model("gpt2"), replace(TASK, metric=metric), "eap-ig"))
    assert "on example 0 " in said
    assert "both prompts are finite, but a gradient or a patched run is not" in said


def found() -> list[torch.Tensor]:
    model = gp.load_model(tiny_hf("gpt2"), tokenizer=Numbers())
    scores = gp.attribute(model, TASK[:3], "eap-gp", steps=2)
    circuit = gp.select(scores, 30, selection="refined", model=model, task=TASK[:3])
    result = gp.evaluate(model, circuit, TASK[:3], ablation="mean")
    return [scores.values, circuit.index, result.circuit_values, result.clean_values]


def test_numbers_do_not_depend_on_the_run_on_threads_or_on_the_callers_settings():
    expected = found()
    for setting in (
        nullcontext(),
        torch.autocast("cpu", dtype=torch.bfloat16),
        torch.inference_mode(),
        torch.no_grad(),
    ):
        with setting:
            values = found()
        assert all(torch.equal(a, b) for a, b in zip(values, expected, strict=True)), setting
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        threaded = found()
    finally:
        torch.set_num_threads(before)
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(threaded, expected, strict=True))
