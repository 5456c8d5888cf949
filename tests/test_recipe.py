"""The recipe: what it accepts, how it refuses, and what files record of it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from gradpath.errors import InputError, UsageError
from gradpath.recipe import SIZES, Facts, Recipe, read_record


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"exampels": 3}, "there is no option 'exampels'. Did you mean 'examples'?"),
        ({"examples": 0}, "`examples` must be a whole number, at least 1: got 0."),
        ({"examples": 2.5}, "`examples` must be a whole number, at least 1: got 2.5."),
        ({"seed": True}, "`seed` must be a whole number, at least 0: got True."),
        ({"split": "sane"}, "`split` must be held-out, same or all: got 'sane'. Did you mean 'same'?"),
        ({"sparsity": 1.0}, "`sparsity` must be a number, at least 0 and below 1: got 1.0."),
        ({"faithfulness": "most"}, "`faithfulness` must be a number, above 0 and at most 1: got 'most'."),
        ({"dtype": "flaot32"}, "`dtype` must be float32, bfloat16, float16 or float64: got 'flaot32'."),
        ({"options": 3}, "`options` must be an object: got 3."),
        ({"edges": 3, "nodes": 4}, "`edges` and `nodes` each set the size of the circuit: give one of them."),
        ({"selection": "top", "nodes": 4}, "`selection` selects edges and `nodes` selects nodes: give one of them."),
    ],
)
def test_a_wrong_value_is_refused_in_one_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        Recipe(**values)


def test_numbers_of_numpy_are_numbers() -> None:
    assert Recipe(examples=np.int64(3), sparsity=np.float32(0.5)) == Recipe(examples=3, sparsity=0.5)


@pytest.mark.parametrize("size", SIZES)
def test_a_new_size_replaces_the_old_one(size: str) -> None:
    value = 0.5 if size in ("faithfulness", "sparsity") else 7
    for old in SIZES:
        before = Recipe(task="sva", **{old: 0.25 if old in ("faithfulness", "sparsity") else 3})
        after = before.changed(**{size: value}, dtype=None)
        assert (after.size, getattr(after, size), after.task) == (size, value, "sva")


def test_a_file_gives_the_same_recipe_back() -> None:
    recipe = Recipe(model="smollm2", task="ioi", seed=3, steps=5, options={"stride": "unit"}, edges=70)
    facts = Facts(weights="ab", examples=30, own={"n": [1, 2]})
    assert read_record({"recipe": recipe.recorded, "facts": facts.recorded}) == (recipe, facts)
    assert read_record({}) == (None, Facts())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"recipe": 3}, "'recipe' is not an object"),
        ({"recipe": {1: 2}}, "'recipe' is not an object"),
        ({"recipe": {"data": []}}, "`data` must be text"),
        ({"recipe": {"edgse": 3}}, "there is no option 'edgse'. Did you mean 'edges'"),
        ({"facts": {"examples": "x"}}, "examples"),
        ({"facts": {"passes": "many"}}, "passes"),
    ],
)
def test_a_damaged_record_is_refused(content: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read_record(content)
    assert "again" in str(caught.value)


def test_the_recipe_is_one_line() -> None:
    recipe = Recipe(model="smollm2", task="ioi", steps=5, examples=1, selection="top")
    assert str(recipe) == "ioi in smollm2, by eap-ig (5 steps, 1 example), top"
