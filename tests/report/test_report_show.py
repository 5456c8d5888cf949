"""Drawings and graph files of a saved circuit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from making import SMOLLM2, Maker

from gradpath.circuit import Circuit
from gradpath.errors import UsageError
from gradpath.report import show
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
