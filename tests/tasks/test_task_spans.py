"""Parts of prompts that data gives names to, under real tokenizers."""

from __future__ import annotations

import pytest

from gradpath.errors import InputError
from gradpath.explanation.measure import parts_of
from gradpath.tasks import load_task
from gradpath.tasks.task import encode

ROW = {"clean": "The chef likes it", "corrupted": "The boy likes it", "answers": " is", "wrong_answers": " are"}
OTHER = {**ROW, "clean": "The man sees it", "corrupted": "The boy sees it"}


def test_spans_are_the_tokens_that_their_characters_belong_to(model):
    rows = [{**ROW, "spans": '{"subject": "chef", "verb": [9, 14]}'}, {**OTHER, "spans": {"subject": "man"}}]
    task = load_task(data=rows, model=model, n=None, split="all")
    labels = parts_of(task, encode(task, model.tokenizer), model.tokenizer)
    assert {"subject", "verb", "end"} <= set(labels.names) <= {"first token", "subject", "verb", "rest", "end"}
    for text, row in zip(task.clean, labels.at.tolist(), strict=True):
        ids = model.tokenizer.encode([text])[0]
        named = dict.fromkeys(labels.names, "")
        for token, at in zip(ids, row, strict=False):
            named[labels.names[at]] += model.tokenizer.decode([token])
        assert "chef" in named["subject"] or "man" in named["subject"]
        assert ("likes" in named["verb"]) == ("chef" in text)
        assert "it" in named["rest"] + named["end"]
        assert row[len(ids) :] == [-1] * (len(row) - len(ids))


def test_without_names_there_are_none_and_a_slice_keeps_its_own(model):
    assert load_task(data=[ROW], model=model, n=None, split="all").spans is None
    rows = [{**ROW, "spans": {"subject": "chef"}}, OTHER]
    task = load_task(data=rows, model=model, n=None, split="all")
    assert {str(spans) for spans in task.spans} == {"{'subject': (4, 8)}", "{}"}
    assert task[1:].spans == task.spans[1:]


@pytest.mark.parametrize(
    "spans", ["[1]", "{", '{"a": "likes the"}', '{"a": "e"}', '{"a": [3, 99]}', '{"a": [2]}', '{"a": ""}', "3"]
)
def test_spans_that_are_not_in_the_prompt_are_refused(model, spans):
    with pytest.raises(InputError, match=r"row 1 of data must have .* in 'spans'"):
        load_task(data=[{**ROW, "spans": spans}], model=model, n=None, split="all")
