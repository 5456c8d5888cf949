"""The page of two circuits, in a real browser."""

from __future__ import annotations

import csv
import json

import pytest
from browsing import Visit, edges_shown, ink, pick, saved, still
from making import Maker

from gradpath.circuit import Circuit
from gradpath.errors import InputError
from gradpath.report.page import render_comparison
from gradpath.selection import select

COLOURED = """(colour) => { const c = document.getElementById("canvas");
  const want = getComputedStyle(document.documentElement).getPropertyValue(`--${colour}`).trim();
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(want.slice(at, at + 2), 16));
  const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
  let n = 0;
  for (let i = 0; i < d.length; i += 4) {
    const near = Math.abs(d[i] - r) + Math.abs(d[i + 1] - g) + Math.abs(d[i + 2] - b) < 24;
    if (d[i + 3] > 60 && near) n++;
  }
  return n; }"""


@pytest.fixture
def pair(make: Maker) -> tuple[Circuit, Circuit]:
    return select(make.scores(6, 5, seed=1, method="eap"), 60), select(make.scores(6, 5, seed=2), 80)


def test_circuits_that_were_made_alike_are_told_apart_by_their_size(make: Maker) -> None:
    scores = make.scores(6, 5)
    a, b = select(scores, 60), select(scores, 80)
    page = render_comparison(a.compare(b))
    assert (
        json.dumps([f"{a.recipe}, {len(a)} edges", f"{b.recipe}, {len(b)} edges"])[1:-1].replace('", "', '","') in page
    )


@pytest.mark.browser
def test_both_circuits_are_in_one_drawing_in_three_colours(visit: Visit, pair) -> None:
    a, b = pair
    assert all(map(len, (a & b, a - b, b - a))), "these seeds should give all three parts"
    page = visit.open(render_comparison(a.compare(b), ("one.json", "two.json")), width=390, theme="dark")
    assert set(edges_shown(page)) == set(a | b)
    assert page.inner_text("#legend").split("\n")[:3] == ["only in A", "in both", "only in B"]
    assert "two.json" in page.inner_text("#facts")
    tiles = page.locator("#tiles .tile").all_inner_texts()
    assert f"{len(a & b)}" in tiles[0]
    assert f"{a.compare(b).jaccard_edges:.3f}" in tiles[0]
    chance = a.compare(b).by_chance
    said = f"{round(chance):,}" if chance >= 10 else f"{float(f'{chance:.2g}'):g}"
    assert tiles[0].endswith(f" · {said} edges by chance")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    still(page)
    assert all(page.evaluate(COLOURED, colour) > 20 for colour in ("only-a", "only-b", "both"))
    for name, part, colour in (("Only A", a - b, "only-a"), ("Both", a & b, "both"), ("Only B", b - a, "only-b")):
        page.get_by_text(name, exact=True).first.click()
        assert set(edges_shown(page)) == set(part)
        still(page)
        others = {"only-a", "only-b", "both"} - {colour}
        assert page.evaluate(COLOURED, colour) > 20
        assert all(page.evaluate(COLOURED, other) == 0 for other in others - {"both"})
    page.get_by_text("All", exact=True).first.click()
    assert set(edges_shown(page)) == set(a | b)


@pytest.mark.browser
def test_an_edge_says_its_score_and_rank_in_each_circuit(visit: Visit, pair, tmp_path) -> None:
    a, b = pair
    page = visit.open(render_comparison(a.compare(b)))
    assert page.locator("#facts span").all_inner_texts() == [f"A: {a.recipe}", f"B: {b.recipe}"]
    assert "A: EAP · B: EAP-GP" in page.inner_text("#made")
    edge = (a & b).edges[0]
    pick(page, edge)
    note = page.inner_text("#details")
    assert f"rank {a.edges.index(edge) + 1}" in note
    assert f"rank {b.edges.index(edge) + 1}" in note
    with saved(page, "#save-csv", tmp_path).open() as opened:
        rows = {row["edge"]: row for row in csv.DictReader(opened)}
    assert set(rows) == set(a | b)
    for circuit, side in ((a, "a"), (b, "b")):
        for rank, (name, score) in enumerate(zip(circuit.edges, circuit.scores.tolist(), strict=True), 1):
            assert int(rows[name][f"rank_{side}"]) == rank
            assert float(rows[name][f"score_{side}"]) == pytest.approx(score, rel=1e-7)
    assert all(rows[name]["rank_b"] == "" for name in a - b)


@pytest.mark.browser
def test_an_empty_part_says_so_and_circuits_of_names_are_drawn(visit: Visit, pair) -> None:
    a, _ = pair
    page = visit.open(render_comparison(a.compare(Circuit.from_edges(a.graph, a.edges))))
    assert ink(page) > 0
    page.get_by_text("Only A", exact=True).first.click()
    assert page.inner_text("#message") == "There are no such edges."
    with pytest.raises(InputError, match="both circuits are empty"):
        render_comparison((a - a).compare(a - a))
