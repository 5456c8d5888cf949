"""A circuit as hooks of TransformerLens gives the metric that evaluation gives."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from lens_models import hooked
from random_circuits import random_mask
from small_models import Numbers, prompts

from gradpath.circuit import Circuit
from gradpath.errors import InputError
from gradpath.evaluation import evaluate
from gradpath.formats.transformer_lens import circuit_hooks
from gradpath.graph import Graph
from gradpath.model.load import load_model
from gradpath.model.tokenizer import Tokenizer
from gradpath.tasks.task import encode

TASK = prompts([9, 9, 9], [[2], [4, 6], [0]])


def circuit_of(graph: Graph, share: float) -> Circuit:
    mask = random_mask(graph, share)
    return Circuit.from_edges(graph, [graph.edge(u, v) for u, v in mask.nonzero().tolist()])


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("kind", ["gpt2-like", "llama-like", "neox-like", "local"])
def test_hooks_reproduce_the_metric_of_the_circuit(kind, share):
    theirs = hooked(kind, folded=share == 0.3)
    model = replace(load_model(theirs), tokenizer=Tokenizer(Numbers()))
    circuit, pairs = circuit_of(model.graph, share), encode(TASK, model.tokenizer)
    hooks = circuit_hooks(theirs, circuit, pairs.corrupted)
    for _ in range(2):  # they can be used again
        with torch.no_grad():
            logits = theirs.run_with_hooks(pairs.clean, fwd_hooks=hooks)[:, -1]
        metric = TASK.metric(logits, pairs.labels)
    expected = evaluate(model, circuit, TASK)
    assert float(metric.mean()) == pytest.approx(expected.circuit, abs=1e-4)
    assert theirs.hook_dict["hook_embed"].fwd_hooks == []  # nothing is left behind


def test_a_circuit_of_another_model_is_refused():
    theirs = hooked("gpt2-like")
    circuit = circuit_of(Graph(3, 4), 0.5)
    with pytest.raises(InputError, match="3 layers of 4 heads, and this HookedTransformer has 2 of 4"):
        circuit_hooks(theirs, circuit, torch.zeros(1, 3, dtype=torch.long))
