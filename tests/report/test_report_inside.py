"""Examples, attention patterns and writes in the page, in a real browser."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from browsing import Visit, edges_shown, ink, pick, saved
from small_models import prompts, tiny_model

import gradpath as gp
from gradpath.explanation import Inside, look_inside
from gradpath.model.transformer import Transformer
from gradpath.prepared import PreparedBatches
from gradpath.report import Chosen, MethodRun, Report, evidence
from gradpath.report.data import spread_examples

pytestmark = pytest.mark.browser

MODEL = tiny_model("gpt2")
TASK = prompts([5, 7, 7, 6], [[2], [3, 4], [5], [1]])


@pytest.fixture(scope="module")
def looked() -> tuple[Report, Inside]:
    return look(MODEL)


def look(model: Transformer) -> tuple[Report, Inside]:
    scores = gp.attribute(model, TASK, "eap-ig", steps=3)
    circuit = gp.select(scores, n=60, selection="top")
    result = gp.evaluate(model, circuit, TASK)
    prepared = PreparedBatches(model, TASK)
    inside = look_inside(prepared.take(spread_examples(result, 4)), circuit)
    shown = evidence(prepared, result, 4)
    report = Report("a task", "gpt2", "a task", [MethodRun(scores)], Chosen(60, "top"), shown, inside=inside)
    return report, inside


def value(text: str) -> float:
    return float(text.replace("\u2212", "-"))


def test_an_example_colours_the_edges_by_its_own_effects(
    visit: Visit, looked: tuple[Report, Inside], tmp_path: Path
) -> None:
    report, inside = looked
    page = visit.open(report)
    before = edges_shown(page), ink(page)
    page.select_option("#example", "2")
    tokens = page.locator("#example-prompt .token:not(.answered) b").all_inner_texts()
    assert tokens == [token.strip() for token in report.examples[2].clean_tokens]
    changed = page.locator("#example-prompt .changed b").all_inner_texts()
    pairs = zip(report.examples[2].clean_tokens, report.examples[2].corrupted_tokens, strict=True)
    assert changed == [a.strip() for a, b in pairs if a != b]
    effects = dict(zip(inside.circuit.edges, inside.effects[2].tolist(), strict=True))
    strongest = sorted(effects, key=lambda edge: -abs(effects[edge]))[:5]
    rows = page.locator("#details .edges button").all()[:5]
    assert [row.locator(".edgename").inner_text() for row in rows] == strongest
    assert [value(row.locator("b").inner_text()) for row in rows] == pytest.approx(
        [effects[edge] for edge in strongest], rel=0.01
    )
    assert edges_shown(page) == before[0]  # the same circuit, drawn with other strengths
    assert ink(page) != before[1]
    page.click("#example-after")
    assert page.input_value("#example") == "3"
    assert page.is_disabled("#example-after")
    circuit = gp.load_circuit(saved(page, "#save-json", tmp_path))
    assert circuit.scores.tolist() == inside.circuit.scores.tolist()
    page.select_option("#example", "-1")
    assert ink(page) == before[1]


def test_what_the_circuit_does_is_told_and_each_node_is_a_link(visit: Visit, looked: tuple[Report, Inside]) -> None:
    report, inside = looked
    roles = [replace(role, sentence=f"does <b>{role.node}") for role in inside.explanation if role.attends]
    told = replace(inside, explanation=replace(inside.explanation, roles=tuple(roles)))
    page = visit.open(replace(report, inside=told))
    first = [role.node for role in roles][:8]
    assert page.locator("#does a").all_inner_texts() == first
    assert page.locator("#does span").all_inner_texts() == [f"does <b>{node}" for node in first]
    assert [value(text) for text in page.locator("#does b").all_inner_texts()] == pytest.approx(
        [role.effect for role in roles[:8]], rel=0.01
    )
    page.locator("#does a").nth(1).click()
    assert page.inner_text("#details-title") == first[1]
    assert page.inner_text("#inside .sentence") == f"Does <b>{first[1]}."


def test_a_head_shows_its_attention_a_node_what_it_writes_and_an_edge_its_effects(
    visit: Visit, looked: tuple[Report, Inside]
) -> None:
    report, inside = looked
    page = visit.open(report)
    head = next(MODEL.graph.sources[x] for x in inside.heads if MODEL.graph.sources[x].startswith("a2"))
    pick(page, head)
    assert page.inner_text("#inside-title") == f"What {head} does"
    assert "Example 1 of 4" in page.inner_text("#inside")
    page.select_option("#example", "1")
    for run, (label, tokens) in enumerate((("Clean", "clean_tokens"), ("Corrupted", "corrupted_tokens"))):
        page.locator(f"#pattern-run input[value='{run}']").check(force=True)
        prompt = "".join(getattr(report.examples[1], tokens)).strip()
        weights = MODEL.attention(prompt, head)[0]
        n = len(weights)
        box = page.locator(".pattern").bounding_box()
        cell, left, top = (340 - 64) / n, 64, 58
        query, key = n - 1, int(weights[-1].argmax())
        scale = box["width"] / 340
        page.mouse.move(box["x"] + (left + (key + 0.5) * cell) * scale, box["y"] + (top + (query + 0.5) * cell) * scale)
        said = page.inner_text(".attention .said")
        names = [getattr(report.examples[1], tokens)[at].strip() for at in (query, key)]
        assert re.fullmatch(r"“(.*)” \(\d+\) attends to “(.*)” \(\d+\): (.*)", said).groups()[:2] == tuple(names), label
        assert float(said.rsplit(" ", 1)[1]) == pytest.approx(float(weights[query, key]), abs=0.01)
    assert page.locator(".pattern text").count() == 2 * n
    page.select_option("#example", "3")
    pick(page, "m2")
    assert page.locator(".pattern").count() == 0
    row = inside.sources.index(MODEL.graph.source("m2"))
    texts = page.locator("#inside .writes li:not(.named) span").all_inner_texts()
    assert texts[0] == inside.texts[int(inside.tokens[3, row, 0])].strip()
    named = page.locator("#inside .writes .named").all()
    assert [one.locator("span").inner_text() for one in named] == ["right answer", "wrong answer"]
    assert inside.answers is not None
    assert [value(one.locator("b").inner_text()) for one in named] == pytest.approx(
        inside.answers[3, row].tolist(), rel=0.01
    )
    role = inside.explanation["m2"]
    assert value(page.locator("#inside .role dd").first.inner_text()) == pytest.approx(role.effect, rel=0.01)
    page.click("#clear")
    page.locator("#details .edges button").first.click()
    edge = page.inner_text("#details .edgename")
    effects = inside.effects[:, inside.circuit.edges.index(edge)].tolist()
    rows = page.locator("#inside .picks b").all_inner_texts()
    assert [value(row) for row in rows] == pytest.approx(effects, rel=0.01)
    page.locator("#inside .picks button").nth(2).click()
    assert page.input_value("#example") == "2"
    assert "on this example" in page.inner_text("#details")


def test_a_page_without_examples_offers_none(visit: Visit, looked: tuple[Report, Inside]) -> None:
    page = visit.open(replace(looked[0], inside=None, examples=()))
    assert not page.is_visible("#picker")
    pick(page, "m2")
    assert not page.is_visible("#inside-card")
