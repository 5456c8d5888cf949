"""The circuit of one pair of prompts, typed on the command line or given in Python."""

from __future__ import annotations

import pytest
import torch

import gradpath as gp
from gradpath.errors import UsageError

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


def test_one_prompt_needs_no_size_and_has_a_dry_run(run, model, model_folder):
    found = gp.find(model, **PAIR, curve=False)
    assert len(found.circuit) > 0
    dry = run("find", "--model", model_folder, *TYPED, "--dry-run", "--json")
    assert (dry.code, dry.json["task"], dry.json["examples"]) == (0, "prompt", 1), dry.err


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
    with pytest.raises(UsageError, match=r"(?s)numbers of tokens \(6 and 7\).*clean: .*The\|.*corrupted: .*The\|"):
        gp.find(model, **{**PAIR, "corrupted": "The big dog sat on the"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"answer": None}, "one prompt needs `clean`, `corrupted` and `answer`"),
        ({"task": "ioi"}, "neither `task` nor `data`"),
        ({"corrupted": PAIR["clean"]}, "the prompts are the same"),
        ({"wrong": " a"}, "share a token .' a' in"),
    ],
)
def test_a_pair_that_cannot_be_used_is_refused(model, changes, words):
    with pytest.raises(UsageError, match=words):
        gp.find(model, **{name: value for name, value in {**PAIR, **changes}.items() if value is not None})


def test_answers_of_several_tokens_are_refused_with_their_tokens(model):
    pair = {**PAIR, "answer": " Mary had", "wrong": " Mary went"}
    with pytest.raises(UsageError, match=r"' Mary had' is ' Mary' \+ ' had', .*Give `first_token`"):
        gp.find(model, **pair)


def test_first_token_compares_where_the_answers_differ(run, model, model_folder, tmp_path):
    pair = {**PAIR, "answer": " Mary had", "wrong": " Mary went there"}
    found = gp.find(model, **pair, first_token=True, selection="top", edges=30, curve=False)
    ends = {name: f"{PAIR[name]} Mary" for name in ("clean", "corrupted")}
    by_hand = gp.find(model, **ends, answer=" had", wrong=" went", selection="top", edges=30, curve=False)
    assert torch.equal(found.scores.values, by_hand.scores.values)
    assert found.circuit.recipe.first_token
    assert found.circuit.recipe.answer == " Mary had"
    typed = [part for name, text in pair.items() for part in (f"--{name}", text)]
    ran = run("find", "--model", model_folder, *typed, "--first-token", *QUICK, "--out", tmp_path, "--json")
    assert ran.code == 0, ran.err
    assert "compared by the first token in which they differ, ' had' and ' went', after ' Mary'" in ran.err
    assert run("eval", tmp_path, "--json").json["clean"] == pytest.approx(ran.json["clean"])
    assert found.result.clean == pytest.approx(ran.json["clean"], abs=1e-5)


def test_the_most_likely_wrong_answer_follows_what_the_right_one_begins_with(model):
    """Where the model continues the corrupted prompt as the right answer begins, the token after that decides."""
    likely = gp.find(model, **{**PAIR, "wrong": None}, selection="top", edges=30, curve=False).circuit.recipe.wrong
    pair = {"clean": PAIR["clean"], "corrupted": PAIR["corrupted"], "answer": f"{likely} cat"}
    found = gp.find(model, **pair, first_token=True, selection="top", edges=30, curve=False)
    assert found.attributed.clean == [PAIR["clean"] + likely]
    assert found.circuit.recipe.wrong.startswith(likely)
