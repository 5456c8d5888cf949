"""The page in a real browser: what a person sees, and that it is what Python computes."""

from __future__ import annotations

import csv
import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from browsing import Visit, ask, click_on, edges_at, edges_shown, ink, number, pick, saved, still
from covering import some
from making import SMOLLM2, Maker

from gradpath.circuit import load_circuit
from gradpath.evaluation.mib import Areas
from gradpath.report import Chosen, CurvePoint, MethodRun, Report, circuit_report, render
from gradpath.selection import rank, select
from gradpath.selection.ranking import Sample, consensus
from gradpath.verdict.checks import Check
from gradpath.verdict.effects import Effects

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("shape", some([(2, 3), SMOLLM2, (48, 25)], [(2, 3)]))
def test_page_opens_on_the_circuit_that_was_found_and_tells_how_it_was_made(
    visit: Visit, make: Maker, shape: tuple[int, int]
) -> None:
    scores = make.scores(*shape)
    page = visit.open(make.report(scores, edges=40))
    assert page.inner_text("h1") == "ioi in smollm2"
    assert number(page, "kept") == len(select(scores, 40))
    assert "of 40 requested" in page.inner_text("#kept-note")
    assert page.inner_text("#drawn") == "Click a node or an edge for its scores."
    assert ink(page) > 0
    for hidden in ("#message", "#requested", "#verdict-card", "#does-card", "#no-inside", "#curve .random", "#small"):
        assert not page.is_visible(hidden)
    assert page.locator(".example").count() == 2
    assert page.locator(".example >> nth=0").locator("mark").all_inner_texts() == ["John", "Mary"]
    assert page.inner_text(".example .answer >> nth=0") == "Mary"
    assert "5.50" in page.inner_text(".example >> nth=0")
    labels, texts = (page.locator(f"#made {part}").all_inner_texts() for part in ("dt", "dd"))
    told = dict(zip(labels, texts, strict=True))
    assert [told[name] for name in ("Model", "Method", "Seed", "Time")] == ["smollm2", "EAP-GP", "7", "41 s"]
    assert "gradpath find --model smollm2 --task ioi" in page.inner_text("#blocks")
    assert "@inproceedings{zhang2025eapgp" in page.inner_text("#blocks")


def test_a_circuit_of_many_edges_is_told_whole_and_its_strongest_edges_are_drawn(visit: Visit, make: Maker) -> None:
    scores = make.scores(6, 5)
    points = [CurvePoint("top", n, n - 7, 0.6, 0.5, 0.7, 0.4) for n in (100, 400)]
    report = replace(make.report(scores, edges=400), runs=[MethodRun(scores, points)], checks=CHECKS)
    page = visit.open(replace(report, small=60, small_text="no circuit of up to 200 edges was found"))
    circuit = select(scores, 400)
    assert edges_shown(page) == circuit.edges
    assert page.inner_text("#faithfulness") == "60%"
    assert page.inner_text("#verdict-title") == "Should the circuit of 393 edges be believed?"
    assert not page.is_visible("#verdict-of")
    assert f"Drawn: the strongest 200 of {len(circuit)} edges." in page.inner_text("#drawn")
    strongest = circuit.scores.abs().argsort(descending=True, stable=True)[:200]
    assert set(page.evaluate("gradpath.drawn()")) == {circuit.edges[i] for i in strongest.tolist()}
    pick(page, "m5")  # all edges of a node are drawn
    own = {edge for edge in circuit.edges if "m5" in edge}
    assert own <= set(page.evaluate("gradpath.drawn()"))
    page.click("#draw-all")
    assert set(page.evaluate("gradpath.drawn()")) == set(circuit.edges)
    ask(page, edges=100)
    assert number(page, "kept") == len(page.evaluate("gradpath.drawn()")) == len(select(scores, 100))
    assert "tests are of the circuit that was found" in page.inner_text("#verdict-of")
    assert page.inner_text("#verdict-title") == "Should the circuit of 393 edges be believed?"
    assert "has 393 edges and faithfulness 60%" in page.inner_text("#requested")
    page.click("#show-requested")
    assert page.input_value("#count") == "400"
    assert not page.is_visible("#requested")
    assert "No circuit of up to 200 edges was found. " in page.inner_text("#small")
    page.click("#show-small")
    assert page.input_value("#count") == "60"


def test_edges_have_frequencies_that_follow_the_slider(visit: Visit, make: Maker) -> None:
    scores = make.scores(4, 3)
    draw = torch.Generator().manual_seed(0)
    forked = rank(scores).edges[:60]
    samples = tuple(Sample(forked[torch.randperm(60, generator=draw)], torch.arange(4)) for _ in range(4))
    order = replace(rank(scores), samples=samples, selection="refined", resamples=4)
    order = replace(order, edges=torch.cat([consensus(samples), order.edges[60:]]))
    run = MethodRun(scores, circuit=order.circuit(100, prune=False), samples=samples, smallest=1)
    page = visit.open(replace(make.report(scores), runs=[run], chosen=Chosen(40, "saved")))
    for n in (40, 25, 60):
        ask(page, edges=n)
        circuit = order[:n]
        assert circuit.core is not None
        assert edges_shown(page) == circuit.edges
        assert page.inner_text("#kept-note").startswith(f"{len(circuit.core)} in every resample")
    ask(page, edges=40)
    for least in (2, 4):
        page.select_option("#least", str(least))
        kept = zip(order[:40].edges, order[:40].frequency.tolist(), strict=True)
        assert set(edges_shown(page)) <= {edge for edge, share in kept if share >= least / 4}
        assert page.inner_text("#faithfulness") == "\u2013"  # of another circuit than the measured ones
    page.select_option("#least", "0")
    with page.expect_download() as download:
        page.click("#save-json")
    taken = load_circuit(download.value.path())
    assert taken == order[:40]
    assert taken.frequency.tolist() == pytest.approx(order[:40].frequency.tolist())
    ask(page, edges=80)  # here resamples do not differ
    assert page.is_disabled("#least")
    assert "resample" not in page.inner_text("#kept-note")


def test_same_edges_as_python_for_many_random_settings(visit: Visit, make: Maker) -> None:
    draw = random.Random(0)
    plain = make.scores(6, 5, seed=1)
    plain.values[0] *= 0.05  # few ways in: pruning has much to do
    cut, other = make.scores(6, 5, seed=1, ties=True), make.scores(4, 3, seed=3, ties=True, parallel=True)
    for scores, limit in ((plain, 20_000), (other, 20_000), (cut, 300)):
        page = visit.open(render(make.report(scores, edges=10), limit=limit))
        for _ in range(5):
            n = round(math.exp(draw.uniform(0, math.log(min(limit, scores.graph.n_edges)))))  # small ones as often
            how, prune = draw.choice(["top", "greedy", "signed"]), draw.random() < 0.75
            shown = edges_at(page, edges=n, how=how, prune=prune)
            assert shown == select(scores, n, selection=how, prune=prune).edges, (n, how, prune)
    assert f"of {cut.graph.n_edges:,}, that can appear among the first 300" in page.inner_text("#cut")
    assert page.get_attribute("#count", "max") == "300"


def test_slider_moves_the_count_the_drawing_and_the_point_on_the_curve(visit: Visit, make: Maker) -> None:
    scores = make.scores(*SMOLLM2)
    page = visit.open(make.report(scores, edges=616))
    page.click("#draw-all")
    before = number(page, "kept"), page.get_attribute("#here", "cx"), ink(page)
    assert page.inner_text("#faithfulness") == "20%"  # measured: the first point of the curve
    assert page.inner_text("#faithfulness-note") == "95% interval 15% to 25%"
    page.focus("#slider")
    for _ in range(12):
        page.keyboard.press("ArrowRight")
    asked = int(page.input_value("#count"))
    after = number(page, "kept"), page.get_attribute("#here", "cx"), ink(page)
    assert asked > 616
    assert after[0] == len(select(scores, asked)) > before[0]
    assert float(after[1]) > float(before[1])
    assert after[2] > before[2]
    assert page.inner_text("#faithfulness").startswith("≈")
    assert page.inner_text("#faithfulness-note") == "between 20% at 616 and 40% at 1,232 edges"
    assert page.get_attribute("#slider", "aria-valuetext") == f"{asked:,} edges"


def test_clicking_a_node_leaves_the_drawing_as_it_is(visit: Visit, make: Maker) -> None:
    page = visit.open(make.report(make.scores(*SMOLLM2), edges=100), width=1000)
    page.evaluate("document.getElementById('notes-card').style.minHeight = '2500px'")  # as long as what it shows

    def place() -> Any:  # in a window that may have scrolled
        return {**page.locator("#canvas").bounding_box(), "y": 0}, page.evaluate("gradpath.where('m0')")

    before = place()
    click_on(page, "m0")
    still(page)
    assert page.inner_text("#details-title") == "m0"
    assert page.is_visible("#notes-card")
    assert place() == before


def test_the_axes_of_the_curve_have_signs(visit: Visit, make: Maker) -> None:
    scores = make.scores(*SMOLLM2)
    points = [CurvePoint("top", n, n, 0.6, -0.4, 0.8, 0.4) for n in (1232, 2916)]
    report = replace(make.report(scores), runs=[MethodRun(scores, points)])
    page = visit.open(replace(report, chosen=Chosen(1232, found=False)))
    assert page.locator("#curve .tick.middle").all_text_contents() == ["1.2k", "2.9k"]
    assert page.locator("#curve .tick.end").all_text_contents()[:3] == ["\N{MINUS SIGN}25%", "0%", "25%"]
    ask(page, edges=300)
    assert not page.is_visible("#requested")  # no circuit was looked for


def test_methods_and_the_theme_can_be_switched_and_nothing_is_too_wide(visit: Visit, make: Maker) -> None:
    both = make.scores(6, 15, seed=1), make.scores(6, 15, seed=2, method="eap")
    text = render(make.report(*both))
    colour, width = "getComputedStyle(document.body).backgroundColor", "document.documentElement.scrollWidth"
    page, dark = visit.open(text), visit.open(text, width=390, theme="dark")
    assert (page.evaluate(width), dark.evaluate(width)) == (1440, 390)
    assert page.evaluate(colour) != dark.evaluate(colour)
    page.click("#theme")
    assert page.evaluate(colour) == dark.evaluate(colour)
    page.get_by_text("EAP", exact=True).first.click()
    assert edges_shown(page) == select(both[1], 50).edges
    assert page.locator("#curve .line:not(.other)").count() == 2


def test_nodes_and_edges_can_be_reached_by_mouse_search_and_keyboard_zoomed_and_panned(
    visit: Visit, make: Maker
) -> None:
    scores = make.scores(6, 5)
    circuit = select(scores, 150)
    page = visit.open(make.report(scores, edges=150))
    everything = ink(page)
    name = next(node for node in circuit.nodes if node.startswith("a"))
    click_on(page, name)
    assert page.inner_text("#details-title") == name
    assert ink(page) < everything
    listed = page.locator("#details .edges .edgename").all_inner_texts()
    assert listed
    assert all(name in edge for edge in listed)
    page.get_by_text("Its paths").click()
    page.click("#clear")
    assert page.inner_text("#details-title") == "Strongest edges"
    assert ink(page) == everything
    x, y = page.evaluate("gradpath.where('logits')")
    page.hover("#canvas", position={"x": x, "y": y})
    page.wait_for_selector("#tip b:has-text('logits')")
    into = [i for i, edge in enumerate(circuit.edges) if edge.endswith("->logits")]
    told = page.inner_text("#tip span").split(" · ")
    assert float(told[0].split()[1]) == pytest.approx(float(circuit.scores[into].abs().sum()), rel=0.01)
    assert f"reads {len(into)} edge" in told[2]
    page.hover("#details .edges button >> nth=0")
    page.wait_for_selector("#tip b:has-text('->')")
    assert "rank 1 of 150" in page.inner_text("#tip span")
    pick(page, circuit.edges[3])
    assert page.inner_text("#details .edgename") == circuit.edges[3]
    page.fill("#search", "nonsense")
    assert page.inner_text("#found") == "No node or edge of that name"
    outside = next(node for node in scores.graph.sources if node not in circuit.nodes)
    pick(page, outside)
    told = page.inner_text("#details .note").split()
    first = int(told[-3].replace(",", ""))
    assert outside in select(scores, first).nodes
    assert outside not in select(scores, first - 1).nodes
    page.click("#clear")
    page.mouse.move(0, 0)
    page.evaluate("gradpath.set({focus: -1})")
    page.focus("#search")
    for _ in range(4):  # over the three zoom buttons
        page.keyboard.press("Tab")
    assert page.inner_text("#tip b") == "input"
    page.keyboard.press("ArrowUp")
    name = page.inner_text("#tip b")
    assert name != "input"
    page.keyboard.press("Enter")
    assert page.inner_text("#details-title") == name
    assert name in page.inner_text("#said")
    page.keyboard.press("Escape")
    assert page.inner_text("#details-title") == "Strongest edges"
    before = page.evaluate("gradpath.where('input')")
    page.keyboard.press("+")
    zoomed = page.evaluate("gradpath.where('input')")
    assert zoomed != before
    assert page.locator("#holder.zoomed").count() == 1
    box = page.locator("#canvas").bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 300)
    page.mouse.down()
    page.mouse.move(box["x"] + 340, box["y"] + 260, steps=4)
    page.mouse.up()
    panned = page.evaluate("gradpath.where('input')")
    assert [round(a - b) for a, b in zip(panned, zoomed, strict=True)] == [40, -40]
    page.click("#zoom-fit")
    assert page.evaluate("gradpath.where('input')") == before


def test_downloads_are_the_circuit_that_is_shown(visit: Visit, make: Maker, tmp_path: Path) -> None:
    scores = make.scores(6, 5)
    page = visit.open(make.report(scores, edges=300))
    ask(page, edges=123, how="greedy")
    expected = select(scores, 123, selection="greedy")
    file = saved(page, "#save-json", tmp_path)
    assert load_circuit(file) == expected
    expected.save(tmp_path / "python.json")
    content = json.loads((tmp_path / "python.json").read_text())
    del content["digest"]  # which the page does not compute: a circuit may be without one
    assert json.loads(file.read_text()) == content
    with saved(page, "#save-csv", tmp_path).open() as file:
        rows = list(csv.DictReader(file))
    assert [row["edge"] for row in rows] == expected.edges
    assert [float(row["score"]) for row in rows] == pytest.approx(expected.scores.tolist())
    drawing = ElementTree.parse(saved(page, "#save-svg", tmp_path))
    assert len(list(drawing.iter("{http://www.w3.org/2000/svg}path"))) == len(expected)


def test_prompts_with_markup_are_shown_as_text(visit: Visit, make: Maker) -> None:
    evil = " </script><script>alert('x')</script><img src=x onerror=alert(1)>"
    report = make.report(make.scores())
    title = "<script>alert('title')</script>"
    page = visit.open(Report(title, evil, evil, report.runs, report.chosen, [make.example(evil)], evil, {"note": evil}))
    assert page.inner_text("h1") == title
    assert page.inner_text("mark >> nth=1") == evil.strip()
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2  # the data and the page's own


def test_circuit_file_alone_gives_a_page_of_its_own_edges(visit: Visit, make: Maker, tmp_path: Path) -> None:
    circuit = select(make.scores(6, 5), 200, selection="greedy")
    page = visit.open(circuit_report(circuit))
    assert edges_shown(page) == circuit.edges
    assert page.locator(".tile:visible h2").all_inner_texts() == ["Edges kept", "Nodes"]
    for hidden in ("#curve-card", "#evidence-card", "#how-control"):
        assert not page.is_visible(hidden)
    assert page.get_attribute("#count", "max") == str(len(circuit))
    again = load_circuit(saved(page, "#save-json", tmp_path))
    assert again.edges == circuit.edges
    assert again.record == circuit.record


def test_circuit_selected_elsewhere_is_shown_as_found_with_its_own_points(visit: Visit, make: Maker) -> None:
    scores = make.scores(6, 5)
    circuit = select(scores, 100, prune=False)
    found = replace(circuit, recipe=circuit.recipe.selected("learned"), n_requested=120)
    curve = [CurvePoint("learned", 120, len(found), 0.93, 0.9, 0.97, 0.2)]
    runs = [MethodRun(scores, [*make.curve(scores.graph.n_edges), *curve], circuit=found)]
    page = visit.open(Report("t", "m", "t", runs, Chosen(len(found), "saved", pruned=False)))
    assert page.locator("#hows span").all_inner_texts() == ["Learned", "Top", "Greedy", "Signed"]
    assert edges_shown(page) == found.edges
    assert page.inner_text("#faithfulness") == "93%"
    assert "of 120 requested" in page.inner_text("#kept-note")
    ask(page, edges=len(found) - 5)
    assert page.inner_text("#faithfulness-note") == "not measured here"


def test_nested_selection_has_a_circuit_for_every_size(visit: Visit, make: Maker, tmp_path: Path) -> None:
    scores, how = make.scores(6, 5), "random+seed=7"
    largest = select(scores, 400, selection=how, prune=False)
    curve = [CurvePoint(how, n, n - 1, n / 400, n / 400 - 0.1, n / 400 + 0.1, 0.2) for n in (40, 100, 200, 400)]
    run = MethodRun(scores, [*curve, CurvePoint("top", 100, 90, 0.1, 0.0, 0.2, 0.9)], circuit=largest, smallest=30)
    page = visit.open(Report("t", "m", "t", [run], Chosen(200, "saved")))
    for n in (200, 37, 400):
        ask(page, edges=n)
        circuit = select(scores, n, selection=how)
        assert edges_shown(page) == circuit.edges
        assert load_circuit(saved(page, "#save-json", tmp_path)).record == circuit.record
    ask(page, edges=12)  # below the smallest: nothing happens
    assert page.input_value("#count") == "400"
    ask(page, edges=150)
    assert page.inner_text("#faithfulness-note") == "between 25% at 100 and 50% at 200 edges"
    assert page.locator(".key span").all_inner_texts() == [how, "top"]
    page.locator("#curve .front circle >> nth=3").click()
    assert (page.input_value("#count"), page.inner_text("#faithfulness")) == ("400", "100%")
    page.locator("#curve .other circle").click()
    assert page.locator("#hows input:checked").get_attribute("value") == "top"
    assert (page.input_value("#count"), page.inner_text("#faithfulness")) == ("100", "10%")


def test_circuits_of_few_edges_are_shown(visit: Visit, make: Maker) -> None:
    scores = make.scores(6, 5, seed=4)
    page = visit.open(make.report(scores, edges=1))
    assert "no path from input to logits over this one edge" in page.inner_text("#message")
    page.click("#go")
    first = int(page.input_value("#count"))
    assert len(select(scores, first)) > 0
    assert len(select(scores, first - 1)) == 0
    one = select(scores, 1, prune=False)
    page = visit.open(circuit_report(type(one)(one.graph, one.index[:0], one.scores[:0])))
    assert "This circuit is empty" in page.inner_text("#message")
    assert page.input_value("#count") == "0"
    assert number(page, "kept") == 0


def test_page_cut_in_half_says_so(visit: Visit, make: Maker) -> None:
    text = render(make.report(make.scores()))
    page = visit.open(text[: len(text) // 2])
    page.wait_for_selector("#incomplete", state="visible")  # after a moment, lest it flashes on whole pages
    assert "not complete" in page.inner_text("#incomplete")
    assert not page.is_visible("main")


# Counts the edges that are drawn.
COUNTING = """{ const pen = CanvasRenderingContext2D.prototype, draw = pen.bezierCurveTo;
  pen.bezierCurveTo = function (...given) { window.curves++; return draw.apply(this, given); }; }
  window.curves = 0;"""


def test_a_page_of_many_edges_draws_few_until_it_is_told_to_and_while_the_slider_moves(
    visit: Visit, make: Maker
) -> None:
    """What makes it load and answer quickly, in counts; ``make bench-page`` has the times."""
    page = visit.open(make.report(make.scores(*SMOLLM2), edges=3_000), script=COUNTING)
    still(page)
    assert page.evaluate("curves") == 200
    assert page.evaluate("document.querySelectorAll('*').length") < 1_000
    page.click("#draw-all")
    still(page)
    moved = """() => new Promise((done) => { const slider = document.getElementById("slider");
      window.curves = 0;
      for (let i = 0; i < 5; i++) {
        slider.value = Number(slider.value) - 1;
        slider.dispatchEvent(new Event("input")); }
      requestAnimationFrame(() => done(curves)); })"""
    assert page.evaluate(moved) == 2_500
    still(page)
    assert page.evaluate("curves") == 2_500 + number(page, "kept")


CHECKS = {
    "sufficiency": Check(0.21, 1.0, "yes", "error 0.210; 19 random circuits of the same size 0.990 to 1.010"),
    "equivalence": Check(-0.3, 0.2, "no", "off by -0.300 of the behaviour"),
    "stability": Check(None, None, "undecided", "needs <b>the examples</b> that it was found with"),
}


def test_the_verdict_is_above_the_circuit(visit: Visit, make: Maker) -> None:
    effects = Effects(["input->m0", "m0->logits"], [0.1, 0.9], [0.2, 0.8], 0.05, "input->logits", 40)
    text = render(replace(make.report(make.scores()), checks=CHECKS, effects=effects))
    dash, minus = "\N{EN DASH}", "\N{MINUS SIGN}"
    for width, theme in ((1440, "light"), (390, "dark")):
        page = visit.open(text, width=width, theme=theme)
        top = {name: page.locator(name).bounding_box()["y"] for name in ("#verdict-card", "#circuit")}
        assert top["#verdict-card"] < top["#circuit"]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert "no other edge changes it by more than 0.050" in page.inner_text("#effects")
    assert page.locator("#effects circle").count() == 2
    assert page.inner_text("#verdict-said") == "Fails equivalence; passes sufficiency"
    assert page.locator(".testrow .sign").all_inner_texts() == ["passed", "failed", "not run", "no test"]
    figures = {name: page.locator(f"#check-{name} .figure").all_inner_texts() for name in CHECKS}
    assert figures["sufficiency"] == ["result\n0.21", "by chance\n1.00", "to pass\n≥ 0.5, p ≤ 0.05"]
    assert figures["equivalence"] == [f"result\n{minus}0.30", f"by chance\n{dash}", "to pass\nwithin ±0.2"]
    assert figures["stability"] == [f"result\n{dash}", f"by chance\n{dash}", f"to pass\n{dash}"]
    assert "<b>the examples</b>" in page.inner_text("#check-stability")
    assert "necessity, minimality, transfer" in page.inner_text("#verdict-note")


def test_random_circuits_are_a_grey_band_and_areas_are_told_where_they_were_measured(visit: Visit, make: Maker) -> None:
    scores = make.scores()
    points = [CurvePoint("random", n, n // 2, x, x, x, 1 - x) for n in (20, 40) for x in (0.0, 0.1, 0.2)]
    areas = {"signed": Areas((0.5,) * 9 + (1.0,), 0.75, (0.7, 0.8), 0.25, (0.2, 0.3))}
    report = make.report(scores)
    run = MethodRun(scores, [*report.runs[0].curve, *points], areas=areas)
    page = visit.open(replace(report, runs=[run], inside="no gradient"))
    corners: list[Any] = [
        tuple(map(float, corner.split(","))) for corner in page.get_attribute("#curve .random", "points").split()
    ]
    assert len(corners) == 4
    assert len({x for x, _ in corners}) == 2
    assert corners[0][1] < corners[-1][1]  # the best of them above the worst
    assert "3 of each of 2 sizes" in page.inner_text("#curve-note")
    assert "random circuits" in page.inner_text("#curve .key")
    assert "no gradient" in page.inner_text("#no-inside")
    assert not page.is_visible("#areas")
    ask(page, edges=20, how="signed")
    assert "EAP-GP: CPR 0.750 (0.70 to 0.80), CMD 0.250 (0.20 to 0.30)" in page.inner_text("#areas")
