"""The order and the halves that pairs are drawn by."""

from __future__ import annotations

from itertools import islice

import pytest

from gradpath.errors import UsageError
from gradpath.tasks.builtin import half
from gradpath.tasks.load import check_draw, shuffled


def test_shuffled_is_the_same_everywhere():
    """Literal numbers: a Python that shuffles otherwise would give users other pairs for the same seed."""
    assert list(islice(shuffled(40_000_000, seed=7, split="test"), 4)) == [38328375, 5614743, 944645, 39945223]
    assert list(shuffled(6, seed=1, split="all")) == [3, 5, 4, 2, 1, 0]


def test_shuffled_gives_every_number_once():
    assert sorted(shuffled(1000, seed=3, split="train")) == list(range(1000))


@pytest.mark.parametrize("other", [{"seed": 1, "split": "train"}, {"seed": 0, "split": "test"}])
def test_shuffled_depends_on_seed_and_split(other):
    assert list(shuffled(100, seed=0, split="train")) != list(shuffled(100, **other))


def test_half_keeps_its_members_when_a_file_grows():
    names = ["a", "b", "c", "d", "e"]
    assert half(names, "train") == ["a", "c", "e"]
    assert half(names, "test") == ["b", "d"]
    assert half([*names, "f", "g"], "train")[:3] == ["a", "c", "e"]


@pytest.mark.parametrize(
    ("n", "seed", "split", "message"),
    [
        (0, 0, "train", "1 or above: got 0"),
        (-5, 0, "train", "1 or above: got -5"),
        (1.5, 0, "train", "1 or above: got 1.5"),
        (True, 0, "train", "1 or above: got True"),
        (10, -1, "train", "0 or above: got -1"),
        (10, "x", "train", "0 or above: got 'x'"),
        (10, 0, "tests", "Did you mean 'test'"),
    ],
)
def test_check_draw_refuses_in_words(n, seed, split, message):
    with pytest.raises(UsageError, match=message):
        check_draw(n, seed, split)
