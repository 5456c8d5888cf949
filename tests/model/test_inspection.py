"""Predictions, attention patterns, node outputs and the logit lens, against what transformers gives."""

from __future__ import annotations

import copy

import pytest
import torch
from covering import BLOCKS, FAMILIES, some
from small_models import VOCAB, tiny_hf, tiny_model

from gradpath.errors import InputError, UsageError

IDS = torch.randint(3, VOCAB, (2, 9), generator=torch.Generator().manual_seed(5))


def original(kind):
    """The transformers model's own attentions and hidden states: its stream before each layer, and its last norm."""
    model = copy.deepcopy(tiny_hf(kind))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model, model(IDS, output_attentions=True, output_hidden_states=True)


# With the eager attention of Falcon in transformers, which alone returns patterns, tokens see later ones.
@pytest.mark.parametrize("kind", some([kind for kind in FAMILIES if not kind.startswith("falcon")], BLOCKS[:4]))
def test_patterns_outputs_and_lens_are_those_of_transformers(kind):
    model, (hf, expected) = tiny_model(kind), original(kind)
    graph = model.graph
    for layer in range(graph.n_layers):
        for head in range(graph.n_heads):
            pattern = model.attention(IDS, f"a{layer}.h{head}")
            assert torch.allclose(pattern, expected.attentions[layer][:, head], atol=1e-5)
    # What the nodes of a layer write, and the bias of attention, which is no head's, is what the layer adds.
    for layer in range(graph.n_layers - 1):
        written = sum(model.outputs(IDS, f"a{layer}.h{head}") for head in range(graph.n_heads))
        bias = model.layers[layer].b_o
        added = written + model.outputs(IDS, f"m{layer}") + (0 if bias is None else bias)
        before, after = expected.hidden_states[layer : layer + 2]
        assert torch.allclose(added, after - before, atol=1e-4)
    lens = model.logit_lens(IDS, position=4)
    assert lens.shape == (2, 1 + graph.n_layers, VOCAB)
    assert torch.allclose(lens[:, -1], expected.logits[:, 4], atol=1e-4)
    if kind in ("gpt2", "llama-grouped"):
        norm = hf.transformer.ln_f if kind == "gpt2" else hf.model.norm
        with torch.no_grad():
            for layer in range(graph.n_layers):
                assert torch.allclose(lens[:, layer], hf.lm_head(norm(expected.hidden_states[layer][:, 4])), atol=1e-4)


def test_the_input_writes_the_token_embeddings():
    assert torch.equal(tiny_model("gpt2").outputs(IDS, "input"), tiny_hf("gpt2").transformer.wte(IDS).detach())


def test_a_prediction_has_the_probability_that_transformers_gives():
    model, text = tiny_model("llama-grouped"), "5 17 3"
    with torch.no_grad():
        logits = tiny_hf("llama-grouped")(torch.tensor([[5, 17, 3]])).logits[0, -1]
    predicted = model.predict(text, top=4)
    assert [one.id for one in predicted] == logits.topk(4).indices.tolist()
    for one in predicted:
        assert one.token == f" {one.id}"
        assert one.logit == pytest.approx(float(logits[one.id]), abs=1e-4)
        assert one.probability == pytest.approx(float(logits.softmax(0)[one.id]), abs=1e-5)
    assert model.predict(torch.tensor([5, 17, 3]), top=4) == predicted


def test_prompts_of_different_lengths_are_each_as_alone():
    model, both = tiny_model("gpt2"), ["5 17 3 9", "8 4"]
    for look in (lambda x: model.attention(x, "a1.h2"), lambda x: model.outputs(x, "m1")):
        together = look(both)
        assert torch.allclose(together[0], look(both[0])[0], atol=1e-6)
        alone = look(both[1])[0]
        where = [slice(0, n) for n in alone.shape[:-1]]
        assert torch.allclose(together[1][..., : alone.shape[-1]][*where], alone, atol=1e-6)
        assert not together[1][2:].any()
    assert torch.allclose(model.logit_lens(both)[1], model.logit_lens(both[1])[0], atol=1e-5)


def test_more_prompts_than_a_batch_are_all_there():
    model, ids = tiny_model("gpt2"), torch.arange(3, 48)[:, None].repeat(1, 2)
    assert torch.allclose(model.outputs(ids, "m2")[44], model.outputs(ids[44:], "m2")[0], atol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model.attention(IDS, "m1"), "only heads have an attention pattern: got 'm1'"),
        (lambda model: model.attention(IDS, "input"), "only heads have an attention pattern"),
        (lambda model: model.attention(IDS, "a3.h0"), "3 layers of 3 heads has no node 'a3.h0'"),
        (lambda model: model.outputs(IDS, "logits"), "has no node 'logits' that writes"),
        (lambda model: model.outputs(IDS + VOCAB, "m0"), "a token id of this model is 0 to 60"),
        (lambda model: model.outputs([], "m0"), "at least one token"),
        (lambda model: model.logit_lens(["5 6 7", "5"], position=-2), "no token -2 in a prompt of 1 tokens"),
        (lambda model: model.predict("5", top=0), "top must be from 1 to 61"),
        (lambda model: model.predict(["5", "6"]), "predict takes one prompt"),
    ],
)
def test_what_cannot_be_looked_at_is_refused_in_one_sentence(call, message):
    with pytest.raises((InputError, UsageError), match=message):
        call(tiny_model("gpt2"))
