"""Circuits as sets of edges: membership, operations, comparison, and circuits made from names."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_models import prompts, tiny_model

from gradpath.circuit import Circuit, circuit_by_names, load_circuit
from gradpath.errors import InputError, UsageError
from gradpath.evaluation import evaluate
from gradpath.graph import Graph
from gradpath.recipe import Recipe
from gradpath.scores import Scores
from gradpath.selection import select

GRAPH = Graph(3, 2)


def random_circuit(n: int, seed: int, **recipe: str) -> Circuit:
    values = torch.randn(GRAPH.mask.shape, generator=torch.Generator().manual_seed(seed)) * GRAPH.mask
    return select(Scores(GRAPH, values, Recipe(**recipe)), n, prune=False)


@pytest.fixture
def a() -> Circuit:
    return random_circuit(40, 1, model="one", task="ioi", ablation="zero")


@pytest.fixture
def b() -> Circuit:
    return random_circuit(50, 2, model="one", task="sva", ablation="zero")


def test_operations_are_those_of_sets_of_names(a, b):
    ours, theirs = set(a.edges), set(b.edges)
    assert ours & theirs, "these seeds should share edges"
    assert set(a & b) == ours & theirs
    assert set(a | b) == ours | theirs
    assert set(a - b) == ours - theirs
    assert [name in a for name in a.edges + b.edges] == [name in ours for name in a.edges + b.edges]
    assert "nonsense" not in a
    assert a & b <= a
    assert not a <= b


def test_notes_go_with_the_nodes_and_do_not_make_circuits_different(a, b, tmp_path):
    node, other = a.nodes[1], next(name for name in b.nodes if name not in (a & b).nodes)
    a.notes[node], b.notes[other] = {"name": "mine", "group": ""}, {"colour": "#009e73", "group": "theirs"}
    assert a == replace(a, notes={})
    assert hash(a) == hash(replace(a, notes={}))
    assert (a | b).notes == {node: {"name": "mine"}, other: {"group": "theirs", "colour": "#009e73"}}
    assert a.without(node).notes == (a - a).notes == {}
    assert (b & a).notes == ({node: {"name": "mine"}} if node in (a & b).nodes else {})
    part = a.without("logits")
    part.notes[node]["name"] = "another"
    assert a.notes[node]["name"] == "mine"
    part.save(tmp_path / "part.json")
    assert load_circuit(tmp_path / "part.json").notes == {node: {"name": "another"}}
    for wrong, message in (
        ({"a9.h9": {}}, "no node 'a9.h9'"),
        ({node: "mine"}, "a note has some of name, group, note, colour, each a text"),
        ({node: {"title": "mine"}}, "a note has some of"),
        ({node: {"colour": "red"}}, "'red': write it as #rrggbb"),
        ([], "its notes must be an object"),
    ):
        object.__setattr__(a, "notes", wrong)
        with pytest.raises(InputError, match=message):
            a.save(tmp_path / "wrong.json")


def test_the_left_circuit_gives_order_and_scores_and_what_holds_for_both_is_recorded(a, b):
    position = {name: i for i, name in enumerate(a.edges)}
    shared = (a & b).edges
    assert shared == sorted(shared, key=position.__getitem__)
    assert (a & b).scores.tolist() == [float(a.scores[position[name]]) for name in shared]
    assert (a | b).edges[: len(a)] == a.edges
    assert torch.equal((a | b).scores[: len(a)], a.scores)
    both = a & b
    assert (both.recipe.model, both.ablation, both.recipe.task) == ("one", "zero", None)
    assert (both.selection, both.pruned, both.requested) == ("intersection", False, len(both))
    assert (a | b).selection == "union"
    assert (a - b).recipe.task == "ioi"


def test_equality_and_hash_ignore_order_and_scores(a, b):
    turned = Circuit.from_edges(GRAPH, a.edges[::-1])
    assert turned == a
    assert a != b
    assert {a, turned, b} == {a, b}
    assert a != set(a.edges)
    assert a != Circuit.from_edges(Graph(4, 2), a.edges)


def test_without_an_edge_a_node_and_an_input_of_a_head(a):
    edge = a.edges[7]
    assert set(a) - set(a.without(edge)) == {edge}
    node = next(name for name in a.nodes if name.startswith("a"))
    gone = set(a) - set(a.without(node))
    assert gone == {
        name for name in a if name.startswith(f"{node}->") or name.partition("->")[2].startswith(f"{node}<")
    }
    key = next(name for name in a if name.endswith("<k>")).partition("->")[2]
    assert set(a) - set(a.without(key)) == {name for name in a if name.endswith(f"->{key}")}
    assert set(a.without("logits")) == {name for name in a if not name.endswith("->logits")}
    assert a.without(edge, node) == a.without(edge).without(node)
    absent = next(GRAPH.edge(*pair) for pair in GRAPH.mask.nonzero().tolist() if GRAPH.edge(*pair) not in a)
    assert a.without(absent) == a


@pytest.mark.parametrize("name", ["a9.h0", "a0.h0<z>", "m0->input", ""])
def test_without_refuses_what_the_model_does_not_have(a, name):
    with pytest.raises(InputError, match=r"no node or edge|has no edge|there is no edge"):
        a.without(name)


def test_a_circuit_of_named_edges_runs_is_saved_and_compared(tmp_path):
    tiny, task = tiny_model("gpt2"), prompts([6, 6], [[2], [3]])
    every = [tiny.graph.edge(*pair) for pair in tiny.graph.mask.nonzero().tolist()]
    whole = Circuit.from_edges(tiny, every)
    assert evaluate(tiny, whole, task).faithfulness == pytest.approx(1, abs=1e-4)
    assert whole.recipe.model == tiny.name
    whole.save(tmp_path / "circuit.json")
    assert load_circuit(tmp_path / "circuit.json") == whole
    one = Circuit.from_edges(tiny, (name for name in ["input->logits"]))
    assert one.edges == ["input->logits"]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("input->m0", "a list of names"),
        (["input->m9"], "has no edge 'input->m9'"),
        (["m1->m0"], "m0 does not read what m1 writes"),
        (["input->m0", "input->m0"], "occurs twice"),
    ],
)
def test_names_that_are_no_edges_are_refused(names, words):
    with pytest.raises((InputError, UsageError), match=words):
        Circuit.from_edges(GRAPH, names)


def test_comparison_counts_edges_and_nodes(a, b):
    told, nodes_a, nodes_b = a.compare(b), set(a.nodes), set(b.nodes)
    assert (told.both, told.only_a, told.only_b) == (a & b, a - b, b - a)
    assert told.jaccard_edges == len(set(a) & set(b)) / len(set(a) | set(b))
    assert told.jaccard_nodes == len(nodes_a & nodes_b) / len(nodes_a | nodes_b)
    assert told.by_chance == pytest.approx(40 * 50 / GRAPH.n_edges)
    assert a.compare(a).jaccard_edges == a.compare(a).jaccard_nodes == 1
    assert str(told).count("\n") < 10
    assert f"{told.jaccard_edges:.3f}" in str(told)
    empty = a - a
    assert (empty.compare(empty).jaccard_edges, a.compare(empty).jaccard_nodes) == (1, 0)


def test_circuits_that_cannot_be_combined_say_why(a):
    with pytest.raises(InputError, match=r"models have the same shape.*has 4 layers of 2 heads"):
        a & Circuit.from_edges(Graph(4, 2), ["input->m0"])
    with pytest.raises(UsageError, match="another circuit"):
        a - {"input->m0"}


def test_frequencies_are_saved_and_cores_are_compared(tmp_path):
    graph = Graph(n_layers=1, n_heads=1)
    rows = [["input->m0", 1.0, 1.0], ["m0->logits", -0.5, 0.5], ["input->logits", 0.25, 0.3333]]
    circuit = circuit_by_names(graph, rows)
    circuit.save(tmp_path / "circuit.json")
    again = load_circuit(tmp_path / "circuit.json")
    assert again.frequency.tolist() == pytest.approx([1.0, 0.5, 0.3333])
    assert again.without("input->m0").frequency.tolist() == pytest.approx([0.5, 0.3333])
    assert list(again.core) == ["input->m0"]
    assert "1 of 3 edges are in every resample" in str(again)
    assert again.to_pandas().frequency.tolist() == pytest.approx([1.0, 0.5, 0.3333])
    other = circuit_by_names(graph, [["input->m0", 1.0, 1.0], ["input->logits", 1.0, 1.0]])
    compared = again.compare(other)
    assert (compared.to_json()["core_a"], compared.to_json()["core_b"], compared.to_json()["core_both"]) == (1, 2, 1)
    assert compared.to_json()["jaccard_core"] == 0.5
    assert "core" in str(compared)
    # Of a circuit that is not a consensus, or of a union, nothing is known.
    plain = replace(other, frequency=None)
    assert plain.core is (again | other).core is None
    assert "core" not in str(again.compare(plain))
    assert "frequency" not in plain.to_pandas()
