"""The greater-than rule for every way in which a tokenizer can split a year."""

from __future__ import annotations

import re

import pytest

from gradpath.tasks import load_task
from gradpath.tasks.builtin.prompts import ONE_SIDED, UNUSUAL, read_years

DIGITS = [str(digit) for digit in range(10)]
TWO_DIGITS = [f"{number:02d}" for number in range(100)]


def year(model, number):
    return read_years([number], model.tokenizer)[number]


def test_gpt2_compares_the_last_two_digits(gpt2):
    found = year(gpt2, "1752")
    assert found.shown == " 17"
    assert list(found.right) == TWO_DIGITS[53:]
    assert list(found.wrong) == TWO_DIGITS[:53]  # the same year is not above


@pytest.mark.parametrize("name", ["smollm2", "sentencepiece"])
def test_one_digit_a_token_compares_the_next_digit(name, request):
    model = request.getfixturevalue(name)
    found = year(model, "1752")
    assert found.shown == " 17"
    assert list(found.right) == DIGITS[6:]
    assert list(found.wrong) == DIGITS[:5]  # "5" leads to 1751 as well as to 1753: neither


def test_an_equal_digit_is_wrong_where_no_later_year_has_it(smollm2):
    assert list(year(smollm2, "1759").wrong) == DIGITS[:6]


@pytest.mark.parametrize("number", ["1704", "1795"])
def test_a_year_without_both_sides_is_a_problem(smollm2, number):
    assert year(smollm2, number).problem == ONE_SIDED


def test_three_digit_tokens_compare_the_last_digit(splitting):
    """Llama 3 reads 1752 as "175", "2"."""
    found = year(splitting(r" ?[A-Za-z]+|\d{1,3}|."), "1752")
    assert (found.shown, found.right, found.wrong) == (" 175", tuple("3456789"), tuple("012"))


def test_whole_years_compare_years_of_the_century(splitting):
    found = year(splitting(r" ?\w+|."), "1752")
    assert found.shown == ""
    assert list(found.right) == [f" 17{rest}" for rest in TWO_DIGITS[53:]]
    assert list(found.wrong) == [f" 17{rest}" for rest in TWO_DIGITS[:53]]


@pytest.mark.parametrize(
    ("pattern", "clean", "corrupted"),
    [
        (r" ?[A-Za-z]+|\d|.", r"(\d\d)(\d\d) to the year \1$", r"(\d\d)01 to the year \1$"),
        (r" ?[A-Za-z]+|\d\d|.", r"(\d\d)(\d\d) to the year \1$", r"(\d\d)01 to the year \1$"),
        (r" ?[A-Za-z]+|\d{1,3}|.", r"(\d{3})(\d) to the year \1$", r"(\d{3})1 to the year \1$"),
        (r" ?\w+|.", r"(\d{4}) to the year$", r"(\d\d)01 to the year$"),
    ],
)
def test_prompts_end_where_the_tokenizer_does(splitting, pattern, clean, corrupted):
    task = load_task("greater-than", splitting(pattern), n=50)
    for before, after in zip(task.clean, task.corrupted, strict=True):
        assert re.search(clean, before)
        assert re.search(corrupted, after)


def test_gpt2_drops_years_of_an_unusual_split(gpt2):
    task = load_task("greater-than", gpt2, n=700)
    assert UNUSUAL in task.facts["dropped"]
    assert {len(prompt.split()[-1]) for prompt in task.clean} == {2}
    assert not any(" 1200 " in prompt or " 1109 " in prompt for prompt in task.clean)
