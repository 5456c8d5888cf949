"""The order and the halves that pairs are drawn by."""

from __future__ import annotations

from itertools import islice

import pytest

from gradpath.errors import UsageError
from gradpath.tasks import load_task
from gradpath.tasks.load import shuffled


def test_shuffled_is_the_same_everywhere():
    """Literal numbers: a Python that shuffles otherwise would give users other pairs for the same seed."""
    assert list(islice(shuffled(40_000_000, seed=7, split="test"), 4)) == [38328375, 5614743, 944645, 39945223]
    assert list(shuffled(6, seed=1, split="all")) == [3, 5, 4, 2, 1, 0]


def test_shuffled_gives_every_number_once_by_seed_and_split():
    orders = [list(shuffled(1000, seed=seed, split=split)) for seed, split in ((0, "train"), (1, "train"), (0, "test"))]
    assert all(sorted(order) == list(range(1000)) for order in orders)
    assert orders[0] != orders[1] != orders[2] != orders[0]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        ({"n": 0}, "`examples` must be a whole number, at least 1: got 0"),
        ({"seed": -1}, "`seed` must be a whole number, at least 0: got -1"),
        ({"split": "tests"}, "Did you mean 'test'"),
        ({"n": 10**12}, "1000000000000 pairs were requested"),
        ({"n": None}, "too many to use all"),
        ({"metric": "logit-diference"}, r"no metric 'logit-diference'\. Did you mean 'logit-difference'"),
        ({"name": "hypernym"}, "no task 'hypernym'.*Did you mean 'hypernymy'.*Known: .*greater-than"),
        ({"name": None}, "a name or data: got neither"),
        ({"model": None}, "needs the model"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_draw_that_cannot_work_is_refused_at_once(words, draw, message):
    with pytest.raises(UsageError, match=message):
        load_task(**{"name": "ioi", "model": words, **draw})
