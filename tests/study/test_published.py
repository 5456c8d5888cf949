"""The paper's figures: all of them are there, and they stand beside the paper's models only."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from gradpath.defaults import PAPER_GP
from gradpath.model.transformer import Transformer
from gradpath.paper import Published, _data, published
from gradpath.tasks.builtin import PAPER_TASKS

PAPER = Published("gpt2", {}, "somewhere")


def shaped_like(tiny: Transformer, layers: int, heads: int, d_model: int, vocab: int = 50257) -> Transformer:
    """A model that says it has this shape; its weights are one number wide, as nothing reads them."""
    arch = replace(tiny.arch, n_layers=layers, n_heads=heads, d_model=d_model)
    words, gain = torch.zeros(1, 1).expand(vocab, 1), torch.ones(1)
    return replace(
        tiny, arch=arch, embedding=words, unembedding=words, final_gain=gain, final_shift=None, positions=None
    )


@pytest.mark.parametrize(
    ("shape", "name"), [((12, 12, 768), "gpt2"), ((24, 16, 1024), "gpt2-medium"), ((48, 25, 1600), "gpt2-xl")]
)
def test_the_papers_models_are_known_by_their_shape(tiny, shape, name):
    found = published(shaped_like(tiny, *shape))
    assert found.name == name
    assert shaped_like(tiny, *shape).graph.n_edges == found.tables["edges"]


def test_other_models_have_no_figures_beside_them(tiny):
    assert published(tiny) is None
    assert published(shaped_like(tiny, 12, 12, 768, vocab=100)) is None
    assert published(shaped_like(tiny, 6, 12, 768)) is None


def test_the_tables_are_complete():
    for model in _data()["models"].values():
        assert set(model["faithfulness"]) == set(PAPER_TASKS)
        for numbers in (*model.get("baselines", {}).values(),):
            assert numbers["corrupted"] < numbers["clean"]
        for table in model["faithfulness"].values():
            assert 5 <= len(table) <= 7
            assert all(set(row) == {"eap", "eap-ig", "eap-gp"} for row in table.values())


def test_some_figures_are_the_papers(tiny):
    small = published(shaped_like(tiny, 12, 12, 768))
    assert small.faithfulness("ioi", 0.975, PAPER_GP) == 0.8008
    assert small.faithfulness("ioi", 0.975, "eap-gp") is None  # the paper has literal steps
    assert small.faithfulness("ioi", 0.999, PAPER_GP) is None
    assert small.faithfulness("capital-country", 0.993, "eap") == -0.0037
    assert small.baseline("sva") == {"clean": 0.154, "corrupted": -0.157}
    assert small.runtime("greater-than", PAPER_GP) == {"faithfulness": 0.998, "seconds": 210.7}
    assert published(shaped_like(tiny, 48, 25, 1600)).faithfulness("gender-bias", 0.98, PAPER_GP) == 1.0


def test_the_papers_figures_stand_beside_ours(run, tiny_folder, tmp_path, monkeypatch):
    paper = replace(PAPER, tables={"faithfulness": {"ioi": {"0.5000": {"eap": 0.25}}}})
    monkeypatch.setattr("gradpath.paper.published", lambda model: paper)
    asked = ("--examples", 4, "--methods", "eap,eap-ig", "--selection", "top", "--sparsities", "0.5", "--out", tmp_path)
    ran = run("reproduce", "faithfulness", "--tasks", "ioi", "--model", tiny_folder, *asked, "--json")
    assert ran.code == 0, ran.err
    (result,) = json.loads(ran.out)["experiments"].values()
    eap, other = result["rows"]
    assert (eap["paper"], eap["difference"]) == (0.25, eap["faithfulness"] - 0.25)
    assert "paper" not in other
    assert any(note.startswith("Paper: somewhere") for note in result["notes"])
    (page,) = tmp_path.glob("*.md")
    assert f"; paper 25.0 ({100 * eap['difference']:+.1f})" in page.read_text()
