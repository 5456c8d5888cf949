"""Notes on circuits, and the figure in rows: boxes, sums of edges, places, and what is refused."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from making import Maker

from gradpath.circuit import Circuit, circuit_by_names
from gradpath.errors import GradpathError
from gradpath.graph import Graph
from gradpath.recipe import Recipe
from gradpath.report import show
from gradpath.report.figure import draw_figure, fold, layout, route
from gradpath.report.notes import Group, NodeNote, Notes, load_notes
from gradpath.report.page import first_edges
from gradpath.selection import select

GRAPH = Graph(4, 3)
EDGES = [
    ("input->m0", 4.0),
    ("m0->a1.h0<q>", 2.0),
    ("m0->a1.h2<q>", -0.5),
    ("input->a1.h2<v>", 1.0),
    ("a1.h0->a2.h1<k>", 1.5),
    ("a1.h2->a2.h1<k>", 0.25),
    ("a1.h0->m3", 0.2),
    ("a2.h1->m3", 0.7),
    ("a2.h1->logits", 3.0),
    ("m3->logits", 1.0),
]
PAIR = Group("the pair", ("a1.h0", "a1.h2"), "#d55e00")


def circuit() -> Circuit:
    return replace(circuit_by_names(GRAPH, EDGES), recipe=Recipe(model="m", task="t"))


def content(**changes: Any) -> dict[str, Any]:
    notes = Notes({"a2.h1": NodeNote("mover", "#0072b2", "raises it")}, (PAIR,), {"n": 5})
    return {**notes.to_json(GRAPH), **changes}


def saved(tmp_path: Path, **changes: Any) -> Path:
    file = tmp_path / "notes.json"
    file.write_text(json.dumps(content(**changes)))
    return file


def test_notes_are_read_as_they_were_saved(tmp_path: Path) -> None:
    notes = load_notes(saved(tmp_path), GRAPH)
    assert notes.to_json(GRAPH) == content()
    assert notes.colour_of("a1.h2") == "#d55e00"
    assert notes.colour_of("a2.h1") == "#0072b2"
    assert notes.colour_of("m0") == ""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gradpath_notes": 2}, 'no "gradpath_notes": 1'),
        ({"graph": Graph(2, 2).to_json()}, "2 layers of 2 heads, and the circuit is of one with 4 layers of 3"),
        ({"nodes": {"a9.h0": {}}}, "no node 'a9.h0'"),
        ({"nodes": {"m0": {"colour": "red"}}}, "nodes.m0.colour: .*: got 'red'"),
        ({"nodes": {"m0": 3}}, "nodes.m0: Input should be a dictionary"),
        ({"nodes": []}, "nodes: Input should be a valid dictionary"),
        ({"groups": [{"name": "x"}]}, "groups.0.nodes: Field required"),
        ({"groups": [{"name": "x", "nodes": ["m0"]}, {"name": "y", "nodes": ["m0"]}]}, "'m0' is in two groups"),
    ],
)
def test_notes_that_cannot_be_used_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GradpathError, match=message):
        load_notes(saved(tmp_path, **changes), GRAPH)


def test_a_folded_group_is_one_box_with_its_edges_summed() -> None:
    boxes, edges = fold(circuit(), Notes(groups=(PAIR,)))
    assert set(boxes) == {"input", "m0", "group the pair", "a2.h1", "m3", "logits"}
    assert boxes["group the pair"].lines == ("a1.h0 a1.h2",)
    assert edges["m0", "group the pair", "q"] == pytest.approx(1.5)
    assert edges["group the pair", "a2.h1", "k"] == pytest.approx(1.75)
    assert sum(edges.values()) == pytest.approx(sum(score for _, score in EDGES))
    unfolded = Group("the pair", PAIR.nodes, folded=False)
    assert len(fold(circuit(), Notes(groups=(unfolded,)))[1]) == len(EDGES)


def bezier(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points on the curves of an edge."""
    curves = [points[at : at + 4] for at in range(0, len(points) - 1, 3)]
    shares = [i / 12 for i in range(13)]
    weights = [((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3) for t in shares]
    return [
        (
            sum(w * p[0] for w, p in zip(weight, curve, strict=True)),
            sum(w * p[1] for w, p in zip(weight, curve, strict=True)),
        )
        for curve in curves
        for weight in weights
    ]


# A group that reads a node which reads it has an edge that leads down.
LOOPED = Notes(groups=(Group("loop", ("a0.h1", "a3.h0", "m3")),))


@pytest.mark.parametrize("notes", [Notes(), Notes(groups=(PAIR,)), LOOPED], ids=["plain", "group", "loop"])
def test_no_box_covers_another_and_no_edge_is_behind_a_box_that_it_does_not_touch(notes: Notes) -> None:
    scores = Maker().scores(4, 3, seed=3)
    for shown in (circuit(), select(scores, 40), select(scores, 120)):
        boxes, edges = fold(shown, notes)
        plan = layout(boxes, edges)
        corners = {name: (*plan.place(name), box.width / 2, box.height / 2) for name, box in boxes.items()}
        for a, b in itertools.combinations(corners, 2):
            (x, y, w, h), (u, v, w2, h2) = corners[a], corners[b]
            assert abs(x - u) >= w + w2 or abs(y - v) >= h + h2, (a, b)
        for edge in edges:
            if not notes.groups:
                assert plan.place(edge[0])[1] < plan.place(edge[1])[1]
            points = bezier(route(plan, boxes, edge))
            for name in corners.keys() - set(edge[:2]):
                x, y, w, h = corners[name]
                assert not any(abs(px - x) < w and abs(py - y) < h for px, py in points), (edge, name)


def test_two_chains_do_not_cross() -> None:
    chains = [("input->a0.h0<q>", 1.0), ("input->a0.h2<q>", 1.0), ("a0.h0->a1.h2<q>", 1.0), ("a0.h2->a1.h0<q>", 1.0)]
    chains += [("a1.h2->logits", 1.0), ("a1.h0->logits", 1.0)]
    x = layout(*fold(circuit_by_names(GRAPH, chains), Notes())).x
    assert (x["a0.h0"] < x["a0.h2"]) == (x["a1.h2"] < x["a1.h0"])


def test_show_draws_names_groups_and_insets(tmp_path: Path) -> None:
    circuit().save(tmp_path / "circuit.json")
    pattern = torch.tril(torch.ones(3, 3)) / torch.arange(1, 4)[:, None]
    out = tmp_path / "figure.svg"
    show(tmp_path / "circuit.json", out, notes=saved(tmp_path), attention={"a2.h1": (pattern, ["The", " $x", " to"])})
    texts = [element.text for element in ElementTree.parse(out).iter() if element.tag.endswith("}text")]
    assert {"the pair", "a1.h0 a1.h2", "mover", "a2.h1 (mover)", "$x", "query"} <= set(texts)
    before = out.read_bytes()
    show(tmp_path / "circuit.json", out, notes=saved(tmp_path), attention={"a2.h1": (pattern, ["The", " $x", " to"])})
    assert out.read_bytes() == before
    for suffix in (".pdf", ".png"):
        draw_figure(circuit(), tmp_path / f"figure{suffix}")
        assert (tmp_path / f"figure{suffix}").stat().st_size > 1000


def test_notes_reach_the_page_and_no_other_format(tmp_path: Path) -> None:
    circuit().save(tmp_path / "circuit.json")
    show(tmp_path / "circuit.json", tmp_path / "page.html", notes=saved(tmp_path))
    assert '"mover"' in (tmp_path / "page.html").read_text()
    with pytest.raises(GradpathError, match=r"notes are shown in pages and figures.*got circuit.dot"):
        show(tmp_path / "circuit.json", tmp_path / "circuit.dot", notes=saved(tmp_path))


def test_the_first_edges_are_those_that_lead_somewhere() -> None:
    part = first_edges(circuit(), 9)
    assert set(part.edges) == {edge for edge, _ in EDGES[:9]} - {"a1.h0->m3", "a2.h1->m3"}
    with pytest.raises(GradpathError, match="do not lead from input to logits"):
        first_edges(circuit(), 2)
    with pytest.raises(GradpathError, match="has 10 edges"):
        first_edges(circuit(), 11)


def test_a_figure_of_too_many_nodes_is_refused(tmp_path: Path) -> None:
    wide = Graph(20, 12)
    names = [(f"input->a{layer}.h{head}<q>", 1.0) for layer in range(20) for head in range(12)]
    names += [(f"a{layer}.h{head}->logits", 1.0) for layer in range(20) for head in range(12)]
    with pytest.raises(GradpathError, match="at most 150 nodes: this circuit has 242"):
        draw_figure(circuit_by_names(wide, names), tmp_path / "figure.svg")
