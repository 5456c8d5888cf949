"""``gradpath convert`` as a user types it."""

from __future__ import annotations

import pytest
import torch

import gradpath as gp
from gradpath.circuit import load_circuit
from gradpath.graph import Graph
from gradpath.scores import load_scores


def test_convert_goes_to_the_eap_ig_library_and_back(run, found, tmp_path):
    _, out = found
    there, back = tmp_path / "x.eap-ig.json", tmp_path / "back"
    ran = run("convert", out / "circuit.json", there, "--scores", out / "scores.safetensors")
    assert ran.code == 0, ran.err
    assert ran.out.strip() == str(there)
    for name in ("circuit.json", "scores.safetensors"):
        assert run("convert", there, back / name).code == 0
    assert (back / "circuit.json").read_bytes() == (out / "circuit.json").read_bytes()
    ours, theirs = (load_scores(folder / "scores.safetensors") for folder in (out, back))
    assert torch.equal(ours.values, theirs.values)
    assert (ours.recipe, ours.facts) == (theirs.recipe, theirs.facts)
    assert run("eval", back / "circuit.json", "--examples", 6).code == 0


def test_convert_chooses_a_circuit_from_scores(run, found, tmp_path):
    _, out = found
    ran = run("convert", out / "scores.safetensors", tmp_path / "c.json", "--edges", 30)
    assert ran.code == 0, ran.err
    assert (tmp_path / "c.json").read_bytes() == (out / "circuit.json").read_bytes()


CONVERT_WRONG = {
    "an unknown suffix": (["SCORES", "x.docx"], 2, ".eap-ig.json (eap-ig)"),
    "an unknown format": (["SCORES", "x.json", "--to", "eapig"], 2, "Did you mean 'eap-ig'"),
    "no circuit in it": (["SCORES", "x.graphml"], 1, "--edges N"),
    "no scores in it": (["CIRCUIT", "x.safetensors"], 1, "cannot be made from it"),
    "how many are chosen": (["SCORES", "x.json", "--selection", "top"], 2, "give --edges as well"),
    "no file": (["none.json", "x.dot"], 1, "there is no file"),
}


@pytest.mark.parametrize("kind", CONVERT_WRONG)
def test_convert_refuses_in_one_sentence(run, found, tmp_path, monkeypatch, kind):
    _, out = found
    monkeypatch.chdir(tmp_path)
    arguments, code, words = CONVERT_WRONG[kind]
    places = {"SCORES": out / "scores.safetensors", "CIRCUIT": out / "circuit.json"}
    ran = run("convert", *(places.get(argument, argument) for argument in arguments))
    assert ran.code == code, ran.err
    assert words in ran.error
    assert not list(tmp_path.glob("x.*"))


def test_convert_selects_with_every_selection_that_is_listed(run, model_folder, tmp_path):
    arguments = ["--model", model_folder, "--examples", 3, "--edges", 40, "--selection", "refined"]
    assert run("find", *arguments, "--out", tmp_path).code == 0
    ran = run(
        "convert", tmp_path / "scores.safetensors", tmp_path / "again.json", "--edges", 40, "--selection", "refined"
    )
    assert ran.code == 0, ran.err
    found, again = (load_circuit(tmp_path / name) for name in ("circuit.json", "again.json"))
    assert again.edges == found.edges


def test_convert_says_what_a_selection_that_measures_needs(run, tmp_path):
    scores = gp.Scores(Graph(2, 2), torch.randn(7, 15) * Graph(2, 2).mask)
    scores.save(tmp_path / "scores.safetensors")
    ran = run("convert", tmp_path / "scores.safetensors", tmp_path / "c.json", "--edges", 5, "--selection", "refined")
    assert ran.code == 1
    assert "does not record its model and task" in ran.error
