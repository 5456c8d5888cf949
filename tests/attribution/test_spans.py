"""Edges at positions: scores that add up, circuits that are patched where they say, pruning, files."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from covering import BLOCKS, FAMILIES, FEW_BLOCKS, covering, families
from small_models import prompts

import gradpath as gp
from gradpath import formats
from gradpath.attribution.attribute import attribute
from gradpath.circuit import load_circuit
from gradpath.errors import InputError, UsageError
from gradpath.graph import Graph, pruned_spans
from gradpath.reference import examples, forward, input_gradients, metric_of, read_all
from gradpath.scores import load_scores
from gradpath.tasks.spans import PositionSpans, spans_of
from gradpath.tasks.task import encode

MIXED = prompts([6, 9, 6, 7, 9], [[0], [4], [2, 3], [6], [1, 8]])
EVEN = prompts([6, 6, 6], [[1], [2, 3], [5]])


def by_definition(model, task, by):
    """The clean prompt's slope times the difference of writes, position by position."""
    labels = spans_of(task, encode(task, model.tokenizer), model.tokenizer, by)
    graph = model.graph
    total = torch.zeros(len(labels.names), graph.n_sources, graph.n_targets, dtype=torch.float64)
    for row, (clean, corrupted, answer) in zip(labels.at, examples(model, task), strict=True):
        x, other = (forward(model, one, read_all)[1] for one in (clean, corrupted))
        for target, slope in input_gradients(model, task, answer, clean).items():
            v = graph.targets.index(target)
            for u in range(int(graph.sources_before_target[v])):
                for position, part in enumerate(((x[u] - other[u]) * slope).sum(-1)):
                    total[row[position], u, v] += part
    return total / len(task)


SPLITS = {"span": (MIXED, "span"), "token": (EVEN, "token"), "even spans": (EVEN, "span")}


@pytest.mark.parametrize(("model", "split"), covering(FAMILIES, list(SPLITS), quick=BLOCKS), indirect=["model"])
def test_scores_of_positions_equal_the_definition(model, split):
    task, by = SPLITS[split]
    expected = by_definition(model, task, by)
    values = attribute(model, task, "eap", positions=by, batch_size=2).by_span.values
    assert (values - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("method", ["eap-ig", "eap-gp", "eap-integral"])
def test_scores_of_positions_add_up_to_those_of_edges(gpt2, method):
    model = gpt2.to(dtype=torch.float64)
    split = attribute(model, MIXED, method, positions="span", batch_size=2)
    whole = attribute(model, MIXED, method).values
    assert (split.values - whole).abs().max() <= 1e-6 * whole.abs().max()


def test_spans_are_what_is_before_changed_between_and_the_end(gpt2):
    labels = spans_of(MIXED, encode(MIXED, gpt2.tokenizer), gpt2.tokenizer, "span")
    assert labels.names == ("before", "changed", "between", "end")
    assert labels.at.tolist() == [
        [1, 2, 2, 2, 2, 3, -1, -1, -1],
        [0, 0, 0, 0, 1, 2, 2, 2, 3],
        [0, 0, 1, 1, 2, 3, -1, -1, -1],
        [0, 0, 0, 0, 0, 0, 3, -1, -1],
        [0, 1, 1, 1, 1, 1, 1, 1, 3],
    ]
    assert torch.equal(labels.reach(), torch.ones(4, 4, dtype=torch.bool).triu())


def patched_at(model, task, masks, labels):
    """The plain model with each edge corrupted at the positions of spans that it is not kept at."""
    column = {name: i for i, name in enumerate(model.graph.targets)}
    values = []
    for row, (clean, corrupted, answer) in zip(labels.at, examples(model, task), strict=True):
        instead = forward(model, corrupted, read_all)[1]
        own = row[: len(clean)]

        def read(target, writes, constant, instead=instead, own=own):
            kept = masks[own][:, : len(writes), column[target]].T.double()[..., None]  # (source, pos, 1)
            both = kept * torch.stack(writes) + (1 - kept) * torch.stack(instead[: len(writes)])
            return both.sum(0) + constant

        values.append(metric_of(task, answer, forward(model, clean, read)[0]))
    return torch.stack(values)


@pytest.mark.parametrize(
    ("model", "split", "n"), covering(FAMILIES, ["span", "token"], [20, 150], quick=FEW_BLOCKS), indirect=["model"]
)
def test_a_circuit_of_positions_is_patched_where_it_says(model, split, n):
    task, by = SPLITS[split]
    scores = attribute(model, task, "eap", positions=by)
    circuit = gp.select(scores, n)
    labels = spans_of(task, encode(task, model.tokenizer), model.tokenizer, by)
    result = gp.evaluate(model, circuit, task, batch_size=2)
    expected = patched_at(model, task, circuit.masks, labels)
    assert torch.allclose(result.circuit_values.double(), expected, atol=1e-4)
    assert (result.edges_asked, result.edges_kept) == (n, len(circuit))


@families(*FEW_BLOCKS)
def test_all_edges_everywhere_are_the_model_and_none_the_corrupted_run(model):
    scores = attribute(model, MIXED, "eap", positions="span")
    whole = gp.select(scores, scores.n_edges, prune=False)
    none = replace(whole, index=whole.index[:0], scores=whole.scores[:0], span=whole.span[:0])
    plain = gp.select(attribute(model, MIXED, "eap"), 10)
    full, empty, _ = gp.evaluate(model, [whole, none, plain], MIXED)
    assert torch.allclose(full.circuit_values, full.clean_values, atol=1e-4)
    assert torch.allclose(empty.circuit_values, empty.corrupted_values, atol=1e-5)


def test_one_span_for_all_positions_is_a_circuit_as_always(gpt2):
    """An edge that is kept at every span is kept, so both kinds of circuit say the same."""
    plain = gp.select(attribute(gpt2, MIXED, "eap"), 60)
    names = ("before", "changed", "between", "end")
    index = plain.index.repeat(4, 1)
    span = torch.arange(4).repeat_interleave(len(plain))
    about = {**plain.about, "positions": "span"}
    everywhere = replace(plain, index=index, scores=plain.scores.repeat(4), about=about, spans=names, span=span)
    one, other = gp.evaluate(gpt2, [plain, everywhere], MIXED)
    assert torch.allclose(one.circuit_values, other.circuit_values, atol=1e-5)


def ways(graph, masks, reach):
    """Every edge at a span that is on some way from input to logits, by walking all ways."""
    found = torch.zeros_like(masks)

    def walk(source, span, path):
        for target in range(graph.n_targets):
            if not masks[span, source, target]:
                continue
            here = [*path, (span, source, target)]
            if target == graph.logits:
                for place in here:
                    found[place] = True
                continue
            name, node = graph.targets[target], int(graph.node_of_target[target])
            later = range(len(masks)) if name.endswith(("<k>", "<v>")) else [span]
            for other in later:
                if other == span or reach[span, other]:
                    walk(node, other, here)

    for span in range(len(masks)):
        walk(0, span, [])
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("parallel", [False, True])
def test_pruning_leaves_what_is_on_a_way_through_layers_and_positions(seed, parallel):
    graph = Graph(2, 2, parallel)
    generator = torch.Generator().manual_seed(seed)
    masks = (torch.rand(3, *graph.mask.shape, generator=generator) < 0.3) & graph.mask
    reach = torch.ones(3, 3, dtype=torch.bool).triu()
    kept = pruned_spans(graph, masks, reach)
    assert torch.equal(kept, ways(graph, masks, reach))
    assert torch.equal(pruned_spans(graph, kept, reach), kept)


def test_names_say_where_and_files_give_everything_back(gpt2, tmp_path):
    scores = attribute(gpt2, MIXED, "eap-ig", steps=2, positions="span")
    circuit = gp.select(scores, 40)
    assert all(name.rpartition("@")[2] in scores.by_span.names for name in circuit.edges)
    assert scores[circuit.edges[0]] == pytest.approx(float(circuit.scores[0]))
    circuit.save(tmp_path / "c.json")
    again = load_circuit(tmp_path / "c.json")
    assert again.edges == circuit.edges
    assert torch.equal(again.masks, circuit.masks)
    assert again.about == circuit.about
    scores.save(tmp_path / "s.safetensors")
    back = load_scores(tmp_path / "s.safetensors")
    assert torch.equal(back.values, scores.values)
    assert torch.equal(back.by_span.values, scores.by_span.values)
    assert torch.equal(back.by_span.reach, scores.by_span.reach)
    assert (back.by_span.names, back.about) == (scores.by_span.names, scores.about)


def test_what_cannot_be_split_is_refused_in_words(gpt2, tmp_path):
    with pytest.raises(InputError, match="all prompts need the same number of tokens: these have 6 to 9"):
        attribute(gpt2, MIXED, "eap", positions="token")
    with pytest.raises(UsageError, match="positions must be span or token: got "):
        attribute(gpt2, MIXED, "eap", positions="word")
    scores = attribute(gpt2, MIXED, "eap", positions="span")
    with pytest.raises(UsageError, match=r"cannot select edges at positions\. Use top or signed"):
        gp.select(scores, 5, how="refined")
    with pytest.raises(InputError, match="has no known span"):
        scores["input->m0@nowhere"]
    assert scores["input->m0"] == pytest.approx(sum(scores[f"input->m0@{span}"] for span in scores.by_span.names))
    by_token = gp.select(attribute(gpt2, EVEN, "eap", positions="token"), 5)
    with pytest.raises(UsageError, match="split positions in different ways"):
        gp.evaluate(gpt2, [by_token, gp.select(scores, 5)], EVEN)
    with pytest.raises(InputError, match="Use prompts of the template"):
        gp.evaluate(gpt2, by_token, prompts([8, 8], [[1], [2]]))


def test_reach_follows_the_tokens_where_spans_mix():
    labels = PositionSpans(("a", "b"), torch.tensor([[0, 1, 0, -1]]))
    assert labels.reach().all()
    apart = PositionSpans(("a", "b"), torch.tensor([[0, 0, 1, 1]]))
    assert apart.reach().tolist() == [[True, True], [False, True]]


def test_other_tools_are_not_told_of_edges_at_positions(gpt2, tmp_path):
    circuit = gp.select(attribute(gpt2, MIXED, "eap", positions="span"), 30)
    with pytest.raises(UsageError, match="anywhere"):
        formats.write(circuit, tmp_path / "c.graphml")
    anywhere = circuit.anywhere()
    assert set(anywhere.edges) == {name.rpartition("@")[0] for name in circuit.edges}
    assert float(anywhere.scores.sum()) == pytest.approx(float(circuit.scores.sum()), rel=1e-5)
    formats.write(anywhere, tmp_path / "c.graphml")
    formats.write(circuit, tmp_path / "c.json")
    assert load_circuit(tmp_path / "c.json").edges == circuit.edges


def test_a_file_whose_spans_do_not_fit_is_refused(gpt2, tmp_path):
    circuit = gp.select(attribute(gpt2, MIXED, "eap", positions="span"), 5)
    circuit.save(tmp_path / "c.json")
    text = (tmp_path / "c.json").read_text()
    for old, new in [('"end"', '"fin"'), ('"spans"', '"spins"'), ('"between"', '"end"')]:
        (tmp_path / "d.json").write_text(text.replace(old, new))
        with pytest.raises(InputError, match=r"d\.json cannot be used as a circuit"):
            load_circuit(tmp_path / "d.json")
    (tmp_path / "e.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot be read as gradpath scores"):
        load_scores(tmp_path / "e.safetensors")


def test_a_path_with_an_end_of_its_own_is_refused_with_another_ablation_here_too(gpt2):
    with pytest.raises(UsageError, match="cannot be used with the ablation 'zero'"):
        attribute(gpt2, MIXED, "eap-integral", positions="span", ablation="zero")
