"""The registry: order, collisions, names that are nearly right, and what may be registered again."""

from __future__ import annotations

import pytest

import gradpath as gp
from gradpath.attribution.methods import METHODS
from gradpath.errors import UsageError
from gradpath.registry import Registry
from gradpath.selection import SELECTIONS
from gradpath.tasks import TASKS


def test_a_built_in_name_cannot_be_taken():
    built_in = METHODS["eap-ig"]
    with pytest.raises(UsageError, match="there is already a method 'eap-ig'"):

        @gp.path("eap-ig")
        def mine(pair):
            yield pair.clean

    assert METHODS["eap-ig"] is built_in


def test_a_cell_that_is_run_twice_replaces_its_own_path():
    def define(fraction):
        @gp.path("halfway")
        def halfway(pair):
            """A point between the prompts."""
            yield pair.clean + fraction * (pair.corrupted - pair.clean)

        return halfway

    try:
        define(0.5)
        second = define(0.25)
        assert METHODS["halfway"].build is second
        with pytest.raises(UsageError, match="there is already a method 'halfway'"):

            @gp.path("halfway")
            def other(pair):
                yield pair.clean
    finally:
        METHODS.remove("halfway")
    assert "halfway" not in METHODS


def test_built_in_entries_come_first_in_a_fixed_order():
    assert list(METHODS)[:6] == ["eap", "nap", "clean-corrupted", "eap-ig", "nap-ig", "eap-gp"]
    assert list(SELECTIONS) == ["top", "greedy", "signed", "ratio", "balanced", "stable", "refined", "exchanged"]
    assert list(TASKS) == ["ioi", "sva", "gender-bias", "capital-country", "hypernymy", "greater-than"]


def test_an_unknown_name_suggests_the_nearest():
    words = Registry[int]("word")
    words.add("one", 1, "here")
    with pytest.raises(UsageError, match=r"there is no word 'onne'. Did you mean 'one'\? Known: one\."):
        words.find("onne")
    assert words.get("onne") is None
