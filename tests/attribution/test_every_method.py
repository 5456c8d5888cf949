"""What holds for every method that is no path; ``test_attribution`` has the same for paths."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from covering import covering
from small_models import prompts, tiny_model

from gradpath.attribution.attribute import attribute
from gradpath.attribution.methods import METHODS, Path, find_method

MIXED = prompts([6, 8, 6], [[0], [4], [2, 5]])
OTHERS = [x.name for x in METHODS.values() if not isinstance(x, Path)]


def close(values: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((values - expected).abs().max() <= 1e-5 * expected.abs().max())


@pytest.mark.parametrize(("kind", "name"), covering(["gpt2", "gemma2", "neox", "olmo2"], OTHERS))
def test_scores_do_not_depend_on_batch_size_order_or_padding(kind, name):
    model = tiny_model(kind).to(dtype=torch.float64)
    expected = attribute(model, MIXED, name, batch_size=1).values
    assert float(expected.abs().max()) > 0
    assert close(attribute(model, MIXED, name, batch_size=3).values, expected)
    backwards = replace(MIXED, clean=MIXED.clean[::-1], corrupted=MIXED.corrupted[::-1], labels=MIXED.labels.flip(0))
    assert close(attribute(model, backwards, name, batch_size=2).values, expected)


@pytest.mark.parametrize("name", OTHERS)
def test_equal_prompts_have_no_scores(gpt2, name):
    same = replace(MIXED, corrupted=MIXED.clean)
    assert float(attribute(gpt2, same, name).values.abs().max()) < 1e-6  # what is computed anew is rounded


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_in_one_line_what_it_does(name):
    about = find_method(name).about
    assert about.endswith(".")
    assert len(about) < 120
