"""Figures that the EAP-IG library computes on a small GPT-2 (see data/conformance/README.md)."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gradpath.attribution.attribute import attribute
from gradpath.evaluation import evaluate
from gradpath.model.load import load_model
from gradpath.scores import Scores
from gradpath.selection import select
from gradpath.tasks.task import Task

FOLDER = Path(__file__).parents[1] / "data" / "conformance"


@pytest.fixture(scope="module")
def peer():
    return load_file(FOLDER / "vectors.safetensors")


@pytest.fixture(scope="module")
def peer_model():
    return load_model(FOLDER)


@pytest.fixture(scope="module")
def task(peer):
    return Task(peer["clean"], peer["corrupted"], peer["labels"])


SETS = {
    "eap": ("eap", {}),
    "clean-corrupted": ("clean-corrupted", {}),
    "eap-ig": ("eap-ig", {"end": "corrupted"}),
    "eap-gp.all-positions": ("eap-gp", {"stride": "unit", "outputs": "all"}),
    "eap-gp.matched": ("eap-gp", {}),
}


def test_the_graph_is_the_peers(peer, peer_model):
    names = json.loads((FOLDER / "names.json").read_text())
    assert list(peer_model.graph.sources) == names["sources"]
    assert list(peer_model.graph.targets) == names["targets"]
    assert torch.equal(peer_model.graph.mask, peer["edge_mask"])


@pytest.mark.parametrize("name", SETS)
def test_scores_are_the_peers(peer, peer_model, task, name):
    method, options = SETS[name]
    values = attribute(peer_model, task, method, **options).values
    expected = peer[f"scores.{name}"]
    assert float((values - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


def test_the_circuit_and_its_metric_are_the_peers(peer, peer_model, task):
    scores = Scores(peer_model.graph, peer["scores.eap-ig"])
    circuit = select(scores, 120)
    assert len(circuit) == 116
    assert torch.equal(circuit.mask, peer["circuit"])
    values = evaluate(peer_model, circuit, task).circuit_values
    assert float((values - peer["circuit_logit_diff"]).abs().max()) <= 1e-4
