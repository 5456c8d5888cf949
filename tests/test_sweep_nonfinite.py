"""A number that is none stops the run, and is traced to its example and to the place where it arises."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from covering import covering
from small_models import prompts, tiny_model

import gradpath as gp
from gradpath.errors import GradpathError
from gradpath.sweep import sweep
from gradpath.tasks.task import encode

LENGTHS, DIFFER = [6, 9, 6, 7, 9, 8, 6], [[0], [4], [2, 3], [6], [1, 8], [5], [3]]
TASK = prompts(LENGTHS, DIFFER)
BAD = 3  # the example that is made to fail
METHODS = ("eap", "eap-ig", "eap-gp")


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


@pytest.mark.parametrize(("method", "name", "batch_size"), covering(METHODS, ["gpt2", "llama-grouped"], [1, 20]))
def test_overflow_is_traced_to_the_example_the_place_and_the_method(method, name, batch_size):
    model, task = blown_up(name, 1e30)
    said = refusal(lambda: gp.attribute(model, task, method, batch_size=batch_size))
    assert said.startswith(f"{method} produced a non-finite number on example {BAD} ")
    assert repr(task.clean[BAD]) in said
    assert "occurs in a0.h0<q> on the clean prompt" in said


@pytest.mark.parametrize(("dtype", "size"), [(torch.float16, 3e2), (torch.bfloat16, 1e36)])
def test_overflow_in_half_precision_is_caught(dtype, size):
    model = tiny_model("llama-grouped")
    layers = list(model.layers)
    layers[1] = replace(layers[1], w_out=layers[1].w_out * size * (100 if dtype == torch.float16 else 1))
    model = replace(model, layers=tuple(layers)).to(dtype=dtype)
    said = refusal(lambda: gp.attribute(model, TASK, "eap", batch_size=3))
    assert "on example 0 " in said
    # float16 ends in the MLP itself; bfloat16 holds its write, and the norm behind it cannot square it.
    assert f"occurs in {'m1' if dtype == torch.float16 else 'a2.h0<q>'} on the clean prompt" in said
    assert f"Use float32, because {str(dtype).removeprefix('torch.')} overflows above" in said
    circuit = gp.select(gp.attribute(tiny_model("llama-grouped"), TASK, "eap"), n=20)
    assert "m1" in refusal(lambda: gp.evaluate(model, circuit, TASK)) or dtype == torch.bfloat16


def test_a_metric_that_is_no_number_is_traced():
    def metric(logits, labels):
        return torch.where(labels[:, 0] == TASK.labels[BAD, 0], torch.nan, 1.0) * logits[:, 3]

    model, task = tiny_model("gpt2"), replace(TASK, metric=metric)
    for method in METHODS:
        said = refusal(lambda method=method: gp.attribute(model, task, method))
        assert f"on example {BAD} " in said
        assert "occurs in the metric on the clean prompt" in said
    scores = gp.attribute(model, TASK, "eap")
    said = refusal(lambda: gp.evaluate(model, gp.select(scores, n=20), task))
    assert said.startswith(f"evaluation produced a non-finite number on example {BAD} ")
    said = refusal(lambda: gp.select(scores, n=3, selection="refined", model=model, task=task))
    assert f"on example {BAD} " in said


def test_a_gradient_that_is_no_number_is_traced():
    def metric(logits, labels):
        return logits[:, 3] + (logits[:, 4] * 0).abs().sqrt()  # its slope at 0 is infinite

    said = refusal(lambda: gp.attribute(tiny_model("gpt2"), replace(TASK, metric=metric), "eap-ig"))
    assert "on example 0 " in said
    assert "occurs in the gradient at logits at point 1 of the path" in said


def test_a_circuit_that_is_no_number_is_traced():
    model = tiny_model("gpt2")
    circuit = gp.select(gp.attribute(model, TASK, "eap"), n=20)
    ends = [model.logits(torch.tensor([list(map(int, x.split()))]))[0, -1, 3] for x in TASK.clean]
    ends += [model.logits(torch.tensor([list(map(int, x.split()))]))[0, -1, 3] for x in TASK.corrupted]

    def metric(logits, labels):  # only of the two prompts themselves a number
        known = torch.isclose(logits[:, 3, None], torch.stack(ends), atol=1e-4).any(1)
        return torch.where(known, logits[:, 3], torch.nan)

    said = refusal(lambda: gp.evaluate(model, circuit, replace(TASK, metric=metric)))
    assert "occurs in the metric in the circuit" in said


def test_means_are_not_taken_over_what_is_no_number():
    model, task = blown_up("gpt2", 1e30)
    said = refusal(lambda: gp.attribute(model, TASK, "eap", ablation="mean", mean_over=task))
    assert said.startswith(f"the mean produced a non-finite number on example {BAD} ")


def test_finite_work_is_done_once():
    calls = []

    def work(batch):
        calls.append(len(batch))
        return torch.ones(2)

    model = tiny_model("gpt2")
    list(sweep(work, encode(TASK, model.tokenizer), len(TASK), model=model, task=TASK, doing="", same=lambda: None))
    assert calls == [len(TASK)]


def test_a_sum_that_alone_overflows_is_told():
    model = tiny_model("gpt2")
    pairs = encode(TASK, model.tokenizer)
    parts = sweep(
        lambda batch: torch.tensor([3e38]) * len(batch) * 0.5,
        pairs,
        len(TASK),
        model=model,
        task=TASK,
        doing="eap",
        same=lambda: None,
    )
    assert "Use a smaller --batch-size" in refusal(lambda: list(parts))


def test_numbers_do_not_depend_on_threads_or_on_the_run():
    model, task = tiny_model("llama-grouped"), TASK[:3]

    def found():
        scores = gp.attribute(model, task, "eap-gp", steps=2)
        result = gp.evaluate(model, gp.select(scores, n=40), task)
        return scores.values, result.circuit_values

    first, again = found(), found()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        threaded = found()
    finally:
        torch.set_num_threads(before)
    for one, same, other in zip(first, again, threaded, strict=True):
        assert torch.equal(one, same)
        assert float((one - other).abs().max()) <= 1e-6 * float(one.abs().max())
