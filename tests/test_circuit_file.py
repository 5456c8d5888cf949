"""Files: what is saved comes back, and what is damaged is refused."""

from __future__ import annotations

import json

import pytest
import torch

from gradpath.circuit import Circuit, load_circuit
from gradpath.errors import InputError
from gradpath.graph import Graph
from gradpath.recipe import Recipe
from gradpath.scores import Scores, load_scores
from gradpath.selection import select

GRAPH = Graph(3, 2)


@pytest.fixture
def scores() -> Scores:
    values = torch.randn(GRAPH.mask.shape, generator=torch.Generator().manual_seed(1)) * GRAPH.mask
    return Scores(GRAPH, values, Recipe(model="a model", task="ioi", method="eap", steps=1))


@pytest.fixture
def circuit(scores) -> Circuit:
    return select(scores, 40)


def test_a_circuit_file_can_be_read_by_people(circuit, tmp_path):
    circuit.save(tmp_path / "circuit.json")
    lines = (tmp_path / "circuit.json").read_text().splitlines()
    assert sum("->" in line for line in lines) == len(circuit)  # one edge a line
    assert json.loads((tmp_path / "circuit.json").read_text())["recipe"]["method"] == "eap"


def score(number):
    return lambda content: content["edges"].__setitem__(0, ["input->logits", number])


DAMAGE = {
    "no edges": (lambda content: content.pop("edges"), "edges"),
    "another format": (lambda content: content.update(gradpath_circuit=9), "gradpath_circuit"),
    "an unknown edge": (lambda content: content["edges"].append(["a7.h0->logits", 1.0]), "has no edge"),
    "an edge twice": (lambda content: content["edges"].append(content["edges"][0]), "twice"),
    "a score that is a word": (score("big"), "finite number"),
    "a score that is none": (score(float("nan")), "finite"),
    "frequencies above 1": (lambda content: content.update(edges=[[*x, 1.5] for x in content["edges"]]), "from 0"),
    "an edge without a score": (lambda content: content["edges"].__setitem__(0, ["input->logits"]), "a name and a"),
    "another score": (score(0.25), r"damaged after it was written.*remove its .digest"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_circuit_is_refused(circuit, tmp_path, kind):
    (change, words), file = DAMAGE[kind], tmp_path / "circuit.json"
    circuit.save(file)
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match=words):
        load_circuit(file)


def test_damaged_scores_are_refused(scores, tmp_path):
    file = tmp_path / "scores.safetensors"
    scores.save(file)
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:5], b"", b"x" * 100):
        file.write_bytes(content)
        with pytest.raises(InputError, match="cannot be read as gradpath scores"):
            load_scores(file)


def test_scores_of_the_wrong_shape_or_with_nan_are_refused(scores, tmp_path):
    file = tmp_path / "scores.safetensors"
    Scores(Graph(3, 2), torch.zeros(2, 2)).save(file)
    with pytest.raises(InputError, match="expected float32 of shape"):
        load_scores(file)
    scores.values[0, 0] = torch.inf
    scores.save(file)
    with pytest.raises(InputError, match="finite"):
        load_scores(file)


@pytest.mark.parametrize("load", [load_circuit, load_scores])
def test_a_missing_file_is_named(tmp_path, load):
    with pytest.raises(InputError, match="there is no file"):
        load(tmp_path / "none")


def test_a_circuit_that_was_edited_is_read_without_its_digest(circuit, tmp_path):
    file = tmp_path / "circuit.json"
    circuit.save(file)
    content = json.loads(file.read_text())
    content["edges"][3][1] += 1.0
    del content["digest"]
    file.write_text(json.dumps(content))
    assert load_circuit(file).edges == circuit.edges


@pytest.mark.parametrize("what", ["a value", "how they were made"])
def test_scores_that_were_changed_are_refused(scores, tmp_path, what):
    file = tmp_path / "scores.safetensors"
    scores.save(file)
    content = file.read_bytes()
    changed = content[:-2] + bytes([content[-2] ^ 1]) + content[-1:]
    if what != "a value":
        method = scores.recipe.method.encode()
        changed = content.replace(method, method[::-1])
    assert changed != content
    file.write_bytes(changed)
    with pytest.raises(InputError, match="changed or damaged after it was written"):
        load_scores(file)


def test_a_page_is_not_called_a_damaged_circuit(tmp_path):
    page = tmp_path / "report.html"
    page.write_text("<!doctype html>")
    with pytest.raises(InputError, match=r"is a page, not a circuit"):
        load_circuit(page)
