"""``gradpath compare``: numbers, one JSON object, a page, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gradpath.circuit import Circuit, load_circuit
from gradpath.graph import Graph

GRAPH = Graph(2, 2)
A = ["input->m0", "m0->logits", "input->a1.h0<q>", "a1.h0->logits"]
B = ["input->m0", "m0->logits", "input->m1", "m1->logits", "input->logits"]


@pytest.fixture
def files(tmp_path):
    made = tmp_path / "a.json", tmp_path / "b.json"
    for file, names in zip(made, (A, B), strict=True):
        Circuit.from_edges(GRAPH, names).save(file)
    return made


def test_compare_prints_one_object_with_what_the_contract_names(run, files):
    shown = run("compare", *files, "--json").json
    assert [shown[f"edges_{side}"] for side in ("a", "b", "both")] == [4, 5, 2]
    assert shown["jaccard_edges"] == 2 / 7
    assert shown["jaccard_nodes"] == 3 / 5  # input, m0 and logits of input, m0, a1.h0, m1 and logits


def test_compare_prints_a_table_and_writes_a_page(run, files, tmp_path):
    done = run("compare", *files, "--out", tmp_path / "page.html")
    assert done.code == 0
    assert "0.286" in done.out
    assert "0.600" in done.out
    assert f"Open {tmp_path / 'page.html'}" in done.out
    assert "only-a" in (tmp_path / "page.html").read_text()


def test_the_page_names_both_files_without_the_folders_of_this_machine(run, files, tmp_path):
    for name, file in zip("ab", files, strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / "circuit.json").write_bytes(Path(file).read_bytes())
    assert run("compare", *(tmp_path / x / "circuit.json" for x in "ab"), "--out", tmp_path / "page.html").code == 0
    page = (tmp_path / "page.html").read_text()
    assert str(tmp_path) not in page
    assert ".../a/circuit.json" in page
    assert ".../b/circuit.json" in page


def test_compare_refuses_in_one_sentence(run, files, tmp_path):
    Circuit.from_edges(Graph(3, 2), A).save(tmp_path / "larger.json")
    done = run("compare", files[0], tmp_path / "larger.json")
    assert (done.code, "same shape" in done.error) == (1, True)
    assert "the first has 2 layers of 2 heads, the second has 3 layers of 2 heads." in done.error
    done = run("compare", *files, "--out", tmp_path / "page.svg")
    assert (done.code, "ends in .html" in done.error) == (2, True)
    done = run("compare", files[0], tmp_path / "none.json")
    assert (done.code, "there is no file" in done.error) == (1, True)


def test_names_from_a_file_do_not_steer_the_terminal(run, found, tmp_path):
    _, out = found
    circuit = load_circuit(out)
    bad = replace(circuit, recipe=circuit.recipe.changed(task="\x1b[2Jioi\x07"))
    bad.save(tmp_path / "bad.json")
    done = run("compare", out / "circuit.json", tmp_path / "bad.json")
    assert "\\x1b[2Jioi\\x07" in done.out
    assert "\x1b" not in done.out + done.err
