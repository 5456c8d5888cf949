"""What ``look_inside`` says of single examples: patterns, tokens and effects against their definitions."""

from __future__ import annotations

import pytest
import torch
from small_models import prompts, tiny_model

import gradpath as gp
import gradpath.explanation as explanation
from gradpath.circuit import Circuit
from gradpath.explanation import Inside, look_inside
from gradpath.model.transformer import Transformer
from gradpath.prepared import PreparedBatches
from gradpath.sweep import Limits

TASK = prompts([5, 7, 7, 6], [[2], [3, 4], [6], [1]])


@pytest.fixture(scope="module", params=["corrupted", "zero"])
def looked(request: pytest.FixtureRequest) -> tuple[Circuit, Inside]:
    model = tiny_model("gpt2")
    scores = gp.attribute(model, TASK, "eap-ig", steps=3, ablation=request.param)
    circuit = gp.select(scores, n=60, selection="top")
    return circuit, look_inside(PreparedBatches(model, TASK, request.param, Limits(batch_size=3)), circuit)


def test_patterns_are_those_of_the_model_on_both_prompts(looked):
    circuit, inside = looked
    model = tiny_model("gpt2")
    assert [circuit.graph.sources[source] for source in inside.sources] == [x for x in circuit.nodes if x != "logits"]
    for row, source in enumerate(inside.heads):
        for run, texts in enumerate((TASK.clean, TASK.corrupted)):
            expected = model.attention(texts, model.graph.sources[source])
            for example, length in enumerate((5, 7, 7, 6)):
                query, key = torch.tril_indices(length, length)
                shown = inside.patterns[example][run, row].float() / 255
                assert torch.allclose(shown, expected[example, query, key], atol=0.003)


def test_the_circuit_of_all_edges_attends_as_the_model():
    model = tiny_model("gpt2")
    everything = gp.select(gp.attribute(model, TASK, "eap"), n=model.graph.n_edges, selection="top")
    for pattern in look_inside(PreparedBatches(model, TASK), everything).patterns:
        assert int((pattern[0].int() - pattern[2].int()).abs().max()) <= 1


def test_the_mean_effect_of_an_edge_is_its_score(looked):
    circuit, inside = looked
    assert torch.allclose(inside.effects.mean(0), circuit.scores, atol=1e-4)
    alone = gp.attribute(tiny_model("gpt2"), TASK.take([2]), "eap-ig", steps=3, ablation=circuit.ablation)
    if circuit.ablation == "corrupted":  # other ablations do not depend on the example
        assert torch.allclose(inside.effects[2], alone.values[*circuit.index.T], atol=1e-4)


def test_tokens_are_those_that_a_node_raises_and_lowers_most(looked):
    _, inside = looked
    model = tiny_model("gpt2")
    row = inside.sources.index(model.graph.source("m2"))
    written = model.outputs(TASK.clean[1], "m2")[0, -1]
    stream = model.run(model.embed(torch.tensor(model.tokenizer.encode([TASK.clean[1]])))).final_in[0, -1]
    behind = (written - written.mean()) * model.norm(stream)[1] * model.final_gain
    logits = model.unembedding @ behind
    logits = logits - logits.mean()
    assert inside.tokens[1, row].tolist() == [*logits.topk(4).indices, *logits.topk(4, largest=False).indices]
    assert torch.allclose(inside.logits[1, row], logits[inside.tokens[1, row]], atol=1e-4)
    assert inside.answers is not None
    assert torch.allclose(inside.answers[1, row], logits[TASK.labels[1]], atol=1e-4)
    assert inside.texts[int(inside.tokens[1, row, 0])] == model.tokenizer.decode([int(inside.tokens[1, row, 0])])


def test_a_circuit_of_a_method_without_a_path_has_effects_by_eap_ig():
    model = tiny_model("gpt2")
    circuit = gp.select(gp.attribute(model, TASK, "atp-star"), n=30, selection="top")
    effects = look_inside(PreparedBatches(model, TASK), circuit).effects.mean(0)
    expected = gp.attribute(model, TASK, "eap-ig").values[*circuit.index.T]
    assert torch.allclose(effects, expected, atol=1e-4)


@pytest.mark.parametrize("method", ["relp", "eap-gp"])  # another backward pass, and a path that moves the prefix
def test_effects_follow_the_method_that_found_the_circuit(method):
    model = tiny_model("gpt2")
    circuit = gp.select(gp.attribute(model, TASK, method), n=30, selection="top")
    assert torch.allclose(look_inside(PreparedBatches(model, TASK), circuit).effects.mean(0), circuit.scores, atol=1e-4)


def test_the_prompts_of_a_batch_are_run_once(monkeypatch):
    model, run, lengths = tiny_model("gpt2"), Transformer.run, []
    circuit = gp.select(gp.attribute(model, TASK, "eap"), n=60, selection="top")

    def counted(self, x, **options):
        lengths.append(x.shape[:2])
        return run(self, x, **options)

    monkeypatch.setattr(Transformer, "run", counted)
    monkeypatch.setattr(explanation, "known_head_scores", lambda model, heads: torch.zeros(len(heads), 3))
    look_inside(PreparedBatches(model, TASK.take([1])), circuit)
    # Tokens 3 and 4 of 7 differ: the suffix on the corrupted and on the clean prompt, then the prefix.
    assert lengths == [(1, 4), (1, 4), (1, 3)]
