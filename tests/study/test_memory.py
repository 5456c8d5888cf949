"""A memory budget reaches all that a grid runs, and a batch that does not fit is halved there as well."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from covering import some
from small_models import prompts

from gradpath.attribution.attribute import attribute
from gradpath.errors import UsageError
from gradpath.paper import find_experiment
from gradpath.paper.saturation import follow_gradpath, follow_line
from gradpath.paper.steps import attribute_nested
from gradpath.recipe import Recipe
from gradpath.study import Study, method_recipe
from gradpath.study.bench import Bench, Store
from gradpath.study.outcome import _study_record
from gradpath.sweep import CHUNK, Limits
from gradpath.tasks.metrics import logit_difference
from gradpath.tasks.task import Pairs, encode

TASK = prompts([6, 9, 9, 7], [[2], [4, 6], [3], [5]])
GIVEN = {"recipe": Recipe(examples=6), "tasks": ("ioi",), "sizes": (("sparsity", 0.5),), "steps": (2, 3)}


@pytest.fixture(scope="module")
def budget_for_two(tiny, tmp_path_factory) -> int:
    """What GradPath needs for two examples, which is more than anything else does."""
    bench = Bench(tiny, Study(**GIVEN, limits=Limits(6)), Store(tmp_path_factory.mktemp("budget")))
    pairs = encode(bench.task(bench.study.at("ioi"), "train"), bench.model.tokenizer)
    for budget in range(2 * CHUNK, 2 * CHUNK + 10_000_000, 1000):
        with suppress(UsageError):
            if len(Limits(6, budget).batches(bench.model, pairs, whole=True)[0]) == 2:
                return budget
    raise AssertionError("no budget is one for two examples")


def test_the_record_of_a_request_has_the_batch_size_and_no_memory(tiny, tmp_path):
    bench = Bench(tiny, Study(**GIVEN, limits=Limits(6, 10**12)), Store(tmp_path))
    record = _study_record(bench)
    assert (record["batch_size"], record["examples"], record["sizes"]) == (6, 6, [["sparsity", 0.5]])
    assert "memory" not in record


EVERY = ["baselines", "faithfulness", "steps", "runtime", "saturation"]


@pytest.mark.parametrize("name", some(EVERY, ["faithfulness"]))
def test_a_budget_makes_every_batch_of_an_experiment_smaller(tiny, budget_for_two, tmp_path, monkeypatch, name):
    free = Bench(tiny, Study(**GIVEN, limits=Limits(6)), Store(tmp_path / "free"))
    tight = Bench(tiny, Study(**GIVEN, limits=Limits(6, budget_for_two)), Store(tmp_path / "tight"))
    sizes: dict[str, list[int]] = {"free": [], "tight": []}
    plain = Pairs.batches
    for bench in (free, tight):
        own = sizes[bench.store.folder.name]

        def batches(pairs, size, own=own):
            own += [len(batch) for batch in plain(pairs, size)]
            return plain(pairs, size)

        monkeypatch.setattr(Pairs, "batches", batches)
        find_experiment(name).outcome(bench)
    assert max(sizes["free"]) == 6
    assert max(sizes["tight"]) < 6
    tables = [find_experiment(name).outcome(bench).rows for bench in (free, tight)]
    for one, other in zip(*tables, strict=True):
        for column in (name for name in one if "seconds" not in name):
            number = isinstance(other[column], float)
            wanted = pytest.approx(other[column], rel=1e-3, abs=1e-5) if number else other[column]
            assert one[column] == wanted, column


class Full:
    """A metric that runs out of memory on more than two examples."""

    def __call__(self, logits, labels):
        if len(logits) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.20 GiB")
        return logit_difference(logits, labels)


LITERAL = method_recipe("eap-gp+stride=unit")
WORK = {
    "steps": lambda m, task: attribute_nested(m, task, LITERAL, [2, 3], limits=Limits(4))[2].values,
    "exact": lambda m, task: attribute(m, task, "exact", edges=2, batch_size=4).values,
    "line": lambda m, task: follow_line(m, task, "input->m0", 3, limits=Limits(4))["score"],
    "gradpath": lambda m, task: follow_gradpath(m, task, "input->m0", 3, limits=Limits(4))["score"],
}


@pytest.mark.parametrize("name", WORK)
def test_a_batch_that_does_not_fit_is_halved(gpt2, name):
    with pytest.warns(UserWarning, match="a batch of 4 examples does not fit into memory: trying 2"):
        halved = WORK[name](gpt2, replace(TASK, metric=Full()))
    torch.testing.assert_close(halved, WORK[name](gpt2, TASK), atol=1e-6, rtol=1e-4)


def test_a_budget_is_read_before_anything_is_loaded_and_refused_if_it_is_too_small(run, tiny_folder):
    ran = run("curve", "--model", "nowhere", "--memory", "plenty")
    assert ran.code == 2
    assert "a memory budget is written like 600MB or 16GiB: got 'plenty'" in ran.error
    ran = run("curve", "--model", tiny_folder, "--examples", 4, "--memory", "1MB")
    assert ran.code == 2
    assert "a memory budget of 1 MB is too small" in ran.error
