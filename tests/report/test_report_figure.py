"""The figure of a circuit: boxes, sums of edges, places, notes; plots of scores and results; ``show``."""

from __future__ import annotations

import html
import itertools
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
import torch
from making import SMOLLM2, Maker

from gradpath.circuit import Circuit, circuit_by_names
from gradpath.errors import GradpathError, InputError, UsageError
from gradpath.evaluation.result import Result
from gradpath.graph import Graph
from gradpath.recipe import Recipe
from gradpath.report import show
from gradpath.report.figure import MOST, circuit_figure, fold, layout, plot_circuit, plot_result, plot_scores, route
from gradpath.report.page import first_edges
from gradpath.report.style import INK, MUTED, panels, save_as
from gradpath.selection import select
from gradpath.study.faithfulness import draw_curves

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
PAIR = {node: {"group": "the pair"} for node in ("a1.h0", "a1.h2")}
LOOPED = {node: {"group": "loop"} for node in ("a0.h1", "a3.h0", "m3")}  # one of them reads what reads another


def circuit(**notes: dict[str, str]) -> Circuit:
    return replace(circuit_by_names(GRAPH, EDGES), recipe=Recipe(model="m", task="t"), notes=notes)


def test_a_group_is_one_box_with_its_edges_summed() -> None:
    boxes, edges = fold(circuit(**PAIR))
    assert set(boxes) == {"input", "m0", "group the pair", "a2.h1", "m3", "logits"}
    assert boxes["group the pair"].lines == ("a1.h0 a1.h2",)
    assert edges["m0", "group the pair", "q"] == pytest.approx(1.5)
    assert edges["group the pair", "a2.h1", "k"] == pytest.approx(1.75)
    assert sum(edges.values()) == pytest.approx(sum(score for _, score in EDGES))


def test_groups_have_colours_unless_their_nodes_do() -> None:
    notes = {"m3": {"group": "a"}, "m0": {"group": "b", "colour": "#123456"}, "a2.h1": {"group": "c"}}
    boxes, _ = fold(circuit(**notes))
    assert [boxes[f"group {name}"].colour for name in "abc"] == ["#56b4e9", "#123456", "#009e73"]
    assert boxes["a1.h0"].colour == ""


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


@pytest.mark.parametrize("notes", [{}, PAIR, LOOPED], ids=["plain", "group", "loop"])
def test_no_box_covers_another_and_no_edge_is_behind_a_box_that_it_does_not_touch(
    notes: dict[str, dict[str, str]],
) -> None:
    scores = Maker().scores(4, 3, seed=3)
    for shown in (circuit(), select(scores, 40), select(scores, 120)):
        plan = layout(*fold(replace(shown, notes=notes)))
        corners = {name: (*plan.place(name), box.width / 2, box.height / 2) for name, box in plan.boxes.items()}
        for a, b in itertools.combinations(corners, 2):
            (x, y, w, h), (u, v, w2, h2) = corners[a], corners[b]
            assert abs(x - u) >= w + w2 or abs(y - v) >= h + h2, (a, b)
        for edge in plan.edges:
            if not notes:
                assert plan.place(edge[0])[1] < plan.place(edge[1])[1]
            points = bezier(route(plan, edge))
            for name in corners.keys() - set(edge[:2]):
                x, y, w, h = corners[name]
                assert not any(abs(px - x) < w and abs(py - y) < h for px, py in points), (edge, name)


def test_two_chains_do_not_cross() -> None:
    chains = [("input->a0.h0<q>", 1.0), ("input->a0.h2<q>", 1.0), ("a0.h0->a1.h2<q>", 1.0), ("a0.h2->a1.h0<q>", 1.0)]
    chains += [("a1.h2->logits", 1.0), ("a1.h0->logits", 1.0)]
    x = layout(*fold(circuit_by_names(GRAPH, chains))).x
    assert (x["a0.h0"] < x["a0.h2"]) == (x["a1.h2"] < x["a1.h0"])


def test_show_draws_notes_as_text_and_the_same_every_time(tmp_path: Path) -> None:
    circuit(**PAIR, **{"a2.h1": {"name": "mover"}}).save(tmp_path / "circuit.json")
    for name in ("a.svg", "b.svg", "a.pdf", "b.pdf"):
        show(tmp_path / "circuit.json", tmp_path / name)
    tree = ElementTree.parse(tmp_path / "a.svg")
    texts = [element.text for element in tree.iter() if element.tag.endswith("}text")]
    assert {"the pair", "a1.h0 a1.h2", "mover", "query"} <= set(texts)
    for suffix in (".svg", ".pdf"):
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_the_first_edges_are_those_that_lead_somewhere() -> None:
    part = first_edges(circuit(m3={"name": "x"}), 9)
    assert set(part.edges) == {edge for edge, _ in EDGES[:9]} - {"a1.h0->m3", "a2.h1->m3"}
    assert part.notes == {}
    with pytest.raises(GradpathError, match="do not lead from input to logits"):
        first_edges(circuit(), 2)
    with pytest.raises(GradpathError, match="has 10 edges"):
        first_edges(circuit(), 11)


def test_a_large_circuit_is_drawn_by_its_strongest_edges() -> None:
    large = select(Maker().scores(*SMOLLM2), 1000)
    _, edges = fold(large)
    assert len(edges) == MOST
    assert min(map(abs, edges.values())) == large.scores.abs().sort(descending=True).values[MOST - 1]


def test_circuits_without_edges_or_with_scores_that_are_no_numbers_are_not_drawn(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no edges to draw"):
        fold(circuit() - circuit())
    with pytest.raises(InputError, match="is not a finite number"):
        fold(replace(circuit(), scores=torch.full((len(EDGES),), torch.nan)))
    save_as(circuit_figure(replace(circuit(), scores=torch.zeros(len(EDGES))), title="no scores"), tmp_path / "0.svg")
    assert "no scores" in (tmp_path / "0.svg").read_text()


SIGNATURES = {
    ".html": b"<!doctype html>",
    ".svg": b"<?xml",
    ".png": b"\x89PNG",
    ".pdf": b"%PDF",
    ".dot": b"digraph",
    ".graphml": b"<?xml",
}


@pytest.mark.parametrize("suffix", SIGNATURES)
def test_show_writes_what_the_suffix_says(tmp_path: Path, suffix: str) -> None:
    file, out = (
        tmp_path / "circuit.json",
        tmp_path / "made" / f"circuit{suffix.upper() if suffix == '.png' else suffix}",
    )
    for edges in (EDGES, EDGES[:1]):
        circuit_by_names(GRAPH, edges).save(file)
        show(file, out)
        assert out.read_bytes().startswith(SIGNATURES[suffix])
    with pytest.raises(UsageError, match=r"ends in \.html, \.svg, \.png, \.pdf, \.dot, \.graphml\.$"):
        show(file, tmp_path / "circuit.docx")


@pytest.fixture
def result() -> Result:
    clean = torch.tensor([4.0, 5.0, 6.0])
    return Result(clean, torch.zeros(3), clean * 0.8, edges_requested=100, edges_kept=90)


def test_result_plot_shows_every_example_and_the_share(result: Result) -> None:
    ax = plot_result(result)
    assert "80% of the behaviour" in ax.get_title(loc="left")
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["corrupted", "circuit", "model"]
    assert sum(len(dots.get_offsets()) for dots in ax.collections) == 9


def test_scores_plot_has_a_cell_for_every_node_that_writes_and_refuses_what_is_no_number(make: Maker) -> None:
    scores = make.scores(3, 4)
    array = plot_scores(scores).images[0].get_array()
    assert array is not None
    assert array.shape == (3, 5)
    with pytest.raises(InputError, match="not finite"):
        plot_scores(replace(scores, values=scores.values * torch.nan))


def test_plots_draw_into_the_axes_they_are_given(make: Maker, result: Result) -> None:
    import matplotlib.pyplot as plt

    _, (a, b, c) = plt.subplots(1, 3)
    scores = make.scores()
    circuit = select(scores, 30)
    assert plot_result(result, a) is a
    assert plot_scores(scores, b) is b
    assert plot_circuit(circuit, c) is c
    assert {edge.partition("->")[0] for edge in circuit.edges} <= {text.get_text() for text in c.texts}
    a.get_figure().canvas.draw()


def test_new_axes_are_in_the_style_of_all_figures(make: Maker, result: Result) -> None:
    before = dict(mpl.rcParams)
    for ax in (plot_result(result), plot_scores(make.scores())):
        assert mpl.colors.to_hex(ax.spines["left"].get_edgecolor()) == MUTED
        assert not ax.spines["top"].get_visible()
        assert ax.yaxis.label.get_color() == INK
        assert not any(line.get_visible() for line in ax.get_xgridlines())
    assert dict(mpl.rcParams) == before


def test_notebooks_show_what_is_printed(make: Maker, result: Result) -> None:
    evil = replace(make.scores(), recipe=Recipe(task="<script>alert(1)</script>"))
    for shown in (result, evil, select(evil, 30), select(evil, 30) - select(evil, 30)):
        assert shown._repr_html_() == f"<pre>{html.escape(str(shown), quote=True)}</pre>"


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_names_are_not_taken_for_formulas(tmp_path: Path, suffix: str) -> None:
    figure, (axes,) = panels(1, 1, (3, 2))
    axes.set_title("costs $5 and $\\frac")
    axes.set_xticks([0, 1], ["$", "\\frac$x$"])
    save_as(figure, tmp_path / f"figure.{suffix}")
    assert suffix != "svg" or "$\\frac" in (tmp_path / "figure.svg").read_text()


@pytest.mark.parametrize("sparsities", [[0.99], [0.999, 0.9], [0.0, 1.0]])
def test_the_axis_of_sparsity_ends_at_100_and_a_single_size_has_its_interval(sparsities: list[float]) -> None:
    numbers = {"faithfulness": 0.6, "faithfulness_low": 0.4, "faithfulness_high": 0.8}
    common = {"task": "ioi", "method": "eap", "selection": "top", "examples": 9, **numbers}
    rows = [{**common, "sparsity": sparsity} for sparsity in sparsities]
    [ax] = draw_curves(rows, "smollm2", log=False).axes
    left, right = ax.get_xlim()
    assert 0 <= right < left <= 100
    assert all(right <= 100 * sparsity <= left for sparsity in sparsities)
    intervals = [line for line in ax.lines if line.get_marker() == "_"]
    assert [sorted(map(round, line.get_ydata())) for line in intervals] == [[40, 80]] * (len(rows) == 1)
