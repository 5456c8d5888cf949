"""What is requested: parsed, checked, and refused in words."""

from __future__ import annotations

import pytest

from gradpath.errors import UsageError
from gradpath.paper import ABOUT, find_experiment
from gradpath.recipe import Recipe
from gradpath.study import GRIDS, Study, check_methods, method_label, method_options, method_recipe, whole_numbers


def test_a_method_carries_its_options():
    assert check_methods("eap, eap-gp+steps=7+stride=unit") == ("eap", "eap-gp+stride=unit+steps=7")
    varied = method_recipe("eap-gp+stride=unit+steps=7")
    assert (varied.method, varied.steps, varied.options) == ("eap-gp", 7, {"stride": "unit"})
    assert method_options(varied)["steps"] == 7
    assert method_label(varied.changed(steps=3)) == "eap-gp+stride=unit+steps=3"
    assert method_options(method_recipe("eap-gp")) == method_options(method_recipe("eap-gp+steps=5"))


@pytest.mark.parametrize("text", ["", "eap-xy", "eap-gp+steps", "eap-gp+steps=0", "eap+steps=3", "eap-gp+pace=1"])
def test_a_method_that_is_not_known_is_refused(text):
    with pytest.raises(UsageError):
        check_methods(text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tasks": ("iois",)},
        {"selections": ("best",)},
        {"methods": ("eap-xy",)},
        {"grid": "papers"},
        {"sizes": (("sparsity", 1.0),)},
        {"recipe": Recipe(ablation="noise")},
        {"recipe": Recipe(metric="lk")},
    ],
)
def test_a_study_that_could_never_work_is_refused(wrong):
    with pytest.raises(UsageError):
        Study(**wrong)


@pytest.mark.parametrize("text", ["", "x", "0", "5-3", "3-x"])
def test_numbers_of_steps_are_checked(text):
    with pytest.raises(UsageError, match="--steps"):
        whole_numbers(text, "--steps")


def test_the_grids_are_the_papers_and_mibs():
    assert GRIDS["paper"][0] == 0.999
    assert GRIDS["paper"][-1] == 0.969
    assert [round(1 - s, 4) for s in GRIDS["mib"]] == [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5]


def test_recipes_are_all_combinations():
    study = Study(Recipe(examples=3), methods=("eap", "eap-ig+steps=2"), selections=("top", "refined"), seeds=(0, 4))
    recipes = list(study.recipes("ioi", [("edges", 5), ("sparsity", 0.5), ("", None)]))
    assert len(recipes) == 2 * 2 * 2 * 3
    assert {(r.task, r.examples) for r in recipes} == {("ioi", 3)}
    assert [(r.edges, r.sparsity) for r in recipes[:3]] == [(5, None), (None, 0.5), (None, None)]
    assert {(r.method, r.steps, r.selection, r.seed) for r in recipes} == {
        (method, steps, selection, seed)
        for method, steps in (("eap", None), ("eap-ig", 2))
        for selection in ("top", "refined")
        for seed in (0, 4)
    }


def test_every_experiment_is_there_under_its_name():
    assert [find_experiment(name).name for name in ABOUT] == list(ABOUT)
    with pytest.raises(UsageError, match="Did you mean 'faithfulness'"):
        find_experiment("faithfullness")
