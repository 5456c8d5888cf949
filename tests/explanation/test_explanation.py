"""What an explanation says of heads that are known, and its numbers against their definitions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import reference
import torch
from covering import some
from known_models import FIRST, SECOND, induction, name_mover
from small_models import prompts, tiny_model

import gradpath as gp
from gradpath.circuit import circuit_by_names
from gradpath.explanation import roles
from gradpath.explanation.measure import _by_difference, measure, most_changed
from gradpath.explanation.roles import SCORES, Attends, Role, known_head_scores, sentence
from gradpath.graph import Graph
from gradpath.prepared import PreparedBatches
from gradpath.sweep import Limits
from gradpath.tasks.task import encode

NAMES = gp.Task(
    torch.tensor([[9, 3, 5, FIRST], [9, 4, 6, FIRST], [8, 7, 2, SECOND]]),
    torch.tensor([[9, 3, 5, SECOND], [9, 4, 6, SECOND], [8, 7, 2, FIRST]]),
    torch.tensor([[3, 5], [4, 6], [2, 7]]),
)
PAIRS = prompts([5, 7, 7], [[2], [3, 4], [6]])


def whole(graph: Graph, *names: str) -> gp.Circuit:
    """The circuit of these edges, or of all."""
    every = [graph.edge(*pair) for pair in graph.mask.nonzero().tolist()]
    return circuit_by_names(graph, [(name, 1.0) for name in names or every])


def test_a_prompt_without_names_is_divided_by_where_the_pair_differs():
    task = prompts([6, 9, 6, 7, 9], [[0], [4], [2, 3], [6], [1, 8]])
    found = _by_difference(encode(task, tiny_model("gpt2").tokenizer), "changed")
    assert found.names == ("before", "changed", "between", "end")
    assert found.at.tolist() == [
        [1, 2, 2, 2, 2, 3, -1, -1, -1],
        [0, 0, 0, 0, 1, 2, 2, 2, 3],
        [0, 0, 1, 1, 2, 3, -1, -1, -1],
        [0, 0, 0, 0, 0, 0, 3, -1, -1],
        [0, 1, 1, 1, 1, 1, 1, 1, 3],
    ]


def test_known_heads_have_the_scores_of_their_kind():
    model = induction()
    heads = [model.graph.source(f"a{layer}.h{head}") for layer in (0, 1) for head in (0, 1)]
    scores = dict(zip(("previous", "same", "induction", "idle"), known_head_scores(model, heads), strict=True))
    score = {name: dict(zip(SCORES, row.tolist(), strict=True)) for name, row in scores.items()}
    assert score["previous"]["previous_token"] > 0.99
    assert score["same"]["duplicate_token"] == pytest.approx(0.5, abs=0.01)  # the other half goes to the token itself
    assert score["induction"]["induction"] > 0.95  # the first token counts as its own predecessor
    for head, kind in (("previous", "induction"), ("induction", "previous_token"), ("same", "induction")):
        assert score[head][kind] < 0.2

    gpt2 = tiny_model("gpt2")  # with too few positions, there are no scores
    assert bool(known_head_scores(replace(gpt2, positions=gpt2.positions[:3]), [1]).isnan().all())


def test_a_name_mover_is_told_in_words():
    role = gp.explain(name_mover(), whole(name_mover().graph), NAMES)["a0.h0"]
    assert role.sentence is not None
    assert role.sentence.startswith("attends from the last token to the right answer (1.00) and raises its logit (+")
    [one] = role.attends
    assert one.start == "end"
    assert one.share == pytest.approx(1)
    assert one.weights["clean"]["right answer"] == pytest.approx(1)
    assert one.weights["corrupted"]["wrong answer"] == pytest.approx(1)
    assert one.weights["circuit"]["right answer"] == pytest.approx(1)
    assert role.direct_effect == pytest.approx(float(_metric_lost("a0.h0->logits")), abs=1e-5)
    assert role.writes is not None
    assert role.writes.right == pytest.approx(role.writes.wrong + role.direct_effect / 2, rel=1e-3)


def _metric_lost(edge: str) -> torch.Tensor:
    patched = gp.patch(name_mover(), NAMES, edges=[edge])
    return (patched.clean_values - patched.circuit_values).mean()


def test_attention_in_the_circuit_is_that_of_its_own_run():
    model = name_mover()
    with_query = whole(model.graph, "input->a0.h0<q>", "a0.h0->logits")
    with_value = whole(model.graph, "input->a0.h0<v>", "a0.h0->logits")
    for circuit, part in ((with_query, "right answer"), (with_value, "wrong answer")):
        assert gp.explain(model, circuit, NAMES)["a0.h0"].attends[0].weights["circuit"][part] == pytest.approx(1)


def clean_write(model, prompt: str, node: str) -> torch.Tensor:
    """What a node writes at the last token, after the final norm."""
    written = model.outputs(prompt, node)[0, -1]
    stream = model.run(model.embed(torch.tensor(model.tokenizer.encode([prompt])))).final_in[0, -1]
    centred = written - written.mean() if model.arch.norm == "layer" else written
    return centred * model.norm(stream)[1] * model.final_gain


@pytest.mark.parametrize("kind", some(["gpt2", "gemma2", "neox"], ["gpt2"]))
def test_numbers_are_those_of_their_definitions(kind):
    model = tiny_model(kind)
    measured = measure(PreparedBatches(model, PAIRS), whole(model.graph))
    assert measured.sources == list(range(model.graph.n_sources))
    effects = reference.node_scores(model, PAIRS, reference.straight_line([1.0, 0.0])).float()
    assert torch.allclose(measured.effect.mean(0).sum(-1), effects, atol=1e-4)
    for row, node in enumerate(model.graph.sources):
        patched = gp.patch(model, PAIRS, edges=[f"{node}->logits"])
        lost = patched.clean_values - patched.circuit_values
        assert torch.allclose(measured.direct[:, row], lost, atol=2e-4)
    for column, source in enumerate(measured.heads):
        pattern = model.attention(PAIRS.clean, model.graph.sources[source])
        for example, end in enumerate((4, 6, 6)):
            parts = measured.parts.at[example]
            expected = [float(pattern[example, end][parts == i].sum()) for i in range(len(measured.parts.names))]
            last = measured.attention[example, 0, column, measured.parts.names.index("end")]
            assert last.tolist() == pytest.approx(expected, abs=1e-4)
    tokens, added = most_changed(model, measured.mean_write[None], 5)
    promotes = gp.explain(model, whole(model.graph), PAIRS)["m2"].writes.promotes
    row = measured.sources.index(model.graph.source("m2"))
    assert [model.tokenizer.decode([i]) for i in tokens[0, row, :5].tolist()] == [token for token, _ in promotes]
    behind = torch.stack([clean_write(model, prompt, "m2") for prompt in PAIRS.clean]).mean(0)
    logits = model.unembedding @ behind
    best = (logits - logits.mean()).topk(5)
    assert tokens[0, row, :5].tolist() == best.indices.tolist()
    assert added[0, row, :5].tolist() == pytest.approx(best.values.tolist(), abs=1e-4)
    # In the circuit of all edges everything is as on the clean prompt; each query's weights add up to 1.
    assert torch.allclose(measured.attention[:, 2], measured.attention[:, 0], atol=1e-4)
    assert torch.allclose(measured.attention[:, :, :, -1].sum(-1), torch.ones(()), atol=1e-4)


def test_writes_add_up_to_the_logits():
    model = tiny_model("llama-grouped")
    measured = measure(PreparedBatches(model, PAIRS, limits=Limits(batch_size=2)), whole(model.graph))
    assert measured.answer_logits is not None
    for example, (prompt, labels) in enumerate(zip(PAIRS.clean, PAIRS.labels, strict=True)):
        logits = model.logit_lens(prompt)[0, -1]
        added = measured.answer_logits[example].sum(0)[:, 0]  # over all nodes, for the correct and the wrong answer
        assert torch.allclose(added, logits[labels] - logits.mean(), atol=1e-4)


def test_a_batch_that_does_not_fit_is_counted_once():
    model = tiny_model("gpt2")

    def inspect(work):
        if len(work.runs.batch) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.20 GiB")

    expected = measure(PreparedBatches(model, PAIRS), whole(model.graph)).mean_write
    with pytest.warns(UserWarning, match="does not fit into memory: trying"):
        halved = measure(PreparedBatches(model, PAIRS), whole(model.graph), inspect=inspect).mean_write
    assert torch.allclose(halved, expected, atol=1e-5)


@pytest.mark.parametrize("ablation", ["zero", "mean"])
def test_under_another_ablation_the_direct_effect_is_that_of_its_patch(ablation):
    model = tiny_model("gpt2")
    measured = measure(PreparedBatches(model, PAIRS, ablation), whole(model.graph))
    for node in ("input", "a1.h1", "m2"):
        patched = gp.patch(model, PAIRS, edges=[f"{node}->logits"], ablation=ablation)
        lost = patched.clean_values - patched.circuit_values
        assert torch.allclose(measured.direct[:, model.graph.source(node)], lost, atol=1e-4)


def test_reads_are_the_strongest_edges_of_the_circuit_with_their_shares():
    model = tiny_model("gpt2")
    edges = [("input->a1.h0<q>", 3.0), ("m0->a1.h0<q>", -1.0), ("input->a1.h0<v>", 0.5), ("a1.h0->logits", 2.0)]
    circuit = circuit_by_names(model.graph, [*edges, ("input->m0", 1.0)])
    explanation = gp.explain(model, circuit, PAIRS)
    reads = explanation["a1.h0"].reads
    assert [(read.source, read.share) for read in reads["q"]] == [("input", 0.75), ("m0", 0.25)]
    assert [read.source for read in reads["v"]] == ["input"]
    assert "k" not in reads
    assert [role.node for role in explanation][-1] == "logits"
    assert {role.node for role in explanation} == {"input", "m0", "a1.h0", "logits"}
    sizes = [abs(role.effect) for role in explanation if role.effect is not None]
    assert sizes == sorted(sizes, reverse=True)


def test_a_node_is_as_frequent_as_the_most_frequent_of_its_edges():
    model = tiny_model("gpt2")
    edges = [
        ["input->a1.h0<q>", 3.0, 0.5],
        ["input->m0", 0.5, 1.0],
        ["m0->a1.h0<v>", 0.2, 0.75],
        ["a1.h0->logits", 2.0, 0.5],
    ]
    circuit = circuit_by_names(model.graph, edges)
    explanation = gp.explain(model, circuit, PAIRS)
    assert {role.node: role.frequency for role in explanation} == {"input": 1, "m0": 1, "a1.h0": 0.75, "logits": 0.5}
    assert gp.explain(model, replace(circuit, frequency=None), PAIRS)["m0"].frequency is None


def test_an_explanation_is_json():
    content = gp.explain(tiny_model("gpt2"), whole(Graph(3, 3)), PAIRS).to_json()
    content = json.loads(json.dumps(content, allow_nan=False))
    assert {"node", "attends", "writes", "reads", "direct_effect"} <= set(content["nodes"][0])


def test_a_task_of_another_kind_is_explained_without_answers():
    task = gp.Task(PAIRS.clean, PAIRS.corrupted, PAIRS.labels[:, 0], metric=lambda logits, label: logits[:, 3])
    role = gp.explain(tiny_model("gpt2"), whole(Graph(3, 3)), task)["m1"]
    assert role.writes is not None
    assert (role.writes.right, role.writes.wrong) == (None, None)
    assert len(role.writes.promotes) == 5


def test_a_node_outside_of_the_circuit_is_refused_by_name():
    explanation = gp.explain(name_mover(), whole(name_mover().graph), NAMES)
    with pytest.raises(gp.GradpathError, match=r"no node in this circuit 'a0.h7'. Did you mean 'a0.h0'\?"):
        explanation["a0.h7"]
    with pytest.raises(gp.GradpathError, match="the circuit is of another model"):
        gp.explain(tiny_model("gpt2"), whole(name_mover().graph), NAMES)
    with pytest.raises(gp.GradpathError, match="a circuit without edges does nothing that could be explained"):
        gp.explain(name_mover(), gp.Circuit.from_edges(name_mover(), []), NAMES)


def test_a_circuit_without_attention_heads_is_explained():
    model = tiny_model("gpt2")
    explanation = gp.explain(model, whole(model.graph, "input->m0", "m0->logits"), PAIRS)
    assert {role.node for role in explanation.roles} == {"input", "m0", "logits"}
    assert not any(role.attends for role in explanation.roles)


WEIGHTS = {"changed": 0.9, "end": 0.1}


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (
            {"attends": [Attends("changed", 1.0, {"clean": WEIGHTS})]},
            "attends from the changed words to themselves (0.90)",
        ),
        (
            {"attends": [Attends("subject", 1.0, {"clean": {"subject": 0.9}})]},
            "attends from the subject to itself (0.90)",
        ),
        ({"direct_effect": 0.3, "writes": roles.Writes(0.8, 0.4, (), ())}, "raises the name's logit (+0.80)"),
        ({"direct_effect": 0.3, "writes": roles.Writes(-0.1, -0.9, (), ())}, "lowers the other's logit (-0.90)"),
        ({"direct_effect": 0.3, "writes": roles.Writes(0.34, 0.35, (), ())}, None),  # both alike
        ({"scores": {"induction": 0.5, "previous_token": 0.2}}, "induction head (0.50)"),
        ({}, None),
    ],
)
def test_a_sentence_says_what_is_clear(facts, said):
    assert sentence(Role("a1.h0", **facts), ("name", "other"), direct_is_clear=True) == said
