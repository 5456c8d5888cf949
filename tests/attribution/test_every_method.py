"""What holds for every method that is no path; ``test_attribution`` has the same for paths."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from covering import covering
from small_models import prompts, tiny_model

from gradpath.attribution.attribute import attribute
from gradpath.attribution.methods import METHODS, Path, find_method, recorded_method
from gradpath.errors import UsageError
from gradpath.tasks.load import clean_logits
from gradpath.tasks.task import judged_by_kl

MIXED = prompts([6, 8, 6], [[0], [4], [2, 5]])
OTHERS = [x.name for x in METHODS.values() if not isinstance(x, Path)]


def close(values: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((values - expected).abs().max() <= 1e-5 * expected.abs().max())


@pytest.mark.parametrize(
    ("name", "kind"), covering(OTHERS, ["gpt2", "gemma2", "neox", "olmo2"], quick=[x for x in OTHERS if x != "exact"])
)
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
def test_kl_is_refused_where_it_has_no_gradient_and_only_there(gpt2, name):
    """At the clean prompt the gradient of kl is zero, so scores would be rounding errors."""
    task = judged_by_kl(MIXED, clean_logits(gpt2, MIXED))
    method = find_method(name)
    if method.at_clean(method.defaults):
        with pytest.raises(UsageError, match=f"kl has no gradient at the clean prompt, where {name} takes it"):
            attribute(gpt2, task, name)
    else:
        assert float(attribute(gpt2, task, name).values.abs().max()) > 1e-4


@pytest.mark.parametrize(("name", "changes"), [("eap-ig", {"steps": 2, "end": "middle"}), ("exact", {"edges": 3})])
def test_a_method_and_its_options_follow_from_the_recipe_of_its_scores(gpt2, name, changes):
    method, options = recorded_method(attribute(gpt2, MIXED, name, **changes).recipe)
    assert method is find_method(name)
    assert options == find_method(name).options(changes) != find_method(name).options({})
