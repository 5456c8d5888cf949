"""A submission to MIB: folders by task and model, importances that the library's readers take, nine circuits."""

from __future__ import annotations

import json

import pytest
import torch
from launching import run_here

import gradpath as gp
from gradpath import formats
from gradpath.errors import GradpathWarning, InputError
from gradpath.formats.eap_ig import mib_folder
from gradpath.graph import Graph
from gradpath.recipe import Facts, Recipe

GRAPH = Graph(6, 6)
RECIPE, FACTS = Recipe(model="Qwen/Qwen2.5-0.5B", task="ioi", method="eap"), Facts(d_model=16)


@pytest.fixture
def scores(tmp_path):
    values = torch.randn(GRAPH.mask.shape, generator=torch.Generator().manual_seed(0)) * GRAPH.mask
    made = gp.Scores(GRAPH, values, RECIPE, FACTS)
    made.save(tmp_path / "scores.safetensors")
    return made


def test_importances_have_the_score_of_every_edge(scores, tmp_path):
    ran = run_here("convert", tmp_path / "scores.safetensors", tmp_path / "sent", "--to", "mib")
    assert ran.code == 0, ran.err
    (file,) = (tmp_path / "sent" / "ioi_qwen2.5").iterdir()
    assert file.name == "importances.json"
    content = json.loads(file.read_text())
    assert content["cfg"]["n_layers"] == 6
    assert len(content["edges"]) == GRAPH.n_edges
    assert torch.equal(formats.read(file).scores.values, scores.values)


def test_nine_circuits_have_at_most_the_shares_that_are_asked_for(scores, tmp_path):
    ran = run_here("convert", tmp_path / "scores.safetensors", tmp_path / "sent.mib", "--selection", "top")
    assert ran.code == 0, ran.err
    shares = {}
    for file in (tmp_path / "sent.mib" / "ioi_qwen2.5").iterdir():
        circuit = formats.read(file).circuit
        shares[float(file.stem.removeprefix("circuit_"))] = len(circuit) / GRAPH.n_edges
        if not len(circuit):
            continue  # two edges need not lead from input to logits
        ranked = scores.values.abs().flatten().sort(descending=True).values
        assert circuit.scores.abs().min() >= ranked[circuit.requested - 1]
    assert sorted(shares) == [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50]
    assert all(100 * share <= most for most, share in shares.items())
    assert shares[50] > 0.4


def test_what_is_not_a_submission_is_refused(scores, tmp_path):
    gp.select(scores, 20, selection="top").save(tmp_path / "circuit.json")
    only = run_here("convert", tmp_path / "circuit.json", tmp_path / "sent", "--to", "mib")
    assert (only.code, "scores of all edges cannot be made" in only.error) == (1, True)
    sized = run_here("convert", tmp_path / "scores.safetensors", tmp_path / "sent", "--to", "mib", "--edges", 5)
    assert (sized.code, "nine sizes: leave out --edges" in sized.error) == (2, True)
    assert not (tmp_path / "sent").exists()


def test_folders_have_the_names_of_mib():
    made = {"task": "arc_easy", "model": "meta-llama/Llama-3.1-8B"}
    assert mib_folder(Recipe(**made)) == "arc-easy_llama3"
    with pytest.warns(GradpathWarning, match="MIB's leaderboard has no sva in ./my model"):
        assert mib_folder(Recipe(task="sva", model="./my model")) == "sva_my-model"
    with pytest.raises(InputError, match="does not record"):
        mib_folder(Recipe())
