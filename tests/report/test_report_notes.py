"""Notes, groups and the address of the page, in a real browser."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browsing import Visit, ask, click_on, edges_shown, pick, saved, still
from making import Maker

from gradpath.circuit import load_circuit
from gradpath.report import circuit_report, render
from gradpath.report.page import render_comparison
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
    circuit = load_circuit(saved(page, "#save-notes", tmp_path))
    assert circuit == select(scores, 60)
    full = {"name": "<b>mover & = 100%", "group": "movers", "note": "moves names", "colour": "#e69f00"}
    assert circuit.notes == {one: full, two: {"group": "movers"}}
    ask(page, edges=45, how="greedy")
    pick(page, one)
    until(page, f"location.hash.includes('n=45') && location.hash.includes('node={one}')")  # written after a moment
    again = visit.open(text, address=page.evaluate("location.hash"))
    until(again, "document.getElementById('count').value === '45'")
    assert edges_shown(again) == select(scores, 45, selection="greedy").edges
    assert again.inner_text("#details-title") == f"<b>mover & = 100% ({one})"
    assert again.input_value("#note-name") == "<b>mover & = 100%"
    assert again.inner_text("#groups") == "movers (2)"  # not folded


def test_the_groups_of_a_circuit_are_boxes_with_their_edges_summed(visit: Visit, make: Maker) -> None:
    circuit = select(make.scores(4, 4), 60)
    one, two = two_heads(circuit)
    mlp = next(node for node in circuit.nodes if node.startswith("m"))
    circuit = replace(circuit, notes={one: {"group": "pair"}, two: {"group": "pair"}, mlp: {"name": "first"}})
    page = visit.open(circuit_report(circuit))
    assert page.evaluate("location.hash") == ""
    drawn = page.evaluate("gradpath.drawn()")

    def end(name: str) -> str:
        node, bracket, rest = name.partition("<")
        return ("pair" if node in (one, two) else "first" if node == mlp else node) + bracket + rest

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
    other = visit.open(render_comparison(circuit.compare(circuit.without(one))))
    pick(other, mlp)
    assert other.inner_text("#details-title") == f"first ({mlp})"
    assert sorted(edges_shown(other)) == sorted(other.evaluate("gradpath.drawn()"))  # groups are not folded here


def test_notes_of_a_circuit_can_be_loaded_and_those_of_another_model_are_refused(
    visit: Visit, make: Maker, tmp_path: Path
) -> None:
    scores = make.scores(4, 4)
    nonsense = "#n=abc&example=99&node=a99.h1&how=x&run=7&notes=%7Bbroken&edge=%E0%A"  # is ignored
    page = visit.open(make.report(scores, edges=60), address=nonsense)
    circuit, file = select(scores, 60), tmp_path / "circuit.json"
    assert edges_shown(page) == circuit.edges
    one, two = two_heads(circuit)
    circuit.notes[one] = circuit.notes[two] = {"group": "pair"}
    circuit.save(file)
    page.set_input_files("#notes-file", file)
    until(page, "document.getElementById('groups').innerText.includes('pair (2)')")
    content = json.loads(file.read_text())
    shape = {"n_layers": 2, "n_heads": 2, "parallel": False}
    for wrong, said in (
        ({**content, "graph": shape}, "These notes are of a model with 2 layers of 2 heads; this one has 4 of 4."),
        ({"notes": {}}, "This file has no gradpath_circuit: 2."),
        ({**content, "notes": {"a9.h9": {}}}, '"a9.h9", which is not a node'),
    ):
        file.write_text(json.dumps(wrong))
        page.set_input_files("#notes-file", file)
        until(page, f"document.getElementById('notes-said').textContent.includes({json.dumps(said)})")
    assert "pair (2)" in page.inner_text("#groups")  # what was there stays
