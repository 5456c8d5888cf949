"""The numbers of the README, the front page and the guide are those of the stored run of their examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
STORED = json.loads((ROOT / "docs" / "results" / "examples.json").read_text())
GREATER, IOI = STORED["greater-than"], STORED["ioi"]


def signed(value: float) -> str:
    """As in the guide: a minus sign, not a hyphen."""
    return f"{value:+.2f}".replace("-", "\N{MINUS SIGN}")


def interval(low: float, high: float) -> str:
    return f"{low:.0%} to {high:.0%}"


def block(found: dict[str, Any]) -> list[str]:
    """The lines of ``find`` that print these numbers."""
    low, high = found["faithfulness_interval"]
    return [
        f"{found['edges']} after pruning, {found['requested']} requested, 123,211 in the model",
        f"clean {found['clean']:.3f}, corrupted {found['corrupted']:.3f}, circuit {found['metric']:.3f}",
        f"{found['faithfulness']:.1%}  (95% interval {low:.1%} to {high:.1%})",
    ]


README = [
    f"{GREATER['edges']} of 123,211 edges: faithfulness {GREATER['faithfulness']:.1%}",
    f"{interval(*GREATER['faithfulness_interval'])}, error per example {GREATER['error']:.2f}",
    f"keeps {GREATER['top'][0]:.1%}",
    f"{GREATER['core']} of the {GREATER['edges']} edges",
    f"keeps {IOI['mean'][0]:.1%} instead of {IOI['faithfulness']:.1%}",
    f"IOI circuit, {IOI['edges']} edges, keeping {IOI['faithfulness']:.1%}",
]
FRONT = [*block(IOI), f"faithfulness {GREATER['larger'][0]:.1%}", f"{IOI['core']} of them are in the circuit of every"]
GUIDE = [
    *block(IOI),
    f"{IOI['mean'][0]:.1%} (95% interval {IOI['mean'][1]:.1%} to {IOI['mean'][2]:.1%})",
    *(f"| {head} | {signed(IOI['effects'][head][0])} |" for head in ("a20.h0", "a23.h3", "a17.h4", "a24.h4")),
]


PAGES = {"README.md": README, "docs/index.md": FRONT, "docs/guide.md": GUIDE}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_the_numbers_of_the_stored_run(page):
    text = " ".join((ROOT / page).read_text().split())
    missing = [expected for expected in PAGES[page] if " ".join(expected.split()) not in text]
    assert not missing, f"{page} differs from docs/results/examples.json: run benchmarks/examples.py"
