"""The engine: exact patching, completeness, limits, GradPath's points, and custom paths."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path as File

import pytest
import reference
import torch
from covering import some
from random_circuits import MIXED
from reference import close
from small_models import prompts, tiny_model

import gradpath as gp
from gradpath.attribution.attribute import attribute
from gradpath.attribution.batch import BatchRuns
from gradpath.attribution.methods import METHODS as REGISTERED
from gradpath.attribution.methods import path
from gradpath.errors import GradpathWarning, InputError, UsageError
from gradpath.tasks.task import Task, encode


@pytest.fixture(autouse=True)
def paths():
    """The methods; those that a test adds are removed again."""
    before = set(REGISTERED)
    yield REGISTERED
    for name in set(REGISTERED) - before:
        REGISTERED.remove(name)


@pytest.mark.parametrize("kind", some(["gpt2", "neox", "gemma3"], ["gemma3"]))
def test_eap_is_the_slope_of_exact_patching(kind):
    """Corrupt one edge at a time (every tenth one), by so little that the metric is linear in it.

    This also fixes the sign: a positive score means that corrupting the edge lowers the metric.
    """
    model = tiny_model(kind).to(dtype=torch.float64)
    embedding = model.embedding.clone()
    embedding[5] = embedding[4] + 1e-4 * torch.randn(model.arch.d_model)
    model = replace(model, embedding=embedding)
    task = Task(torch.tensor([[7, 4, 9, 8]]), torch.tensor([[7, 5, 9, 8]]), torch.tensor([[11, 12]]))
    all_edges = model.graph.mask
    clean = reference.patched_metric(model, task, all_edges)
    edges = all_edges.nonzero()[::10]
    exact = []
    for u, v in edges.tolist():
        without = all_edges.clone()
        without[u, v] = False
        exact.append(float((clean - reference.patched_metric(model, task, without)).mean()))
    values = attribute(model, task, "eap").values[tuple(edges.T)]
    assert max(map(abs, exact)) > 0
    assert close(values, torch.tensor(exact, dtype=torch.float64), 2e-3)


@pytest.mark.parametrize("kind", some(["gpt2", "neox", "olmo2"], ["olmo2"]))
def test_integrated_gradients_are_complete_over_the_edges_out_of_input(kind):
    """The sum that is complete is that over ``input``'s out-edges, over all targets.

    A target reads the embedding directly, so dL/dx is the sum over targets of dL/d in_v, and the line
    integral of dL/dx . (x - x') is L(x) - L(x'). Sums over any other source's edges hold no such promise:
    what a later node writes is not moved along the line.
    """
    model = tiny_model(kind)
    everything, nothing = model.graph.mask, torch.zeros_like(model.graph.mask)
    ends = [reference.patched_metric(model, MIXED, mask).mean() for mask in (everything, nothing)]
    # Both conventions for the end points, averaged, are the trapezoid rule.
    sums = [attribute(model, MIXED, "eap-ig", steps=100, end=end).values[0].sum() for end in ("clean", "corrupted")]
    assert float(sum(sums)) / 2 == pytest.approx(float(ends[0] - ends[1]), rel=0.02)


def test_paths_of_few_steps_are_their_limits(gpt2):
    """Those of literal GradPath are the paper's."""

    def values(method, **options):
        return attribute(gpt2, MIXED, method, **options).values

    eap, both = values("eap"), values("clean-corrupted")
    assert close(values("eap-ig", steps=1), eap)
    assert close(values("eap-gp", steps=1), values("eap-ig", steps=1, end="corrupted"))
    for literal in ({}, {"stride": "unit", "pin_end": True}):
        assert close(values("eap-gp", steps=1, start=True, **literal), eap)
        assert close(values("eap-gp", steps=2, start=True, **literal), both)
    assert close(values("eap-gp", steps=1, start=True, stride="unit"), eap)
    once = reference.scores(gpt2, MIXED, reference.literal_grad_path(1))
    assert close(values("eap-gp", steps=1, stride="unit"), once)


def logit_distance(view, goal):
    """||G - G(goal)||^2 by the logits themselves."""
    parts = zip(view.outputs("all"), goal, strict=True)
    return sum(((here - there.detach()) ** 2).flatten(1).sum(1) for here, there in parts)


@pytest.mark.parametrize(
    ("kind", "whole", "apart"), [("gpt2", True, 1e-3), ("gemma2", False, 1.0), ("phi", False, 1e-3)]
)
def test_the_distance_of_logits_at_all_positions_is_that_of_the_logits(kind, whole, apart):
    """Without logits, unless they are capped (gemma2); with a bias of the unembedding (phi), which cancels."""
    for dtype, tolerance in ((torch.float32, 1e-6 / apart), (torch.float64, 1e-9)):
        model = tiny_model(kind).to(dtype=dtype)
        runs = BatchRuns(model, encode(MIXED[1:4], model.tokenizer), MIXED.metric, whole)
        end, view = runs.corrupted, runs.run_point(torch.lerp(runs.pair.corrupted, runs.pair.clean, apart))
        distance, expected = view.distance(end.goal("all")), logit_distance(view, end.outputs("all"))
        assert (expected > 0).all()
        torch.testing.assert_close(distance.to(dtype), expected, rtol=tolerance, atol=0.0)
        slope = view.gradient(distance)
        assert slope.dtype == dtype
        assert close(slope, view.gradient(expected), tolerance)


def test_a_long_path_is_summed_in_parts(gpt2):
    task = prompts([6], [[2]])
    line = reference.straight_line([j / 20 for j in range(1, 21)])
    assert close(attribute(gpt2, task, "eap-ig", steps=20).values, reference.scores(gpt2, task, line))
    assert close(
        attribute(gpt2, task, "eap-gp", steps=10).values, reference.scores(gpt2, task, reference.grad_path(10))
    )


@pytest.mark.parametrize(("apart", "says"), [(0.5, "go 8 times as far"), (40, "go 0.1 times as far"), (4.0, None)])
def test_literal_steps_out_of_scale_are_warned_about_with_the_numbers(gpt2, apart, says):
    task = prompts([6], [[3]])
    clean, corrupted = (int(texts[0].split()[3]) for texts in (task.clean, task.corrupted))
    embedding = gpt2.embedding.clone()
    embedding[corrupted] = embedding[clean]
    embedding[corrupted, 0] += apart
    model = replace(gpt2, embedding=embedding)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        attribute(model, task, "eap-gp", steps=4, stride="unit")
        attribute(model, task, "eap-gp", steps=4)
    texts = [str(one.message) for one in caught]
    assert len(texts) == (says is not None)
    assert all(f"its 4 steps of length 1 {says} as the corrupted prompts lie from" in text for text in texts)


def test_nothing_is_left_behind(gpt2):
    before = [(t, t.clone()) for layer in gpt2.layers for t in vars(layer).values() if isinstance(t, torch.Tensor)]
    attribute(gpt2, MIXED, "eap-gp")

    @path("broken")
    def broken(pair):
        yield pair.clean
        raise ZeroDivisionError

    with pytest.raises(InputError, match=r"the path broken failed \(test_attribute.py, line \d+\): ZeroDivisionError"):
        attribute(gpt2, MIXED, "broken")
    assert all(torch.equal(now, then) and now.grad is None and not now.requires_grad for now, then in before)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("eap-gpp", {}, "Did you mean 'eap-gp'"),
        ("eap-ig", {"steps": 0}, "from 1 to 10,000"),
        ("eap-ig", {"speed": 3}, "no option 'speed'"),
        ("eap-ig", {"end": "left"}, "clean, corrupted"),
        ("eap-gp", {"stride": "long"}, "matched or unit"),
        ("eap", {"batch_size": 0}, "batch size"),
    ],
)
def test_a_wrong_call_is_refused_in_words(gpt2, method, options, words):
    with pytest.raises(UsageError, match=words):
        attribute(gpt2, MIXED, method, **options)


@pytest.mark.parametrize("point", [torch.zeros(2, 2), "point"])
def test_a_path_that_yields_no_point_is_refused(gpt2, point):
    @path("wrong")
    def wrong(pair):
        yield point

    with pytest.raises(InputError, match="has to yield points of shape"):
        attribute(gpt2, MIXED, "wrong")


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (lambda logits, labels: logits.mean(), "one number per example"),
        (lambda logits, labels: torch.ones(len(logits)), "gradient"),
    ],
)
def test_a_metric_of_the_wrong_shape_or_without_a_gradient_is_refused(gpt2, metric, words):
    with pytest.raises(InputError, match=words):
        attribute(gpt2, replace(MIXED, metric=metric), "eap")


def test_the_paths_of_the_documents_run_as_they_are_printed(gpt2, paths):
    text = (File(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
    section = text.partition("## Writing a path\n")[2].partition("\n## ")[0]
    names = {"gp": gp, "task": MIXED, "model": gpt2}
    blocks = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    assert len(blocks) == 2
    for code in blocks:
        exec(code, names)
    assert {"midpoint", "one-step"} <= set(paths)


def test_the_ends_start_at_the_first_difference_unless_the_path_is_whole(gpt2):
    seen = {}
    for whole in (False, True):

        @path(f"seen-{whole}", whole=whole)
        def spy(pair, whole=whole):
            seen[whole] = pair.clean.shape[1], pair.differs.nonzero().tolist()
            yield pair.clean

        attribute(gpt2, prompts([6], [[2, 4]]), f"seen-{whole}")
    assert seen == {False: (4, [[0, 0], [0, 2]]), True: (6, [[0, 2], [0, 4]])}


@pytest.mark.usefixtures("unchecked")
def test_the_gradient_of_a_function_is_refused(gpt2):
    @path("of-a-function")
    def of_a_function(pair):
        view = yield pair.clean
        view.gradient(lambda logits: logits.sum())

    with pytest.raises(InputError, match=r"view.gradient takes a tensor with one number per example.*got a function"):
        attribute(gpt2, MIXED, "of-a-function")


def test_steps_of_a_method_without_steps_are_ignored_with_a_warning(gpt2):
    with pytest.warns(GradpathWarning, match="the method 'eap' has no steps: steps=5 is ignored"):
        scores = attribute(gpt2, MIXED, "eap", steps=5)
    assert torch.equal(scores.values, attribute(gpt2, MIXED, "eap").values)
