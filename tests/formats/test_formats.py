"""Other tools' files: what goes out comes back, and is what the other tool expects."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import networkx
import pytest
import torch

from gradpath import formats
from gradpath.circuit import Circuit, circuit_by_names
from gradpath.errors import GradpathWarning, InputError, UsageError
from gradpath.formats import Content
from gradpath.formats.edges import dot
from gradpath.graph import Graph
from gradpath.recipe import Facts, Recipe
from gradpath.scores import Scores
from gradpath.selection import select

GRAPHS = {"sequential": Graph(3, 2), "parallel": Graph(2, 3, parallel=True)}
RECIPE = Recipe(model='a "model"\\é', task="ioi", method="eap", steps=1, options={"a": 1})


@pytest.fixture(params=GRAPHS)
def scores(request) -> Scores:
    graph = GRAPHS[request.param]
    values = torch.randn(graph.mask.shape, generator=torch.Generator().manual_seed(1)) * graph.mask
    return Scores(graph, values, RECIPE, Facts(d_model=24))


@pytest.fixture
def circuit(scores) -> Circuit:
    """Greedy: an order that the scores alone do not give back."""
    return select(scores, 30, selection="greedy")


def same_scores(a: Scores, b: Scores) -> bool:
    return a.graph == b.graph and torch.equal(a.values, b.values) and (a.recipe, a.facts) == (b.recipe, b.facts)


def same_circuit(a: Circuit, b: Circuit) -> bool:
    tensors = torch.equal(a.index, b.index) and torch.equal(a.scores, b.scores)
    return a.graph == b.graph and tensors and (a.recipe, a.facts, a.notes) == (b.recipe, b.facts, b.notes)


@pytest.mark.parametrize("name", ["x.eap-ig.json", "x.json", "x.graphml"])
def test_a_circuit_comes_back_as_it_was(circuit, tmp_path, name):
    circuit.notes["input"] = {"name": "the prompt", "note": "é"}
    circuit.notes[circuit.nodes[1]] = {"group": "first", "colour": "#009e73"}
    for one in (circuit, replace(circuit, index=circuit.index[:0], scores=circuit.scores[:0])):
        formats.write(one, tmp_path / name)
        back = formats.read(tmp_path / name)
        assert back.scores is None
        assert same_circuit(back.circuit, one)


@pytest.mark.parametrize("name", ["x.eap-ig.json", "x.safetensors"])
def test_scores_come_back_as_they_were(scores, tmp_path, name):
    formats.write(scores, tmp_path / name)
    back = formats.read(tmp_path / name)
    assert back.circuit is None
    assert same_scores(back.scores, scores)


def test_scores_and_circuit_go_in_one_file(scores, circuit, tmp_path):
    formats.write(Content(scores, circuit), tmp_path / "x.eap-ig.json")
    back = formats.read(tmp_path / "x.eap-ig.json")
    assert same_scores(back.scores, scores)
    assert same_circuit(back.circuit, circuit)


def by_the_library(graph: Graph, values: torch.Tensor, inside: torch.Tensor) -> dict:
    """The object that EAP-IG's ``Graph.to_json`` dumps, made as it makes it: by its own loops over nodes."""
    n_heads = graph.n_heads
    heads = [[f"a{layer}.h{head}" for head in range(n_heads)] for layer in range(graph.n_layers)]
    edges, stream = [], ["input"]
    for layer in range(graph.n_layers):
        into_heads = [f"{u}->{head}<{x}>" for u in stream for head in heads[layer] for x in "qkv"]
        before = list(stream)
        stream += heads[layer]
        into_mlp = [f"{u}->m{layer}" for u in (before if graph.parallel else stream)]
        edges += into_heads + into_mlp
        stream.append(f"m{layer}")
    edges += [f"{u}->logits" for u in stream]
    facts = {e: {"score": float(values[graph.index(e)]), "in_graph": bool(inside[graph.index(e)])} for e in edges}
    nodes = {name: {"in_graph": False} for name in stream} | {"logits": {"in_graph": True}}
    for edge, fact in facts.items():
        source = edge.partition("->")[0]
        fed = source == "input" or any(
            f["in_graph"] for e, f in facts.items() if e.partition("->")[2].partition("<")[0] == source
        )
        if fact["in_graph"] and fed:
            nodes[source]["in_graph"] = True
    cfg = {"n_layers": graph.n_layers, "n_heads": n_heads, "parallel_attn_mlp": graph.parallel, "d_model": 24}
    return {"cfg": cfg, "nodes": nodes, "edges": facts}


def test_what_is_written_is_what_the_eap_ig_library_writes(scores, circuit, tmp_path):
    formats.write(Content(scores, circuit), tmp_path / "x.eap-ig.json")
    written = json.loads((tmp_path / "x.eap-ig.json").read_text())
    expected = by_the_library(scores.graph, scores.values, circuit.mask)
    assert written.pop("gradpath")["order"] == circuit.edges
    assert written == expected


def test_a_file_of_the_eap_ig_library_gives_scores_and_circuit_and_comes_back(scores, circuit, tmp_path):
    theirs = by_the_library(scores.graph, scores.values, circuit.mask)
    (tmp_path / "importances.json").write_text(json.dumps(theirs))
    found = formats.read(tmp_path / "importances.json")
    assert torch.equal(found.scores.values, scores.values)
    assert torch.equal(found.circuit.mask, circuit.mask)
    size = found.circuit.scores.abs()
    assert torch.equal(size, size.sort(descending=True).values)
    formats.write(found, tmp_path / "back.eap-ig.json")
    back = json.loads((tmp_path / "back.eap-ig.json").read_text())
    back.pop("gradpath")
    assert back == theirs


def test_a_file_of_the_eap_ig_library_with_scores_alone_has_no_circuit(scores, tmp_path):
    theirs = by_the_library(scores.graph, scores.values, scores.graph.mask & False)
    (tmp_path / "importances.json").write_text(json.dumps(theirs))
    assert formats.read(tmp_path / "importances.json").circuit is None


JSON_DAMAGE = {
    "an unknown edge": (
        lambda d: d["edges"].update({"a9.h0->logits": {"score": 1.0, "in_graph": True}}),
        "has no edge",
    ),
    "an edge without a score": (lambda d: d["edges"]["input->logits"].pop("score"), "KeyError"),
    "a score that is a word": (lambda d: d["edges"]["input->logits"].update(score="big"), "cannot be read"),
    "a score that is none": (lambda d: d["edges"]["input->logits"].update(score=float("nan")), "finite number"),
    "neurons": (lambda d: d["nodes"]["m0"].update(neurons=[True]), "selects neurons"),
    "no layers": (lambda d: d["cfg"].pop("n_layers"), "the model's shape must be an object with n_layers"),
    "a list for the edges": (lambda d: d.update(edges=[]), "scores of 0 edges"),
}


@pytest.mark.parametrize("kind", JSON_DAMAGE)
def test_a_damaged_json_file_is_refused(scores, circuit, tmp_path, kind):
    theirs = by_the_library(scores.graph, scores.values, circuit.mask)
    change, words = JSON_DAMAGE[kind]
    change(theirs)
    (tmp_path / "x.json").write_text(json.dumps(theirs))
    with pytest.raises(InputError, match=words):
        formats.read(tmp_path / "x.json")


def test_a_graph_of_networkx_has_every_edge_and_comes_back(circuit):
    graph = circuit.to_networkx()
    assert isinstance(graph, networkx.DiGraph)
    assert graph.number_of_edges() == len(circuit)
    for edge, score in zip(circuit.edges, circuit.scores.tolist(), strict=True):
        source, _, target = edge.partition("->")
        feeds = target[-2] if target.endswith(">") else "logits" if target == "logits" else "mlp"
        assert graph.edges[source, target.partition("<")[0], feeds]["score"] == score
    assert networkx.is_directed_acyclic_graph(graph)
    assert same_circuit(formats.from_networkx(graph), circuit)


def test_graphml_that_another_program_saved_comes_back(circuit, tmp_path):
    """networkx names keys in its own way, and forgets the order of the edges."""
    graph = circuit.to_networkx()
    shuffled = networkx.MultiDiGraph(**graph.graph)
    shuffled.add_nodes_from(reversed(list(graph.nodes(data=True))))
    shuffled.add_edges_from(reversed(list(graph.edges(keys=True, data=True))))
    networkx.write_graphml(shuffled, tmp_path / "x.graphml")
    assert same_circuit(formats.read(tmp_path / "x.graphml").circuit, circuit)


def test_graphml_of_something_else_is_refused(tmp_path):
    networkx.write_graphml(networkx.path_graph(3, networkx.DiGraph), tmp_path / "x.graphml")
    with pytest.raises(InputError, match="not a circuit of gradpath"):
        formats.read(tmp_path / "x.graphml")


def test_dot_has_every_edge_in_full_and_dashes_the_negative_ones(circuit):
    lines = [line for line in dot(circuit).splitlines() if "->" in line]
    assert [line.partition('id="')[2].partition('"')[0] for line in lines] == circuit.edges
    told = [float(line.partition('score="')[2].partition('"')[0]) for line in lines]
    assert told == circuit.scores.tolist()
    assert ["dashed" in line for line in lines] == (circuit.scores < 0).tolist()
    assert dot(circuit).count("{") == dot(circuit).count("}")


def test_a_table_of_pandas_has_every_edge(scores, circuit):
    table = scores.to_pandas()
    assert len(table) == scores.graph.n_edges
    assert table.set_index("edge").score.to_dict() == {edge: scores[edge] for edge in table.edge}
    assert table.attrs["gradpath"]["scores"]["recipe"] == scores.recipe.recorded
    edges = circuit.to_pandas()
    assert list(edges.edge) == circuit.edges
    assert list(edges["rank"]) == list(range(1, len(circuit) + 1))
    both = formats.to_pandas(Content(scores, circuit))
    assert len(both) == len(table)
    assert list(both.dropna().sort_values("rank").edge) == circuit.edges


@pytest.mark.parametrize(("package", "make"), [("networkx", "to_networkx"), ("pandas", "to_pandas")])
def test_a_missing_package_is_named(circuit, monkeypatch, package, make):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=f"needs the package {package}, which is not installed"):
        getattr(circuit, make)()


def test_what_does_not_fit_is_refused(scores, circuit, tmp_path):
    with pytest.raises(InputError, match="Select edges from them"):
        formats.write(scores, tmp_path / "x.graphml")
    with pytest.raises(InputError, match="scores of all edges cannot be made"):
        formats.write(circuit, tmp_path / "x.safetensors")
    with pytest.raises(InputError, match="not selected from these scores"):
        Content(replace(scores, values=scores.values + 1), circuit)
    with pytest.raises(InputError, match="of the same model"):
        Content(scores, select(Scores(Graph(1, 1), torch.zeros(3, 5)), 2))
    without = replace(scores, facts=Facts())
    with pytest.raises(UsageError, match="--d-model N"):
        formats.write(without, tmp_path / "x.eap-ig.json")
    formats.write(without, tmp_path / "x.eap-ig.json", d_model=8)
    assert json.loads((tmp_path / "x.eap-ig.json").read_text())["cfg"]["d_model"] == 8


def test_an_unknown_format_is_refused_with_the_list(circuit, tmp_path):
    with pytest.raises(UsageError, match=r"\.json \(circuit\), .*\.dot \(dot\)"):
        formats.write(circuit, tmp_path / "x.docx")
    with pytest.raises(UsageError, match="Did you mean 'eap-ig'"):
        formats.write(circuit, tmp_path / "x.json", to="eap_ig")
    for name in ("x.dot", "x.pt", "x.csv"):
        with pytest.raises(UsageError, match="no format that can be read"):
            formats.read(tmp_path / name)
    with pytest.raises(InputError, match="there is no file"):
        formats.read(tmp_path / "none.graphml")


def test_a_package_can_add_a_format_whose_name_is_free(circuit, tmp_path):
    def save(content: Content, file: Path, d_model: int | None) -> None:
        file.write_text("\n".join(content.need_circuit().edges))

    def load(file: Path) -> Content:
        return Content(circuit=circuit_by_names(circuit.graph, [(x, 1.0) for x in file.read_text().split()]))

    entry = formats.Format(".edges.json", "Edges, one on a line.", save, load)
    with pytest.raises(UsageError, match="there is already a format 'dot'"):
        formats.FORMATS.add("dot", entry, owner="a package")
    formats.FORMATS.add("edges", entry, owner="a package")
    try:
        formats.write(circuit, tmp_path / "x.edges.json")
        assert formats.read(tmp_path / "x.edges.json").circuit.edges == circuit.edges
    finally:
        formats.FORMATS.remove("edges")


@pytest.mark.parametrize("suffix", [".eap-ig.json", ".graphml"])
def test_another_tools_circuit_that_is_not_pruned_is_read_with_a_warning(tmp_path, suffix):
    names = ["input->m0", "m0->logits", "a0.h0->logits"]  # nothing reaches the head
    file = tmp_path / f"circuit{suffix}"
    loose = circuit_by_names(Graph(2, 2, False), [(name, 1.0) for name in names])
    formats.write(Content(circuit=loose), file, d_model=8)
    with pytest.warns(GradpathWarning, match="1 of the 3 edges of circuit.* are on no path from input to logits"):
        assert len(formats.read(file).circuit) == 3
    pruned = circuit_by_names(Graph(2, 2, False), [(name, 1.0) for name in names[:2]])
    formats.write(Content(circuit=pruned), file, d_model=8)
    formats.read(file)  # a warning would be an error


# What the schema of the viewer requires: apps/webapp/app/api/graph/graph-schema.json in hijohnnylin/neuronpedia.
GRAPH_PARTS = {"metadata": dict, "qParams": dict, "nodes": list, "links": list}
METADATA = {"slug": str, "scan": str, "prompt_tokens": list, "prompt": str}
NODE = {
    "node_id": str,
    "feature": int,
    "layer": str,
    "ctx_idx": int,
    "feature_type": str,
    "jsNodeId": str,
    "clerp": str,
}
LINK = {"source": str, "target": str, "weight": float}


def test_a_graph_for_neuronpedia_has_what_its_viewer_requires(circuit, tmp_path):
    heads = [node for node in circuit.nodes if node.startswith("a")]
    circuit.notes.update({heads[0]: {"name": "mover", "group": "pair"}, heads[1]: {"group": "pair"}})
    formats.write(circuit, tmp_path / "x.neuronpedia.json")
    content = json.loads((tmp_path / "x.neuronpedia.json").read_text())
    nodes, links = content["nodes"], content["links"]
    for rows, required in (([content], GRAPH_PARTS), ([content["metadata"]], METADATA), (nodes, NODE), (links, LINK)):
        assert all(isinstance(row[name], kind) for row in rows for name, kind in required.items())
    names = {node["node_id"]: name for node, name in zip(nodes, circuit.nodes, strict=True)}
    assert len(names) == len(nodes)
    assert max(node["feature"] for node in nodes) < 0  # of no feature
    assert {node["ctx_idx"] for node in nodes} == {0}
    assert "not features" in content["metadata"]["info"]["description"]
    summed = {}
    for source, target, score in circuit.named_edges():
        ends = source, target.partition("<")[0]
        summed[ends] = summed.get(ends, 0) + score
    assert {(names[link["source"]], names[link["target"]]): link["weight"] for link in links} == summed
    assert [[names.get(x, x) for x in group] for group in content["qParams"]["supernodes"]] == [["pair", *heads[:2]]]
    labels = {names[node["node_id"]]: node["clerp"] for node in nodes}
    assert (labels[heads[0]], labels[heads[1]], labels["logits"]) == (f"mover ({heads[0]})", heads[1], "")
    with pytest.raises(InputError, match='no "gradpath_circuit": 2'):
        formats.read(tmp_path / "x.neuronpedia.json")
