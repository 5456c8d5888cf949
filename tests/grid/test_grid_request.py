"""What is requested: parsed, checked, and refused in words."""

from __future__ import annotations

import pytest

from gradpath.errors import UsageError
from gradpath.grid.request import GRIDS, MethodSpec, Request, parse_methods, whole_numbers
from gradpath.paper import ABOUT, find_experiment


def test_a_method_carries_its_options():
    plain, varied = parse_methods("eap,eap-gp+stride=unit+steps=7")
    assert (plain.label, plain.steps) == ("eap", 1)
    assert varied.options["stride"] == "unit"
    assert varied.steps == 7
    assert varied.with_steps(3).label == "eap-gp+stride=unit+steps=3"
    assert plain.with_steps(3) == plain


@pytest.mark.parametrize("text", ["", "eap-xy", "eap-gp+steps", "eap-gp+steps=0", "eap+steps=3", "eap-gp+pace=1"])
def test_a_method_that_is_not_known_is_refused(text):
    with pytest.raises(UsageError):
        parse_methods(text)


@pytest.mark.parametrize(
    "wrong",
    [{"tasks": ("iois",)}, {"hows": ("best",)}, {"grid": "papers"}, {"sparsities": (1.0,)}, {"sparsities": (-0.1,)}],
)
def test_a_request_that_could_never_work_is_refused(wrong):
    with pytest.raises(UsageError):
        Request(**wrong)


@pytest.mark.parametrize("text", ["", "x", "0", "5-3", "3-x"])
def test_numbers_of_steps_are_checked(text):
    with pytest.raises(UsageError, match="--steps"):
        whole_numbers(text, "--steps")


def test_the_grids_are_the_papers_and_mibs():
    assert GRIDS["paper"][0] == 0.999
    assert GRIDS["paper"][-1] == 0.969
    assert [round(1 - s, 4) for s in GRIDS["mib"]] == [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5]


def test_the_defaults_of_a_request_are_those_of_reproduce():
    request = Request()
    assert (request.hows, request.steps, request.sample) == (("top", "greedy"), tuple(range(3, 21)), 300)
    assert (request.grid, request.examples, request.seed, request.ablation) == ("paper", 100, 0, "corrupted")


def test_every_experiment_is_there_under_its_name():
    assert [find_experiment(name).name for name in ABOUT] == list(ABOUT)
    with pytest.raises(UsageError, match="Did you mean 'faithfulness'"):
        find_experiment("faithfullness")


def test_options_that_are_defaults_make_the_same_method():
    assert MethodSpec("eap-gp").options == MethodSpec("eap-gp", (("steps", 5),)).options
