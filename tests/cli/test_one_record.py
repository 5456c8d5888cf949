"""The same question gets the same answer from every command: each starts from the recipe in the circuit's file."""

from __future__ import annotations

import os

import pytest
from covering import some

from gradpath.circuit import load_circuit
from gradpath.selection import SELECTIONS

PAIRS = "clean,corrupted,answers,wrong_answers\n" + "".join(
    f"The {x} sat on the {n},The {y} sat on the {n}, {x}, {y}\n"
    for n in "mnop"
    for x, y in zip("abcdefgh", "bcdefgha", strict=True)
)
METRIC = """
import torch

def right_logit(logits, labels):
    return logits.gather(1, labels[:, :1])[:, 0]
"""
PLUGIN = """
from gradpath.selection.ranking import Order, selection, top

@selection("backwards")
def backwards(scores, context):
    "The edges of smallest |score|."
    return Order(scores, top(scores, context).edges.flip(0))
"""
# Options of find, and those that later commands need again because the file cannot have them.
CASES = {
    "seed, examples and means": (["--task", "ioi", "--seed", 3, "--examples", 14, "--ablation", "mean"], []),
    "own data": (["--data", "pairs.csv"], []),
    "some of own data": (["--data", "pairs.csv", "--examples", 12, "--seed", 5], []),
    "own metric": (
        ["--task", "ioi", "--examples", 12, "--metric", "metric.py:right_logit"],
        ["--metric", "metric.py:right_logit"],
    ),
    "the same examples": (["--task", "ioi", "--examples", 12, "--split", "same"], []),
    "all examples": (["--task", "ioi", "--examples", 12, "--split", "all", "--ablation", "mean-positional"], []),
    "nodes": (["--task", "ioi", "--examples", 12, "--nodes", 4], []),
    "half precision": (["--task", "ioi", "--examples", 12, "--dtype", "bfloat16"], []),
    "a plug-in": (
        ["--task", "ioi", "--examples", 12, "--plugin", "plugin.py", "--selection", "backwards", "--edges", 40],
        ["--plugin", "plugin.py"],
    ),
}
QUICK = [name for name in CASES if name not in ("some of own data", "the same examples", "half precision")]
FACTS = ("version", "task", "metric", "ablation", "seed")
TESTED = ["seed, examples and means", "own data", "a plug-in"]  # ``test`` takes longest


@pytest.fixture
def here(tmp_path, monkeypatch):
    for name, text in (("pairs.csv", PAIRS), ("metric.py", METRIC), ("plugin.py", PLUGIN)):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    if "backwards" in SELECTIONS:
        SELECTIONS.remove("backwards")


@pytest.mark.filterwarnings("ignore:.* were attributed")
@pytest.mark.parametrize("case", some(list(CASES), QUICK))
def test_every_command_uses_the_examples_metric_precision_and_means_of_find(run, here, model_folder, case):
    options, again = CASES[case]
    if not {"--nodes", "--edges"} & {*map(str, options)}:
        options = [*options, "--edges", 40, "--selection", "top"]

    def answer(verb, *arguments):
        ran = run(verb, *arguments, "--json")
        assert ran.code == 0, ran.err
        return ran.json

    expected = answer("find", "--model", model_folder, *options, "--out", "out")
    verbs = ("eval", "explain", "test") if case in TESTED else ("eval", "explain")
    answers = {verb: answer(verb, "out", *again) for verb in verbs}
    for found in answers.values():
        assert found["examples"] == expected["examples_measured"]
        assert [found[name] for name in FACTS] == [expected[name] for name in FACTS]
    measured, explained = answers["eval"], answers["explain"]
    for name in ("clean", "corrupted", "circuit", "faithfulness", "error"):
        assert measured[name] == pytest.approx(expected[name]), name
    assert explained["clean"] == pytest.approx(expected["clean"], abs=1e-2 if "bfloat16" in options else 1e-5)
    if case in TESTED:
        assert answers["test"]["faithfulness"] == pytest.approx(expected["faithfulness"], abs=1e-5)
    assert answer("compare", "out", "out")["jaccard_edges"] == 1
    assert run("show", "out", "--out", "page.html").code == 0
    assert os.path.getsize("page.html") > 10_000


def test_own_data_that_is_gone_is_asked_for(run, here, model_folder):
    options = ["--data", "pairs.csv", "--selection", "top", "--edges", 40]
    assert run("find", "--model", model_folder, *options, "--out", "out").code == 0
    assert load_circuit("out").recipe.data == "pairs.csv"
    os.rename("pairs.csv", "moved.csv")
    ran = run("eval", "out")
    assert ran.code == 2
    assert "was found on your own data, pairs.csv, which is not here" in ran.err
    os.mkdir("other")
    os.rename("moved.csv", "other/pairs.csv")
    assert run("eval", "out", "--data", "other/pairs.csv").code == 0


def test_what_is_typed_replaces_single_fields(run, here, model_folder):
    options = ["--seed", 3, "--examples", 12, "--ablation", "zero", "--selection", "top", "--edges", 40]
    assert run("find", "--model", model_folder, "--task", "ioi", *options, "--out", "out").code == 0
    other = run("eval", "out", "--seed", 4, "--json").json
    assert (other["seed"], other["examples"], other["ablation"]) == (4, 12, "zero")
    other = run("eval", "out", "--task", "sva", "--examples", 6, "--json").json
    assert (other["task"], other["seed"], other["examples"], other["ablation"]) == ("sva", 3, 6, "zero")
