"""Files: what is saved comes back, and what is damaged is refused."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save

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


def changed(circuit, tmp_path, change):
    circuit.save(tmp_path / "circuit.json")
    content = json.loads((tmp_path / "circuit.json").read_text())
    change(content)
    (tmp_path / "circuit.json").write_text(json.dumps(content))
    return tmp_path / "circuit.json"


DAMAGE = {
    "no edges": (lambda c: c.pop("edges"), "edges"),
    "another format": (lambda c: c.update(gradpath_circuit=9), "gradpath_circuit"),
    "an unknown edge": (lambda c: c["edges"].append(["a7.h0->logits", 1.0]), "has no edge"),
    "an edge twice": (lambda c: c["edges"].append(c["edges"][0]), "twice"),
    "a score that is a word": (lambda c: c["edges"].__setitem__(0, ["input->logits", "big"]), "finite number"),
    "a score that is none": (lambda c: c["edges"].__setitem__(0, ["input->logits", float("nan")]), "finite"),
    "a frequency above 1": (
        lambda c: c["edges"].__setitem__(slice(None), [[x, y, 1.5] for x, y in c["edges"]]),
        "from 0",
    ),
    "an edge without a score": (lambda c: c["edges"].__setitem__(0, ["input->logits"]), "a name and a score"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_circuit_is_refused(circuit, tmp_path, kind):
    change, words = DAMAGE[kind]
    with pytest.raises(InputError, match=words):
        load_circuit(changed(circuit, tmp_path, change))


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


def test_a_circuit_that_was_changed_is_refused_unless_its_digest_is_removed(circuit, tmp_path):
    file = tmp_path / "circuit.json"
    circuit.save(file)
    content = json.loads(file.read_text())
    content["edges"][3][1] += 1.0
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"damaged after it was written.*remove its .digest"):
        load_circuit(file)
    del content["digest"]  # as in files from before, and in those that people edit
    file.write_text(json.dumps(content))
    assert load_circuit(file).edges == circuit.edges


DAMAGED_RECORD = {
    "a list": ({"recipe": []}, "'recipe' is not an object"),
    "data that are a list": ({"recipe": {"data": []}}, "`data` must be text"),
    "options that are a number": ({"recipe": {"options": 3}}, "`options` must be an object"),
    "an unknown field": ({"recipe": {"edgse": 3}}, "there is no option 'edgse'. Did you mean 'edges'"),
    "steps that are true": ({"recipe": {"steps": True}}, "`steps` must be a whole number"),
    "fewer examples than none": ({"recipe": {"examples": -1}}, "`examples` must be a whole number"),
    "passes that are a word": ({"facts": {"passes": "many"}}, "passes"),
}


@pytest.mark.parametrize("kind", DAMAGED_RECORD)
def test_a_damaged_record_is_refused_in_circuits_and_in_scores(circuit, scores, tmp_path, kind):
    about, words = DAMAGED_RECORD[kind]
    with pytest.raises(InputError, match=words):
        load_circuit(changed(circuit, tmp_path, lambda content: content.update(**about)))
    file = tmp_path / "scores.safetensors"
    notes = {"format": 2, "graph": scores.graph.to_json(), **about}
    file.write_bytes(save({"scores": scores.values}, {"gradpath": json.dumps(notes)}))
    with pytest.raises(InputError, match=words):
        load_scores(file)


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
