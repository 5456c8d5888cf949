"""Notes, groups and the address of the page, in a real browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from browsing import Visit, ask, click_on, edges_shown, pick, saved, still
from making import Maker

from gradpath.graph import Graph
from gradpath.report import render
from gradpath.report.notes import Group, NodeNote, Notes, load_notes
from gradpath.selection import select

pytestmark = pytest.mark.browser


def until(page: Any, script: str) -> None:
    """Wait for something that the page does in its own time; its policy forbids Playwright's own way of waiting."""
    for _ in range(3000):
        if page.evaluate(script):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never true: {script}")


def two_heads(circuit: Any) -> list[str]:
    """Two heads of the circuit that read the same source."""
    return [node for node in circuit.nodes if node.startswith("a")][:2]


def test_a_node_can_be_named_coloured_noted_and_grouped_and_a_link_restores_it(
    visit: Visit, make: Maker, tmp_path: Path
) -> None:
    scores = make.scores(4, 4)
    text = render(make.report(scores, edges=60))
    page = visit.open(text)
    assert page.evaluate("location.hash") == ""
    one, two = two_heads(select(scores, 60))
    pick(page, one)
    assert page.inner_text("#notes-title") == f"Notes on {one}"
    still(page)
    before = page.locator("#canvas").screenshot()
    page.fill("#note-name", "<b>mover & = 100%")
    page.fill("#note-text", "moves names")
    page.locator(".swatch").nth(2).click()
    assert page.inner_text("#details-title") == f"<b>mover & = 100% ({one})"
    still(page)
    assert page.locator("#canvas").screenshot() != before
    for node in (one, two):
        pick(page, node)
        page.fill("#note-group", "movers")
        page.press("#note-group", "Tab")
    assert page.inner_text("#groups") == "movers (2)"
    notes = load_notes(saved(page, "#save-notes", tmp_path), scores.graph)
    assert notes.nodes[one] == NodeNote("<b>mover & = 100%", "#0072b2", "moves names")
    assert [(group.name, group.nodes, group.folded) for group in notes.groups] == [("movers", (one, two), False)]
    ask(page, edges=45, how="greedy")
    pick(page, one)
    until(page, f"location.hash.includes('n=45') && location.hash.includes('node={one}')")  # written after a moment
    again = visit.open(text, address=page.evaluate("location.hash"))
    until(again, "document.getElementById('count').value === '45'")
    assert edges_shown(again) == select(scores, 45, selection="greedy").edges
    assert again.inner_text("#details-title") == f"<b>mover & = 100% ({one})"
    assert again.input_value("#note-name") == "<b>mover & = 100%"


def test_a_folded_group_is_one_box_with_its_edges_summed(visit: Visit, make: Maker) -> None:
    scores = make.scores(4, 4)
    circuit = select(scores, 60)
    page = visit.open(make.report(scores, edges=60))
    one, two = two_heads(circuit)
    page.evaluate("nodes => gradpath.notes.read({groups: [{name: 'pair', nodes, folded: true}]})", [one, two])
    page.evaluate("() => gradpath.set({})")
    drawn = page.evaluate("gradpath.drawn()")

    def end(name: str) -> str:
        node, bracket, rest = name.partition("<")
        return ("pair" if node in (one, two) else node) + bracket + rest

    expected: dict[str, float] = {}
    for source, target, score in circuit.named_edges():
        ends = end(source), end(target)
        if ends[0] != ends[1].partition("<")[0]:
            expected["->".join(ends)] = expected.get("->".join(ends), 0.0) + score
    assert sorted(drawn) == sorted(expected)
    assert edges_shown(page) == circuit.edges  # what is downloaded is the circuit
    page.evaluate("() => gradpath.set({selected: -1})")
    listed = page.locator("#details .edges button").first
    name, value = listed.locator(".edgename").inner_text(), listed.locator("b").inner_text()
    assert float(value.replace("\u2212", "-")) == pytest.approx(expected[name], rel=0.01)
    click_on(page, one)
    assert page.inner_text("#notes-title") == "Group pair"
    page.click("#unfold")
    assert sorted(page.evaluate("gradpath.drawn()")) == sorted(circuit.edges)
    page.click("#groups button")
    assert sorted(page.evaluate("gradpath.drawn()")) == sorted(expected)


def test_an_address_that_means_nothing_here_is_ignored(visit: Visit, make: Maker) -> None:
    scores = make.scores(4, 4)
    nonsense = "#n=abc&example=99&node=a99.h1&how=x&run=7&notes=%7Bbroken&edge=%E0%A"
    page = visit.open(make.report(scores, edges=60), address=nonsense)
    assert edges_shown(page) == select(scores, 60).edges
    assert not page.is_visible("#fatal")


def test_notes_can_be_loaded_back_and_those_of_another_model_are_refused(
    visit: Visit, make: Maker, tmp_path: Path
) -> None:
    scores = make.scores(4, 4)
    page = visit.open(make.report(scores, edges=60))
    notes = Notes({"m1": NodeNote("writer")}, (Group("pair", ("a0.h0", "a1.h1")),), {"n": 30, "node": "m1"})
    file = tmp_path / "notes.json"
    file.write_text(json.dumps(notes.to_json(scores.graph)))
    page.set_input_files("#notes-file", file)
    until(page, "document.getElementById('count').value === '30'")
    assert page.inner_text("#groups").split("\n") == ["pair (2)", "folded"] or "pair (2)" in page.inner_text("#groups")
    assert page.inner_text("#details-title") == "writer (m1)"
    file.write_text(json.dumps(notes.to_json(Graph(2, 2))))
    page.set_input_files("#notes-file", file)
    page.wait_for_selector("#notes-said:not(:empty)")
    assert page.inner_text("#notes-said") == "These notes are of a model with 2 layers of 2 heads; this one has 4 of 4."
    for wrong, said in (
        ("{", "This file is not JSON"),
        (json.dumps({**notes.to_json(scores.graph), "nodes": {"a9.h9": {}}}), '"a9.h9", which is not a node'),
    ):
        file.write_text(wrong)
        page.set_input_files("#notes-file", file)
        until(page, f"document.getElementById('notes-said').textContent.includes({json.dumps(said)})")
    assert "pair (2)" in page.inner_text("#groups")  # what was there stays
