"""Drawings and graph files of a saved circuit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from covering import covering
from making import SMOLLM2, Maker

from gradpath.circuit import Circuit
from gradpath.errors import InputError, UsageError
from gradpath.report import show
from gradpath.report.plots import draw, draw_on, inches
from gradpath.selection import select

SIGNATURES = {
    ".html": b"<!doctype html>",
    ".svg": b"<?xml",
    ".png": b"\x89PNG",
    ".pdf": b"%PDF",
    ".dot": b"digraph",
    ".graphml": b"<?xml",
}


@pytest.fixture(scope="module")
def circuit() -> Circuit:
    return select(Maker().scores(*SMOLLM2), 100)


@pytest.fixture
def file(circuit: Circuit, tmp_path: Path) -> Path:
    circuit.save(tmp_path / "circuit.json")
    return tmp_path / "circuit.json"


@pytest.mark.parametrize("suffix", SIGNATURES)
def test_show_writes_what_the_suffix_says(circuit: Circuit, file: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / "made" / f"circuit{suffix.upper() if suffix == '.png' else suffix}"
    show(file, out)
    assert out.read_bytes().startswith(SIGNATURES[suffix])
    replace(circuit, index=circuit.index[:1], scores=circuit.scores[:1]).save(file)
    show(file, out)  # of one edge, too
    assert out.read_bytes().startswith(SIGNATURES[suffix])


@pytest.mark.parametrize("name", ["circuit.docx", "circuit"])
def test_unknown_suffix_is_refused_in_one_sentence(file: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"ends in \.html, \.svg, \.png, \.pdf, \.dot, \.graphml\.$"):
        show(file, tmp_path / name)


def test_circuit_files_that_cannot_be_used_are_refused(file: Path, tmp_path: Path) -> None:
    text = file.read_text()
    file.write_text(text[: len(text) // 2])
    with pytest.raises(InputError, match="cut off"):
        show(file, tmp_path / "circuit.html")
    lines = text.splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if "->" in line)
    lines[at] = lines[at].rpartition(",")[0].rpartition(",")[0] + ", NaN],\n"
    file.write_text("".join(lines))
    with pytest.raises(InputError, match="finite number"):
        show(file, tmp_path / "circuit.html")
    with pytest.raises(InputError, match="there is no file"):
        show(tmp_path / "none.json", tmp_path / "circuit.html")
    assert not (tmp_path / "circuit.html").exists()


def test_empty_circuit_is_refused_as_a_drawing(circuit: Circuit, tmp_path: Path) -> None:
    empty = replace(circuit, index=circuit.index[:0], scores=circuit.scores[:0])
    empty.save(tmp_path / "empty.json")
    with pytest.raises(InputError, match="this circuit is empty"):
        show(tmp_path / "empty.json", tmp_path / "empty.pdf")


def test_circuit_of_zero_scores_is_drawn(circuit: Circuit, tmp_path: Path) -> None:
    draw(replace(circuit, scores=torch.zeros(len(circuit))), tmp_path / "zero.svg")


def test_drawing_keeps_text_as_text_and_is_the_same_every_time(circuit: Circuit, tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg", "a.pdf", "b.pdf"):
        draw(circuit, tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    head = circuit.edges[0].partition("->")[2].partition("<")[0]
    assert f">{head}</text>" in text
    assert ">query</text>" in text
    assert text == (tmp_path / "b.svg").read_text()
    assert (tmp_path / "a.pdf").read_bytes() == (tmp_path / "b.pdf").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "n"), covering([(2, 2), (48, 25), SMOLLM2, (12, 12)], [100, 1000], quick=[(2, 2), SMOLLM2])
)
def test_labels_do_not_overlap(make: Maker, shape: tuple[int, int], n: int) -> None:
    from matplotlib.figure import Figure

    scores = make.scores(*shape)
    circuit = select(scores, min(n, scores.graph.n_edges), prune=False)
    figure = Figure(figsize=inches(circuit.graph))
    axes = figure.add_axes((0, 0, 1, 1))
    draw_on(circuit, axes)
    figure.draw_without_rendering()
    legend = axes.get_legend()
    assert legend is not None
    boxes = [text.get_window_extent() for text in [*axes.texts, *legend.get_texts()]]
    assert len(boxes) > 10
    corners = torch.tensor([box.extents.tolist() for box in boxes])  # (label, x0 y0 x1 y1)
    low, high = corners[:, None, :2], corners[None, :, 2:]
    before = (low < high).all(-1)  # (label, label): a starts before b ends, both ways
    assert (before & before.T).sum() == len(boxes)  # each overlaps itself alone
    page = figure.bbox
    assert all(page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 for box in boxes)
