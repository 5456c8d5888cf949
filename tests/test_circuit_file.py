"""Files: what is saved comes back, and what is damaged is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save

from gradpath.circuit import Circuit, load_circuit
from gradpath.errors import InputError
from gradpath.graph import Graph
from gradpath.scores import Provenance, Scores, load_scores
from gradpath.selection import select

GRAPH = Graph(3, 2)


@pytest.fixture
def scores() -> Scores:
    values = torch.randn(GRAPH.mask.shape, generator=torch.Generator().manual_seed(1)) * GRAPH.mask
    return Scores(GRAPH, values, {"model": "a model", "task": "ioi", "method": "eap", "steps": 1})


@pytest.fixture
def circuit(scores) -> Circuit:
    return select(scores, 40)


def test_an_empty_circuit_comes_back(tmp_path):
    empty = Circuit(GRAPH, torch.zeros(0, 2, dtype=torch.long), torch.zeros(0))
    empty.save(tmp_path / "circuit.json")
    assert len(load_circuit(tmp_path / "circuit.json")) == 0


def test_a_circuit_file_can_be_read_by_people(circuit, tmp_path):
    circuit.save(tmp_path / "circuit.json")
    lines = (tmp_path / "circuit.json").read_text().splitlines()
    assert sum("->" in line for line in lines) == len(circuit)  # one edge a line
    assert json.loads((tmp_path / "circuit.json").read_text())["about"]["method"] == "eap"


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


DAMAGED_ABOUT = {
    "a list": ([], "'about' is not an object"),
    "data that are a list": ({"data": []}, "'data' is not an object"),
    "options that are a number": ({"options": 3}, "'options' is not an object"),
    "a selection that is a word": ({"selection": "top"}, "'selection' is not an object"),
    "edges that are a word": ({"selection": {"edges_asked": "many"}}, "'edges_asked' is 'many'"),
    "steps that are true": ({"steps": True}, "'steps' is True"),
    "fewer examples than none": ({"examples": -1}, "'examples' is -1"),
}


@pytest.mark.parametrize("kind", DAMAGED_ABOUT)
def test_a_damaged_about_is_refused_in_circuits_and_in_scores(circuit, scores, tmp_path, kind):
    about, words = DAMAGED_ABOUT[kind]
    with pytest.raises(InputError, match=words):
        load_circuit(changed(circuit, tmp_path, lambda content: content.update(about=about)))
    file = tmp_path / "scores.safetensors"
    notes = {"format": 1, "graph": scores.graph.to_json(), "about": about}
    file.write_bytes(save({"scores": scores.values}, {"gradpath": json.dumps(notes)}))
    with pytest.raises(InputError, match=words):
        load_scores(file)


def test_a_provenance_says_how_scores_can_be_made_again(scores):
    data = {"metric": "kl", "seed": 3, "split": "all"}
    about = {**scores.about, "data": data, "steps": 4, "options": {"end": "middle"}, "bos": False}
    origin = replace(scores, about={**about, "examples": 7}).provenance
    assert (origin.metric, origin.seed, origin.split, origin.own_data) == ("kl", 3, "all", False)
    assert (origin.steps, origin.options, origin.bos, origin.examples) == (4, {"end": "middle"}, False, 7)
    assert Provenance.of({"data": {"rows_read": 2}}).own_data
    wrong = {"model": 3, "bos": "no", "examples": "7", "data": 1, "options": [], "selection": 2, "key": 1}
    assert Provenance.of(wrong) == Provenance()


@pytest.mark.parametrize("what", ["a value", "how they were made"])
def test_scores_that_were_changed_are_refused(scores, tmp_path, what):
    file = tmp_path / "scores.safetensors"
    scores.save(file)
    content = file.read_bytes()
    changed = content[:-2] + bytes([content[-2] ^ 1]) + content[-1:]
    if what != "a value":
        method = scores.about["method"].encode()
        changed = content.replace(method, method[::-1])
    assert changed != content
    file.write_bytes(changed)
    with pytest.raises(InputError, match="changed or damaged after it was written"):
        load_scores(file)


def test_scores_from_before_there_were_digests_are_read(scores, tmp_path):
    file = tmp_path / "scores.safetensors"
    notes = {"format": 1, "graph": scores.graph.to_json(), "about": dict(scores.about)}
    file.write_bytes(save({"scores": scores.values}, {"gradpath": json.dumps(notes)}))
    assert load_scores(file).values.equal(scores.values)
