"""``gradpath eval`` as a user types it."""

from __future__ import annotations

import shutil

import pytest
import torch

from gradpath.circuit import load_circuit


def test_a_folder_stands_for_its_circuit_and_scores_are_named(run, found, tmp_path):
    summary, out = found
    assert run("eval", out, "--examples", 6, "--json").json["faithfulness"] == pytest.approx(summary["faithfulness"])
    assert load_circuit(out) == load_circuit(out / "circuit.json")
    ran = run("eval", out / "scores.safetensors")
    assert ran.code == 1
    assert "scores.safetensors has scores, not a circuit. Give a circuit.json, or select a circuit" in ran.error
    assert f"there is no file {tmp_path / 'circuit.json'}" in run("eval", tmp_path).error


def test_eval_on_the_examples_it_was_found_on_differs(run, found):
    summary, out = found
    train = run("eval", out / "circuit.json", "--examples", 6, "--split", "train", "--json").json
    assert train["clean"] != pytest.approx(summary["clean"])


def test_eval_finds_a_model_by_its_recorded_path_or_says_what_to_do(run, model_folder, monkeypatch, tmp_path):
    monkeypatch.setenv("GRADPATH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(model_folder.parent)
    arguments = ["--examples", 4, "--method", "eap", "--selection", "top", "--edges", 20]
    assert run("find", "--model", model_folder, *arguments, "--out", tmp_path / "inside").code == 0
    assert load_circuit(tmp_path / "inside" / "circuit.json").recipe.model == f"./{model_folder.name}"
    assert run("eval", tmp_path / "inside" / "circuit.json", "--examples", 4).code == 0
    monkeypatch.chdir(tmp_path)
    assert (
        f"there is no file or folder ./{model_folder.name}" in run("eval", tmp_path / "inside" / "circuit.json").error
    )
    assert run("find", "--model", model_folder, *arguments, "--out", "outside").code == 0
    assert run("eval", "outside/circuit.json", "--examples", 4).code == 0  # on this machine
    monkeypatch.setenv("GRADPATH_CACHE", str(tmp_path / "another"))  # on the machine of somebody else
    error = run("eval", "outside/circuit.json", "--examples", 4).error
    assert f"the model .../{model_folder.name} was outside of the working directory" in error
    assert "--model" in error
    assert run("eval", "outside/circuit.json", "--examples", 4, "--model", model_folder).code == 0


@pytest.mark.filterwarnings("always::gradpath.errors.GradpathWarning")
def test_eval_says_that_the_weights_have_changed(run, model_folder, tmp_path, monkeypatch):
    from transformers import GPT2LMHeadModel

    monkeypatch.setenv("GRADPATH_CACHE", str(tmp_path / "cache"))  # which remembers where weights were seen last
    folder = shutil.copytree(model_folder, tmp_path / "model")
    arguments = ["--examples", 4, "--method", "eap", "--selection", "top", "--edges", 20]
    assert run("find", "--model", folder, *arguments, "--out", tmp_path / "out").code == 0
    changed = GPT2LMHeadModel.from_pretrained(folder)
    with torch.no_grad():
        changed.transformer.h[1].mlp.c_fc.weight[3, 4] += 0.1
    changed.save_pretrained(folder)
    ran = run("eval", tmp_path / "out" / "circuit.json", "--examples", 4)
    assert ran.code == 0, ran.err
    assert "was found in other weights" in ran.err
    assert "was found in other weights" not in run("eval", tmp_path / "out" / "circuit.json", "--model", folder).err
