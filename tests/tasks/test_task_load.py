"""What load_task refuses, what it records, and the choice of a metric."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import torch

from gradpath.errors import GradpathWarning, InputError, UsageError
from gradpath.recipe import Recipe
from gradpath.tasks import load_task
from gradpath.tasks.pairs import LENGTHS, NO_TOKEN, REPEATED, SAME, SHARED


def rows(*pairs):
    return [
        {"clean": clean, "corrupted": corrupted, "answers": right, "wrong_answers": wrong}
        for clean, corrupted, right, wrong in pairs
    ]


def test_a_model_without_a_tokenizer_is_refused(words):
    with pytest.raises(InputError, match="this one has none"):
        load_task("ioi", type(words)(None))


def test_more_pairs_than_there_are_says_how_many(smollm2):
    kept = load_task("gender-bias", smollm2, n=None).facts["kept"]
    with pytest.raises(UsageError, match=f"{kept + 1} pairs were requested, but .* has {kept} in the split 'train'"):
        load_task("gender-bias", smollm2, n=kept + 1)


def test_the_record_of_a_task_is_plain_and_complete(smollm2):
    task = load_task("capital-country", smollm2, n=20, seed=3, split="test")
    facts = dict(task.facts)
    assert json.loads(json.dumps(facts)) == facts
    assert {"split": "test", "kept": 20}.items() <= facts.items()
    expected = Recipe(task="capital-country", examples=20, seed=3, split="swapped", metric="logit-difference")
    assert task.recipe == expected
    assert facts["dropped"][LENGTHS]["count"] > 0
    assert "the capital of" in facts["dropped"][LENGTHS]["first"]


@pytest.mark.parametrize(
    ("pair", "reason", "detail"),
    [
        (("a b", "a b c", " x", " y"), LENGTHS, "2 and 3"),
        (("a b", "a b", " x", " y"), SAME, "row 2"),
        (("a b", "a c", " x y", " z"), NO_TOKEN, "' x y' is ' x' + ' y'"),
        (("a b", "a c", " x", " x"), SHARED, "' x' in"),
        (("good one", "good two", " x", " y"), REPEATED, "row 2"),
    ],
)
def test_unusable_pairs_are_counted_with_their_reason(words, pair, reason, detail):
    data = rows(("good one", "good two", " x", " y"), pair)
    task = load_task(None, words, data=data, split="all", n=None)
    assert task.clean == ["good one"]
    assert list(task.facts["dropped"]) == [reason]
    assert task.facts["dropped"][reason]["count"] == 1
    assert detail in task.facts["dropped"][reason]["first"]
    assert "row 2" in task.facts["dropped"][reason]["first"]


SUMS = [(f"{a} plus {b} is", f"{a} plus {b + 1} is", f" {a + b}", f" {a + b + 1}") for a in (1, 2) for b in (3, 4)]


def test_the_refusal_of_several_tokens_names_rows_in_order_and_an_option_that_works(smollm2):
    """SmolLM2 makes a token of every digit, and of the space before it."""
    with pytest.raises(InputError) as refused:
        load_task(None, smollm2, data=rows(*SUMS), split="all")
    first, *cases = str(refused.value).splitlines()
    assert "give --first-token to compare the first token in which the answers differ" in first
    assert [case.partition(" of data")[0] for case in cases] == [f"  row {i}" for i in (1, 2, 3, 4)]
    assert "(' 4' is ' ' + '4', ' 5' is ' ' + '5')" in cases[0]
    moved = [(f"{clean} ", f"{corrupted} ", right[1:], wrong[1:]) for clean, corrupted, right, wrong in SUMS]
    by_hand = load_task(None, smollm2, data=rows(*moved), split="all")
    task = load_task(None, smollm2, data=rows(*SUMS), split="all", first_token=True)
    assert sorted(task.clean) == sorted(by_hand.clean) == sorted(f"{clean} " for clean, *_ in SUMS)
    assert task.labels.tolist() == by_hand.labels.tolist()
    assert task.recipe.first_token is True
    assert by_hand.recipe.first_token is None


@pytest.mark.parametrize(
    ("answers", "end", "tokens"),
    [
        ((" 35", " 42"), " ", ("3", "4")),
        ((" 35", " 36"), " 3", ("5", "6")),
        ((" Mary", " John"), "", (" Mary", " John")),
    ],
)
def test_answers_are_compared_by_the_first_token_in_which_they_differ(smollm2, answers, end, tokens):
    task = load_task(
        None, smollm2, data=rows(("5 times 7 is", "5 times 8 is", *answers)), split="all", first_token=True
    )
    assert (task.clean, task.corrupted) == ([f"5 times 7 is{end}"], [f"5 times 8 is{end}"])
    assert [smollm2.tokenizer.decode([token]) for token in task.labels[0].tolist()] == list(tokens)
    assert smollm2.tokenizer.encode(task.clean)[0][-1:] == smollm2.tokenizer.encode([f"5 times 7 is{end}"])[0][-1:]


def test_an_answer_that_begins_another_is_left_out(smollm2):
    data = rows(("It is", "It was", " 35", " 3"), ("He is", "He was", " 35", " 42"))
    task = load_task(None, smollm2, data=data, split="all", first_token=True)
    assert task.clean == ["He is "]
    assert task.facts["dropped"]["one answer is the beginning of another"]["count"] == 1


def test_rows_with_several_tokens_are_said_with_the_option_that_keeps_them(smollm2):
    data = rows(("He is", "He was", " good", " bad"), ("It is", "It was", " 35", " 42"))
    task = load_task(None, smollm2, data=data, split="all")
    assert len(task) == 1
    assert any("--first-token" in note for note in task.facts["notes"])


def test_a_metric_of_ones_own(smollm2):
    def right_logit(logits, labels):
        return logits.gather(1, labels)[:, 0]

    task = load_task("ioi", smollm2, n=5, metric=right_logit)
    assert task.metric(torch.arange(60_000.0).expand(5, -1), task.labels).tolist() == task.labels[:, 0].tolist()
    assert task.record.metric == "right_logit"


def test_logit_difference_refuses_several_answers(words):
    data = rows(("a b", "a c", " x| y", " z"))
    with pytest.raises(InputError, match=r"one correct answer.*row 1 of data has 2"):
        load_task(None, words, data=data, n=1, metric="logit-difference")


def test_answers_that_are_no_tokens_are_left_out_and_named(words):
    data = rows(("a b", "a c", " x| two words", " z| y"))
    task = load_task(None, words, data=data, n=1, split="all")
    assert (task.labels >= 0).sum(-1).tolist() == [[1, 2]]
    assert task.facts["notes"] == ["answers that are not a single token count for neither side: ' two words'"]


def test_a_task_prints_its_labels_as_words_and_only_a_few_of_them(smollm2):
    [label] = [line for line in str(load_task("greater-than", smollm2, n=2)).splitlines() if "label" in line]
    assert re.fullmatch(r"  label      ('\d+'(, )?)+( and \d+ more)?; not ('\d+'(, )?)+( and \d+ more)?", label)
    assert label.count("'") <= 2 * 8
    pair = {"clean": "The color of the fire is", "corrupted": "The color of the ice is", "answers": " red"}
    with pytest.warns(GradpathWarning, match="nothing is held out"):
        task = load_task(data=[{**pair, "wrong_answers": " blue"}], model=smollm2)
    assert "  label      ' red'; not ' blue'" in str(task)
    assert "  label      ' red'; not ' blue'" in str(task[:1])
    assert "blue" not in str(replace(task, labels=torch.zeros(1), metric=lambda logits, labels: logits[:, 0]))
