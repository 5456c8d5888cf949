"""The circuit of one pair of prompts, typed on the command line or given in Python."""

from __future__ import annotations

import pytest
import torch

import gradpath as gp
from gradpath.errors import InputError, UsageError

PAIR = {"clean": "The cat sat on the", "corrupted": "The dog sat on the", "answer": " a", "wrong": " b"}
TYPED = [part for name, text in PAIR.items() for part in (f"--{name}", text)]
QUICK = ["--selection", "top", "--edges", 30]


@pytest.fixture(scope="module")
def model(model_folder):
    return gp.load_model(str(model_folder))


def test_find_eval_explain_and_show_take_one_prompt(run, model_folder, tmp_path):
    found = run("find", "--model", model_folder, *TYPED, *QUICK, "--out", tmp_path, "--json")
    assert found.code == 0, found.err
    assert (found.json["task"], found.json["examples"], found.json["held_out"]) == ("prompt", 1, False)
    assert found.json["faithfulness_interval"] is None
    again = run("eval", tmp_path, "--json")
    assert again.code == 0, again.err
    for name in ("clean", "corrupted", "circuit", "faithfulness"):
        assert again.json[name] == pytest.approx(found.json[name]), name
    assert "1 example: no interval" in run("eval", tmp_path).out
    assert run("explain", tmp_path).code == 0
    assert run("show", tmp_path, "--out", tmp_path / "page.html").code == 0


def test_python_gives_the_same_circuit_and_its_record_has_the_pair(model):
    found = gp.find(model, **PAIR, selection="top", edges=30, curve=False)
    assert {name: getattr(found.circuit.recipe, name) for name in PAIR} == PAIR
    task = gp.Task([PAIR["clean"]], [PAIR["corrupted"]], [(" a", " b")])
    scores = gp.attribute(model, task)
    assert found.circuit.edges == gp.select(scores, 30, selection="top").edges


def test_without_a_wrong_answer_it_is_the_most_likely_token_after_the_corrupted_prompt(model):
    pair = {name: text for name, text in PAIR.items() if name != "wrong"}
    ids = torch.tensor(model.tokenizer.encode([PAIR["corrupted"]]))
    logits = model.unembed(model.run(model.embed(ids)).final_in[:, -1])[0]
    found = gp.find(model, **pair, selection="top", edges=30, curve=False)
    assert found.circuit.recipe.wrong == model.tokenizer.decode([int(logits.argmax())])


def test_prompts_of_unequal_length_are_shown_as_tokens(model):
    with pytest.raises(InputError, match=r"(?s)these have 6 and 7.*clean: .*The\|.*corrupted: .*The\|"):
        gp.find(model, **{**PAIR, "corrupted": "The big dog sat on the"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"answer": None}, "one prompt needs `clean`, `corrupted` and `answer`"),
        ({"task": "ioi"}, "neither `task` nor `data`"),
        ({"wrong": " a"}, "the same token, ' a'"),
    ],
)
def test_a_pair_that_cannot_be_used_is_refused(model, changes, words):
    with pytest.raises(UsageError, match=words):
        gp.find(model, **{name: value for name, value in {**PAIR, **changes}.items() if value is not None})
