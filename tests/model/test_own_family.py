"""The worked example of a family of one's own; ``cli/test_plugins.py`` takes it through the commands."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_models import VOCAB, random_hf

from gradpath import registry
from gradpath.errors import InputError
from gradpath.model.families import FAMILIES, convert

ROOT = Path(__file__).parents[2]
FILE = ROOT / "examples" / "nemotron.py"
SMALL = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 40, "vocab_size": VOCAB, "head_dim": 8}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.fixture
def _example(monkeypatch):
    """The family of the example, for one test."""
    len(FAMILIES)  # the built-in entries are loaded
    monkeypatch.setattr(FAMILIES, "_entries", dict(FAMILIES._entries))
    monkeypatch.setattr(registry, "_FILES", {})
    registry.load_plugin(FILE)


def tiny(**settings):
    return random_hf("NemotronForCausalLM", SMALL, settings)


@pytest.mark.parametrize("settings", [{}, {"attention_bias": True, "mlp_bias": True}])
@pytest.mark.usefixtures("_example")
def test_its_logits_are_those_of_transformers(settings):
    original = tiny(**settings)
    ids = torch.randint(3, VOCAB, (2, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.allclose(convert(original).logits(ids), original(ids).logits, atol=1e-4)


def test_the_documents_show_the_file_as_it_is():
    text = (ROOT / "docs" / "own-family.md").read_text()
    assert f'```python title="{FILE.name}"\n{FILE.read_text()}```' in text
    assert len(FILE.read_text().splitlines()) < 50


def test_without_it_the_refusal_points_to_the_guide():
    with pytest.raises(
        InputError, match=r"'nemotron' are not supported: .* --plugin FILE\.py \(see 'Your own model family'"
    ):
        convert(tiny())
    assert (ROOT / "docs" / "own-family.md").is_file()
