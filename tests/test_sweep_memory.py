"""Batches by a budget, halves when a batch does not fit, little padding, no stray tensors."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from small_models import prompts, tiny_model

from gradpath import sweep
from gradpath.attribution.attribute import attribute
from gradpath.errors import GradpathError, UsageError
from gradpath.evaluation import evaluate
from gradpath.model.architecture import fields_of
from gradpath.model.transformer import Transformer
from gradpath.selection import select
from gradpath.sweep import CHUNK, Limits, bytes_per_row, parse_bytes
from gradpath.tasks.metrics import logit_difference
from gradpath.tasks.task import Pairs, encode

TASK = prompts([6, 9, 6, 7, 9], [[0], [4], [2, 3, 5], [6], [1, 8]])
BUDGETS = range(2 * CHUNK, 2 * CHUNK + 6_000_000, 20_000)


def test_a_budget_is_read_as_people_write_it():
    sizes = {"100": 100, "600MB": 600 * 10**6, "2 GiB": 2 << 30, "1.5g": 15 * 10**8, "2e9": 2 * 10**9}
    assert {text: parse_bytes(text) for text in sizes} == sizes
    for text in ("", "much", "-3GB", "1.2.3MB", "5 apples"):
        with pytest.raises(UsageError, match="600MB or 16GiB"):
            parse_bytes(text)


def largest(limits: Limits, model: Transformer, pairs: Pairs) -> int:
    return max(map(len, limits.batches(model, pairs)))


def test_a_smaller_budget_gives_smaller_batches_and_the_same_scores(gpt2):
    pairs = encode(TASK, gpt2.tokenizer)
    assert largest(Limits(5), gpt2, pairs) == largest(Limits(5, 10**10), gpt2, pairs) == 5
    fits = {}
    for budget in BUDGETS:
        with suppress(UsageError):
            fits.setdefault(largest(Limits(5, budget), gpt2, pairs), budget)
    assert list(fits) == [1, 2, 3, 4, 5]
    whole, parts = (attribute(gpt2, TASK, "eap", batch_size=5, memory=m) for m in (None, fits[2]))
    assert whole.facts.batch_size == 5
    assert parts.facts.batch_size == 2
    assert torch.allclose(whole.values, parts.values, atol=1e-5)


def test_attributions_cut_batches_where_that_leaves_little_padding(gpt2):
    task = replace(prompts(7 * [3] + 13 * [20], 7 * [[1]] + 13 * [[18]]), labels=torch.tensor(20 * [[3, 4]]))
    pairs = encode(task, gpt2.tokenizer)
    batches, _ = Limits().attribution(gpt2, pairs, points=5)
    assert sorted(int(example) for batch in batches for example in batch.index) == list(range(20))
    rows = [len(batch) * int(batch.last.max() - batch.first.min() + 1) for batch in batches]
    assert sum(rows) == int((pairs.last - pairs.first + 1).sum())  # no padding at all
    assert attribute(gpt2, task).facts.batch_size == max(map(len, batches))
    assert {len(batch) for batch in Limits(5).attribution(gpt2, pairs, points=5)[0]} == {5}


def test_scores_do_not_depend_on_how_many_points_are_run_at_once(gpt2, monkeypatch):
    expected = attribute(gpt2, TASK, "eap-ig", steps=7, batch_size=5)
    for points in (1, 3):
        monkeypatch.setattr(Limits, "attribution", lambda *rest, points=points, **__: ([rest[2]], points))
        again = attribute(gpt2, TASK, "eap-ig", steps=7)
        assert torch.allclose(again.values, expected.values, atol=1e-6)
        assert again.facts.passes == expected.facts.passes


def test_the_default_budget_is_half_of_what_is_free(gpt2, monkeypatch):
    pairs = encode(prompts([9] * 60, [[1]] * 60), gpt2.tokenizer)
    monkeypatch.setattr(sweep, "free_memory", lambda: 2 * (2 * CHUNK + 500_000))
    tight = Limits().attribution(gpt2, pairs, points=5)
    monkeypatch.setattr(sweep, "free_memory", lambda: None)
    assert 1 <= len(tight[0][0]) < len(Limits().attribution(gpt2, pairs, points=5)[0][0])
    # Even a machine that is full runs one example at a time.
    monkeypatch.setattr(sweep, "free_memory", lambda: 0)
    assert len(Limits().attribution(gpt2, pairs)[0]) == 60
    assert largest(Limits(), gpt2, pairs) == 1


def test_a_budget_too_small_for_the_model_says_what_it_needs(gpt2):
    with pytest.raises(UsageError, match=r"budget of 100 MB is too small for gpt2: it needs about \d+ MB"):
        attribute(gpt2, TASK, "eap", memory=10**8)


class Full:
    """A metric that runs out of memory on more than ``most`` examples."""

    def __init__(self, most: int) -> None:
        self.most, self.sizes = most, []

    def __call__(self, logits, labels):
        self.sizes.append(len(logits))
        if len(logits) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.20 GiB")
        return logit_difference(logits, labels)


def test_a_batch_that_does_not_fit_is_halved_with_a_warning(gpt2):
    expected = attribute(gpt2, TASK, "eap-ig", batch_size=5)
    metric = Full(2)
    with pytest.warns(UserWarning, match="does not fit into memory: trying"):
        halved = attribute(gpt2, replace(TASK, metric=metric), "eap-ig", batch_size=5)
    assert torch.allclose(halved.values, expected.values, atol=1e-5)
    assert max(metric.sizes) == 5
    circuit = select(expected, 60)
    with pytest.warns(UserWarning, match="does not fit into memory: trying"):
        values = evaluate(gpt2, circuit, replace(TASK, metric=Full(1)), batch_size=5).circuit_values
    assert torch.allclose(values, evaluate(gpt2, circuit, TASK).circuit_values, atol=1e-5)


@pytest.mark.filterwarnings("ignore:a batch of")
def test_an_example_that_does_not_fit_alone_is_an_error_with_its_size(gpt2):
    with pytest.raises(GradpathError, match=r"one example of \d tokens does not fit into memory .* 3.20 GiB"):
        attribute(gpt2, replace(TASK, metric=Full(0)), "eap", batch_size=5)


@pytest.mark.parametrize(("kind", "method"), [("gpt2", "eap-ig"), ("llama-grouped", "eap-gp")])
def test_no_tensor_takes_the_default_device_or_dtype(kind, method):
    """A tensor made without a device would be a meta tensor here, and one without a dtype a double."""
    model = tiny_model(kind)
    expected = attribute(model, TASK, method)
    circuit = select(expected, 60)
    result = evaluate(model, circuit, TASK)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            scores = attribute(model, TASK, method)
            again = evaluate(model, select(scores, 60), TASK)
            assert again.interval == result.interval
    finally:
        torch.set_default_dtype(torch.float32)
    assert scores.values.dtype == torch.float32
    assert torch.equal(scores.values, expected.values)
    assert torch.equal(again.circuit_values, result.circuit_values)


def bytes_kept(model: Transformer, ids: torch.Tensor) -> int:
    """What autograd keeps of a forward pass, weights apart."""
    weights = [x for layer in (*model.layers, model) for x in fields_of(layer).values() if isinstance(x, torch.Tensor)]
    known, kept = {x.untyped_storage().data_ptr() for x in weights}, {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage  # alive, so that its place is not given to another
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        run = model.run(model.embed(ids).requires_grad_())
    for layer in run.layers:
        for x in (layer.q, layer.k, layer.v, layer.written, layer.mlp_out):
            pack(x)
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("kind", ["gpt2", "qwen2-moe", "deepseek-v2"])
def test_the_estimate_is_above_what_autograd_keeps(kind):
    model = tiny_model(kind)
    kept = bytes_kept(model, torch.arange(24).view(2, 12))
    assert kept < 24 * bytes_per_row(model) < 8 * kept
