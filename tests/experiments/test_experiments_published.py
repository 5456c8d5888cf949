"""The paper's figures: all of them are there, and they stand beside the paper's models only."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gradpath.model.transformer import Transformer
from gradpath.paper.published import _data, published
from gradpath.tasks import TASKS


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
        assert set(model["faithfulness"]) == set(TASKS)
        for table in model["faithfulness"].values():
            assert 5 <= len(table) <= 7
            assert all(set(row) == {"eap", "eap-ig", "eap-gp"} for row in table.values())


def test_some_figures_are_the_papers(tiny):
    small = published(shaped_like(tiny, 12, 12, 768))
    assert small.faithfulness("ioi", 0.975, "eap-gp") == 0.8008
    assert small.faithfulness("ioi", 0.999, "eap-gp") is None
    assert small.faithfulness("capital-country", 0.993, "eap") == -0.0037
    assert small.runtime("greater-than", "eap-gp") == {"faithfulness": 0.998, "seconds": 210.7}
    assert published(shaped_like(tiny, 48, 25, 1600)).faithfulness("gender-bias", 0.98, "eap-gp") == 1.0
