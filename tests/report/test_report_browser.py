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
from browsing import Visit, ask, edges_at, edges_shown, ink, number, still
from covering import some
from making import SMOLLM2, Maker

from gradpath.circuit import load_circuit
from gradpath.evaluation.mib import Areas
from gradpath.report import Chosen, CurvePoint, MethodRun, Report, circuit_report, render
from gradpath.selection import select
from gradpath.verdict.checks import Check
from gradpath.verdict.effects import Effects

pytestmark = pytest.mark.browser


def saved(page: Any, button: str, folder: Path) -> Path:
    with page.expect_download() as download:
        page.click(button)
    file = folder / download.value.suggested_filename
    download.value.save_as(file)
    return file


@pytest.mark.parametrize("shape", some([(2, 3), SMOLLM2, (48, 25)], [(2, 3)]))
def test_page_opens_and_shows_the_circuit_that_was_asked_for(visit: Visit, make: Maker, shape: tuple[int, int]) -> None:
    scores = make.scores(*shape)
    page = visit.open(make.report(scores, edges=40))
    assert page.inner_text("h1") == "ioi in smollm2"
    assert number(page, "kept") == len(select(scores, 40))
    assert "of 40 requested" in page.inner_text("#kept-note")
    assert ink(page) > 0
    assert not page.is_visible("#message")


def test_same_edges_as_python_for_many_random_settings(visit: Visit, make: Maker) -> None:
    draw = random.Random(0)
    plain = make.scores(6, 5, seed=1)
    plain.values[0] *= 0.05  # few ways in: pruning has much to do
    tied = make.scores(6, 5, seed=2, ties=True)
    other = make.scores(4, 3, seed=3, ties=True, parallel=True)
    for scores, times in ((plain, 6), (tied, 6), (other, 6)):
        page = visit.open(make.report(scores))
        for _ in range(times):
            n = round(math.exp(draw.uniform(0, math.log(scores.graph.n_edges))))  # small ones as often
            how, prune = draw.choice(["top", "greedy", "signed"]), draw.random() < 0.75
            shown = edges_at(page, edges=n, how=how, prune=prune)
            assert shown == select(scores, n, selection=how, prune=prune).edges, (n, how, prune)


def test_cutting_weak_edges_changes_no_circuit_that_can_be_shown(visit: Visit, make: Maker) -> None:
    scores = make.scores(6, 5, seed=1, ties=True)
    page = visit.open(render(make.report(scores, edges=10), limit=300))
    assert f"of {scores.graph.n_edges:,}, that can appear among the first 300" in page.inner_text("#cut")
    assert page.get_attribute("#count", "max") == "300"
    for n in (1, 151, 300):
        for how in ("top", "greedy", "signed"):
            shown = edges_at(page, edges=n, how=how, prune=True)
            assert shown == select(scores, n, selection=how).edges, (n, how)


def test_slider_moves_the_count_the_drawing_and_the_point_on_the_curve(visit: Visit, make: Maker) -> None:
    scores = make.scores(*SMOLLM2)
    page = visit.open(make.report(scores, edges=616))
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


@pytest.mark.parametrize("width", [1440, 1000])
@pytest.mark.parametrize("shape", [(2, 3), SMOLLM2])
def test_clicking_a_node_leaves_the_drawing_as_it_is(
    visit: Visit, make: Maker, shape: tuple[int, int], width: int
) -> None:
    page = visit.open(make.report(make.scores(*shape), edges=100), width=width)
    # The card with what a node does is as long as what it shows.
    page.evaluate("document.getElementById('notes-card').style.minHeight = '2500px'")
    before = page.locator("#canvas").bounding_box(), page.evaluate("gradpath.where('m0')")
    x, y = before[1]
    page.click("#canvas", position={"x": x, "y": y})
    still(page)
    assert page.inner_text("#details-title") == "m0"
    assert page.is_visible("#notes-card")
    page.locator("#clear").scroll_into_view_if_needed()  # all of the column can be reached
    assert page.locator("#clear").bounding_box()["height"] > 0
    page.evaluate("window.scrollTo(0, 0)")
    after = page.locator("#canvas").bounding_box(), page.evaluate("gradpath.where('m0')")
    assert {**after[0], "y": 0} == {**before[0], "y": 0}
    assert after[1] == before[1]


def test_the_curve_of_few_sizes_has_its_interval_and_two_numbers_on_the_axis(visit: Visit, make: Maker) -> None:
    scores = make.scores(*SMOLLM2)
    points = [CurvePoint("top", n, n, 0.6, 0.4, 0.8, 0.4) for n in (1232, 2916)]
    report = replace(make.report(scores), runs=[MethodRun(scores, points)])
    page = visit.open(replace(report, chosen=Chosen(2916, "top", opens=1232, largest_of_curve=True)))
    assert page.locator("#curve .tick.middle").all_text_contents() == ["1.2k", "2.9k"]
    assert page.locator("#curve .interval").count() == 0
    assert "The largest circuit of the curve has 2,916 edges" in page.inner_text("#requested")
    single = replace(report, runs=[MethodRun(scores, points[:1])], chosen=Chosen(1232, "top", opens=100))
    page = visit.open(single)
    ends = [float(page.get_attribute("#curve .interval", name)) for name in ("y1", "y2")]
    assert ends[0] - ends[1] > 20
    assert "The circuit that was found has 1,232 edges" in page.inner_text("#requested")


def test_methods_can_be_switched(visit: Visit, make: Maker) -> None:
    both = make.scores(seed=1), make.scores(seed=2, method="eap")
    page = visit.open(make.report(*both))
    page.get_by_text("EAP", exact=True).first.click()
    assert edges_shown(page) == select(both[1], 50).edges
    assert page.locator("#curve .line:not(.other)").count() == 2


def test_clicking_a_node_fades_all_but_its_edges(visit: Visit, make: Maker) -> None:
    scores = make.scores(6, 5)
    page = visit.open(make.report(scores, edges=300))
    everything = ink(page)
    name = select(scores, 300).edges[0].partition("->")[2].partition("<")[0]
    name = "m5" if name == "logits" else name
    x, y = page.evaluate(f"gradpath.where('{name}')")
    page.click("#canvas", position={"x": x, "y": y})
    assert page.inner_text("#details-title") == name
    assert ink(page) < everything
    listed = page.locator("#details .edges .edgename").all_inner_texts()
    assert listed
    assert all(name in edge for edge in listed)
    page.get_by_text("Its paths").click()
    page.click("#clear")
    assert page.inner_text("#details-title") == "Strongest edges"
    assert ink(page) == everything


def test_pointing_says_name_score_and_rank(visit: Visit, make: Maker) -> None:
    scores = make.scores(6, 5)
    page = visit.open(make.report(scores, edges=30))
    x, y = page.evaluate("gradpath.where('logits')")
    page.hover("#canvas", position={"x": x, "y": y})
    page.wait_for_selector("#tip b")
    assert page.inner_text("#tip b") == "logits"
    circuit = select(scores, 30)
    into = [i for i, edge in enumerate(circuit.edges) if edge.endswith("->logits")]
    told = page.inner_text("#tip span").split(" · ")
    assert float(told[0].split()[1]) == pytest.approx(float(circuit.scores[into].abs().sum()), rel=0.01)
    assert told[1].startswith("rank ")
    assert f"reads {len(into)} edge" in told[2]
    page.hover("#details .edges button >> nth=0")
    page.wait_for_selector("#tip b:has-text('->')")
    edge = page.inner_text("#tip b")
    note = page.inner_text("#tip span").replace("\N{MINUS SIGN}", "-")
    assert float(note.split()[1]) == pytest.approx(scores[edge], rel=0.01)
    assert "rank 1 of 30" in note


def test_search_finds_nodes_and_edges(visit: Visit, make: Maker) -> None:
    scores = make.scores(6, 5)
    page = visit.open(make.report(scores, edges=300))
    page.fill("#search", "a5.h1")
    page.keyboard.press("Enter")
    assert page.inner_text("#details-title") == "a5.h1"
    edge = select(scores, 300).edges[3]
    page.fill("#search", edge)
    page.keyboard.press("Enter")
    assert page.inner_text("#details .edgename") == edge
    page.fill("#search", "nonsense")
    assert page.inner_text("#found") == "No node or edge of that name"


def test_drawing_can_be_used_by_keyboard(visit: Visit, make: Maker) -> None:
    page = visit.open(make.report(make.scores(6, 5), edges=200))
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
    page.keyboard.press("+")
    assert page.locator("#holder.zoomed").count() == 1
    page.keyboard.press("0")
    page.keyboard.press("Escape")
    assert page.locator("#holder.zoomed").count() == 0
    assert page.inner_text("#details-title") == "Strongest edges"


def test_zoom_and_pan_move_the_picture(visit: Visit, make: Maker) -> None:
    page = visit.open(make.report(make.scores(6, 5), edges=200))
    before = page.evaluate("gradpath.where('input')")
    page.click("#zoom-in")
    page.click("#zoom-in")
    zoomed = page.evaluate("gradpath.where('input')")
    assert zoomed != before
    box = page.locator("#canvas").bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 300)
    page.mouse.down()
    page.mouse.move(box["x"] + 340, box["y"] + 260, steps=4)
    page.mouse.up()
    panned = page.evaluate("gradpath.where('input')")
    assert [round(a - b) for a, b in zip(panned, zoomed, strict=True)] == [40, -40]
    page.click("#zoom-fit")
    assert page.evaluate("gradpath.where('input')") == before


def test_theme_follows_the_system_and_can_be_switched(visit: Visit, make: Maker) -> None:
    report = make.report(make.scores())
    colour = "getComputedStyle(document.body).backgroundColor"
    light, dark = visit.open(report), visit.open(report, theme="dark")
    assert light.evaluate(colour) != dark.evaluate(colour)
    light.click("#theme")
    assert light.evaluate(colour) == dark.evaluate(colour)


def test_downloads_are_the_circuit_that_is_shown(visit: Visit, make: Maker, tmp_path: Path) -> None:
    scores = make.scores(6, 5)
    page = visit.open(make.report(scores, edges=300))
    ask(page, edges=123, how="greedy")
    expected = select(scores, 123, selection="greedy")
    file = saved(page, "#save-json", tmp_path)
    circuit = load_circuit(file)
    assert circuit.edges == expected.edges
    assert circuit.scores.tolist() == expected.scores.tolist()
    assert circuit.record == expected.record
    expected.save(tmp_path / "python.json")
    content = json.loads((tmp_path / "python.json").read_text())
    del content["digest"]  # which the page does not compute: a circuit may be without one
    assert json.loads(file.read_text()) == content
    with saved(page, "#save-csv", tmp_path).open() as file:
        rows = list(csv.DictReader(file))
    assert [row["edge"] for row in rows] == expected.edges
    assert [float(row["score"]) for row in rows] == pytest.approx(expected.scores.tolist())
    drawing = ElementTree.parse(saved(page, "#save-svg", tmp_path))
    paths = list(drawing.iter("{http://www.w3.org/2000/svg}path"))
    assert len(paths) == len(expected)


def test_prompts_with_markup_are_shown_as_text(visit: Visit, make: Maker) -> None:
    evil = " </script><script>alert('x')</script><img src=x onerror=alert(1)>"
    scores = make.scores()
    report = make.report(scores)
    title = "<script>alert('title')</script>"
    page = visit.open(Report(title, evil, evil, report.runs, report.chosen, [make.example(evil)], evil, {"note": evil}))
    assert page.inner_text("h1") == title
    assert page.inner_text("mark >> nth=1") == evil.strip()
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2  # the data and the page's own


def test_evidence_marks_the_tokens_that_differ(visit: Visit, make: Maker) -> None:
    page = visit.open(make.report(make.scores()))
    assert page.locator(".example").count() == 2
    assert page.locator(".example >> nth=0").locator("mark").all_inner_texts() == ["John", "Mary"]
    assert page.inner_text(".example .answer >> nth=0") == "Mary"
    assert "5.50" in page.inner_text(".example >> nth=0")


def test_how_it_was_made_is_told(visit: Visit, make: Maker) -> None:
    page = visit.open(make.report(make.scores()))
    made = page.inner_text("#made")
    for fact in ("smollm2", "ioi", "EAP-GP", "Seed", "7", "41 s"):
        assert fact in made
    assert "gradpath find --model smollm2 --task ioi" in page.inner_text("#blocks")
    assert "@inproceedings{zhang2025eapgp" in page.inner_text("#blocks")


def test_what_is_known_of_the_data_is_told_fact_by_fact(visit: Visit, make: Maker) -> None:
    scores = make.scores()
    data = {"metric": "logit-difference", "seed": 11, "source": "pairs.csv", "n": 9, "kept": 8, "notes": []}
    scores = replace(scores, about={**scores.about, "data": data})
    report = replace(make.report(scores), recipe=None)
    page = visit.open(report)
    told = dict(
        zip(page.locator("#made dt").all_inner_texts(), page.locator("#made dd").all_inner_texts(), strict=True)
    )
    assert told["Metric"] == "logit-difference"
    assert told["Seed"] == "11"
    assert told["Data from"] == "pairs.csv"
    assert told["Pairs"] == "8 of 9 requested"


def test_facts_have_labels_and_dropped_pairs_are_sentences(visit: Visit, make: Maker) -> None:
    scores = make.scores()
    data = {
        "changed": "subject",
        "n": 10,
        "kept": 10,
        "dropped": {"the prompts have different numbers of tokens": {"count": 2, "first": "'The bakers': 7 and 6"}},
        "notes": ["113 of 114 verbs count"],
    }
    about = {**scores.about, "data": data, "batch_size": 7, "d_model": 576, "cpu_seconds": 4.513}
    about |= {"key": {"kind": "scores", "tokens": "ce12"}, "plugins": {"mine.py": "b5e2"}, "own_fact": {"a_b": [1, 2]}}
    page = visit.open(replace(make.report(replace(scores, about=about)), about={"python": "3.11.7"}))
    labels, values = (page.locator(f"#made {part}").all_inner_texts() for part in ("dt", "dd"))
    told = dict(zip(labels, values, strict=True))
    assert told["Pairs"] == (
        "2 pairs dropped because the prompts have different numbers of tokens, such as 'The bakers': 7 and 6. "
        "113 of 114 verbs count."
    )
    assert {name: told[name] for name in ("Batch size", "Model width", "CPU time", "Python")} == {
        "Batch size": "7",
        "Model width": "576",
        "CPU time": "4.5 s",
        "Python": "3.11.7",
    }
    assert told["Changed words"] == "subject"
    assert told["Plug-ins"] == "mine.py"
    assert told["Own fact"] == "a b: 1, 2"
    assert not any(character in text for text in [*labels, *values] for character in "{}_")
    assert "ce12" not in page.inner_text("#made")
    assert all(label[0].isupper() or label == "gradpath" for label in labels)


def test_circuit_file_alone_gives_a_page_of_its_own_edges(visit: Visit, make: Maker, tmp_path: Path) -> None:
    circuit = select(make.scores(6, 5), 200, selection="greedy")
    page = visit.open(circuit_report(circuit))
    assert edges_shown(page) == circuit.edges
    assert not page.is_visible("#curve-card")
    assert page.locator(".tile:visible h2").all_inner_texts() == ["Edges kept", "Nodes"]
    assert not page.is_visible("#evidence-card")
    assert page.get_attribute("#count", "max") == str(len(circuit))
    again = load_circuit(saved(page, "#save-json", tmp_path))
    assert again.edges == circuit.edges
    assert again.record == circuit.record


def test_circuit_selected_elsewhere_is_shown_as_found(visit: Visit, make: Maker) -> None:
    scores = make.scores(6, 5)
    found = select(scores, 100, selection="greedy", prune=False)
    report = make.report(scores, edges=100, how="saved", pruned=False)
    report = Report("t", "m", "t", [MethodRun(scores, circuit=found)], report.chosen)
    page = visit.open(report)
    assert edges_shown(page) == found.edges
    ask(page, how="top")
    assert edges_shown(page) == select(scores, 100, prune=False).edges


def test_circuit_selected_elsewhere_has_the_points_of_its_own_way(visit: Visit, make: Maker) -> None:
    scores = make.scores(6, 5)
    circuit = select(scores, 100)
    found = replace(circuit, recipe=circuit.recipe.selected("learned"), n_requested=120)
    curve = [CurvePoint("learned", 120, len(found), 0.93, 0.9, 0.97, 0.2)]
    runs = [MethodRun(scores, [*make.curve(scores.graph.n_edges), *curve], circuit=found)]
    page = visit.open(Report("t", "m", "t", runs, Chosen(len(found), "saved")))
    assert page.locator("#hows span").all_inner_texts() == ["Learned", "Top", "Greedy", "Signed"]
    assert page.inner_text("#faithfulness") == "93%"
    assert "of 120 requested" in page.inner_text("#kept-note")
    ask(page, edges=len(found) - 5)
    assert page.inner_text("#faithfulness-note") == "not measured here"


def nested_report(make: Maker, *, edges: int, opens: int) -> tuple[Report, list[str]]:
    """A report whose selection the page cannot compute, and the order of its edges."""
    scores = make.scores(6, 5)
    largest = select(scores, 400, selection="random+seed=7", prune=False)
    curve = [
        CurvePoint("random+seed=7", n, n - 1, n / 400, n / 400 - 0.1, n / 400 + 0.1, 0.2) for n in (40, 100, 200, 400)
    ]
    run = MethodRun(scores, [*curve, CurvePoint("top", 100, 90, 0.1, 0.0, 0.2, 0.9)], circuit=largest, smallest=30)
    return Report("t", "m", "t", [run], Chosen(edges, "saved", opens=opens)), largest.edges


def test_nested_selection_has_a_circuit_for_every_size(visit: Visit, make: Maker, tmp_path: Path) -> None:
    report, _ = nested_report(make, edges=200, opens=100)
    page = visit.open(report)
    scores = report.runs[0].scores
    for n in (100, 37, 311, 400):
        ask(page, edges=n)
        circuit = select(scores, n, selection="random+seed=7")
        assert edges_shown(page) == circuit.edges
        assert load_circuit(saved(page, "#save-json", tmp_path)).record == circuit.record
    ask(page, edges=12)  # below the smallest: nothing happens
    assert page.input_value("#count") == "400"
    ask(page, edges=150)
    assert page.inner_text("#faithfulness-note") == "between 25% at 100 and 50% at 200 edges"


def test_page_opens_on_a_small_circuit_and_offers_the_requested_one(visit: Visit, make: Maker) -> None:
    report, _ = nested_report(make, edges=200, opens=100)
    page = visit.open(report)
    assert page.input_value("#count") == "100"
    assert page.inner_text("#faithfulness") == "25%"
    assert "has 199 edges and keeps 50% of the behaviour" in page.inner_text("#requested")
    page.click("#show-requested")
    assert page.input_value("#count") == "200"
    assert not page.is_visible("#requested")


def test_click_on_a_point_of_the_curve_goes_there(visit: Visit, make: Maker) -> None:
    report, _ = nested_report(make, edges=200, opens=100)
    page = visit.open(report)
    assert page.locator(".key span").all_inner_texts() == ["random+seed=7", "top"]
    page.locator("#curve .front circle >> nth=3").click()
    assert page.input_value("#count") == "400"
    assert page.inner_text("#faithfulness") == "100%"
    page.locator("#curve .other circle").click()
    assert page.locator("#hows input:checked").get_attribute("value") == "top"
    assert page.input_value("#count") == "100"
    assert page.inner_text("#faithfulness") == "10%"


def test_empty_circuit_says_so(visit: Visit, make: Maker) -> None:
    scores = make.scores()
    circuit = select(scores, 1, prune=False)
    empty = type(circuit)(circuit.graph, circuit.index[:0], circuit.scores[:0])
    page = visit.open(circuit_report(empty))
    assert "This circuit is empty" in page.inner_text("#message")
    assert page.input_value("#count") == "0"
    assert number(page, "kept") == 0


def test_when_pruning_leaves_nothing_the_first_way_is_offered(visit: Visit, make: Maker) -> None:
    scores = make.scores(6, 5, seed=4)
    page = visit.open(make.report(scores, edges=1))
    if not page.is_visible("#message"):
        pytest.fail("this seed should prune the first edge away")
    page.click("#go")
    first = int(page.input_value("#count"))
    assert len(select(scores, first)) > 0
    assert len(select(scores, first - 1)) == 0


def test_one_edge_circuit_is_drawn(visit: Visit, make: Maker) -> None:
    scores = make.scores()
    one = select(scores, 1, prune=False)
    one = type(one)(one.graph, one.index, one.scores)
    straight = type(one)(one.graph, one.index.new_tensor([[0, one.graph.logits]]), one.scores)
    page = visit.open(circuit_report(straight))
    assert edges_shown(page) == ["input->logits"]
    assert page.is_disabled("#slider")


def test_page_cut_in_half_says_so(visit: Visit, make: Maker) -> None:
    text = render(make.report(make.scores()))
    page = visit.open(text[: len(text) // 2])
    page.wait_for_selector("#incomplete", state="visible")  # after a moment, lest it flashes on whole pages
    assert "not complete" in page.inner_text("#incomplete")
    assert not page.is_visible("main")


def test_nothing_is_wider_than_the_screen(visit: Visit, make: Maker) -> None:
    text = render(make.report(make.scores(6, 15), make.scores(6, 15, method="eap")))
    for width in (390, 1440):
        page = visit.open(text, width=width)
        assert page.evaluate("document.documentElement.scrollWidth") == width


# Counts the edges that are drawn.
COUNTING = """{ const pen = CanvasRenderingContext2D.prototype, draw = pen.bezierCurveTo;
  pen.bezierCurveTo = function (...given) { window.curves++; return draw.apply(this, given); }; }
  window.curves = 0;"""


def test_a_page_of_many_edges_is_drawn_once_and_has_few_elements(visit: Visit, make: Maker) -> None:
    """What makes it load quickly, in counts; ``make bench-page`` has the times."""
    page = visit.open(make.report(make.scores(*SMOLLM2), edges=3_000), script=COUNTING)
    still(page)
    assert page.evaluate("curves") == number(page, "kept") > 2_700
    assert page.evaluate("document.querySelectorAll('*').length") < 1_000


@pytest.mark.parametrize("edges", [3_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_a_moving_slider_draws_the_strongest_edges_and_all_when_it_stops(visit: Visit, make: Maker, edges: int) -> None:
    """What makes it answer at once, in counts; ``make bench-page`` has the times."""
    page = visit.open(make.report(make.scores(*SMOLLM2), edges=edges))
    assert number(page, "kept") > 0.9 * edges
    still(page)
    page.evaluate(COUNTING)
    moved = """() => new Promise((done) => { const slider = document.getElementById("slider");
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


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_the_verdict_is_above_the_circuit(visit: Visit, make: Maker, width: int, theme: str) -> None:
    effects = Effects(["input->m0", "m0->logits"], [0.1, 0.9], [0.2, 0.8], 0.05, "input->logits", 40)
    report = replace(make.report(make.scores()), checks=CHECKS, effects=effects)
    page = visit.open(report, width=width, theme=theme)
    assert "no other edge changes it by more than 0.050" in page.inner_text("#effects")
    assert page.locator("#effects circle").count() == 2
    assert page.inner_text("#verdict-said") == "Fails equivalence; passes sufficiency"
    assert page.locator(".testrow .sign").all_inner_texts() == ["passed", "failed", "not run", "no test"]
    assert "0.21" in page.inner_text("#check-sufficiency")
    assert "1.00" in page.inner_text("#check-sufficiency")
    figures = {name: page.locator(f"#check-{name} .figure").all_inner_texts() for name in CHECKS}
    assert figures["sufficiency"] == ["result\n0.21", "by chance\n1.00", "to pass\n≥ 0.5, p ≤ 0.05"]
    dash, minus = "\N{EN DASH}", "\N{MINUS SIGN}"
    assert figures["equivalence"] == [f"result\n{minus}0.30", f"by chance\n{dash}", "to pass\nwithin ±0.2"]
    assert figures["stability"] == [f"result\n{dash}", f"by chance\n{dash}", f"to pass\n{dash}"]
    assert "<b>the examples</b>" in page.inner_text("#check-stability")
    assert "necessity, minimality, transfer" in page.inner_text("#verdict-note")
    top = {name: page.locator(name).bounding_box()["y"] for name in ("#verdict-card", "#circuit")}
    assert top["#verdict-card"] < top["#circuit"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_verdict_names_the_circuit_that_it_judges(visit: Visit, make: Maker) -> None:
    scores = make.scores(6, 5)
    points = [CurvePoint("top", n, n - 7, 0.6, 0.5, 0.7, 0.4) for n in (100, 400)]
    report = replace(make.report(scores), runs=[MethodRun(scores, points)], checks=CHECKS)
    page = visit.open(replace(report, chosen=Chosen(400, "top", opens=100)))
    assert page.inner_text("#verdict-title") == "Should the circuit of 393 edges be believed?"
    assert page.is_visible("#verdict-of")
    page.click("#show-requested")
    assert page.inner_text("#verdict-title") == "Should the circuit of 393 edges be believed?"
    assert not page.is_visible("#verdict-of")


def test_a_page_without_tests_has_no_verdict(visit: Visit, make: Maker) -> None:
    page = visit.open(make.report(make.scores()))
    assert not page.is_visible("#verdict-card")
    assert not page.is_visible("#no-inside")
    assert page.locator("#curve .random").count() == 0


def test_random_circuits_are_a_grey_band(visit: Visit, make: Maker) -> None:
    scores = make.scores()
    report = make.report(scores)
    points = [CurvePoint("random", n, n // 2, x, x, x, 1 - x) for n in (20, 40) for x in (0.0, 0.1, 0.2)]
    page = visit.open(replace(report, runs=[MethodRun(scores, [*report.runs[0].curve, *points])], inside="no gradient"))
    corners = [
        tuple(map(float, corner.split(","))) for corner in page.get_attribute("#curve .random", "points").split()
    ]
    assert len(corners) == 4
    assert len({x for x, _ in corners}) == 2
    assert corners[0][1] < corners[-1][1]  # the best of them above the worst
    assert "3 of each of 2 sizes" in page.inner_text("#curve-note")
    assert "random circuits" in page.inner_text("#curve .key")
    assert "no gradient" in page.inner_text("#no-inside")


def test_areas_of_mib_are_told_for_the_selection_that_was_measured(visit: Visit, make: Maker) -> None:
    scores = make.scores(3, 4)
    areas = {"signed": Areas((0.5,) * 9 + (1.0,), 0.75, (0.7, 0.8), 0.25, (0.2, 0.3))}
    report = make.report(scores)
    page = visit.open(replace(report, runs=[replace(run, areas=areas) for run in report.runs]))
    assert not page.is_visible("#areas")
    ask(page, edges=20, how="signed")
    assert "CPR 0.750 (0.70 to 0.80), CMD 0.250 (0.20 to 0.30)" in page.inner_text("#areas")
