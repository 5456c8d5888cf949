"""What has to hold for every architecture, data set and circuit, on ones that are drawn at random.

The quick profile draws a few of each; the same properties on many more are marked slow.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from random_circuits import circuit_of, random_mask
from small_models import TINY, Numbers, prompts, random_hf

from gradpath.attribution.attribute import attribute
from gradpath.attribution.methods import METHODS
from gradpath.circuit import load_circuit
from gradpath.evaluation import evaluate
from gradpath.graph import Graph, pruned
from gradpath.model.families import convert
from gradpath.model.tokenizer import Tokenizer
from gradpath.model.transformer import Transformer
from gradpath.recipe import Recipe
from gradpath.scores import Scores, load_scores
from gradpath.selection import rank, select

PATHS: dict[str, Callable[[int], Any]] = {
    "eap": lambda k: reference.straight_line([1.0]),
    "eap-ig": lambda k: reference.straight_line([j / k for j in range(1, k + 1)]),
    "eap-gp": reference.grad_path,
}

RANKINGS = ("greedy", "random", "random-paths", "signed", "top")  # selections that need no model


def often(quick: int, many: int) -> Callable[[Any], Any]:
    """A property as two tests' worth of cases: a few now, many in the slow ones."""

    def settled(cases: int) -> settings:
        checks = list(HealthCheck)
        return settings(
            max_examples=cases, deadline=None, derandomize=True, database=None, suppress_health_check=checks
        )

    def both(hold: Any) -> Any:
        @pytest.mark.parametrize("cases", [quick, pytest.param(many, marks=pytest.mark.slow)])
        def test(cases: int) -> None:
            settled(cases)(hold)()

        return test

    return both


@st.composite
def shapes(draw: Any) -> tuple[str, dict[str, int]]:
    """A family, and a small shape for it: layers, heads, groups of heads, widths."""
    kind = draw(st.sampled_from(["gpt2", "llama-grouped", "neox", "neox-sequential", "qwen3"]))
    layers, groups, shared = (draw(st.integers(1, 3)) for _ in range(3))
    d_head = draw(st.sampled_from([2, 4, 6]))
    if kind == "gpt2":
        heads = groups * shared
        shape = {"n_layer": layers, "n_head": heads, "n_embd": heads * d_head}
    elif kind.startswith("neox"):
        heads = groups
        shape = {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": heads * 8}
    else:
        heads = groups * shared
        shape = {"num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": groups}
        shape |= {"head_dim": d_head, "hidden_size": heads * draw(st.sampled_from([4, 6, 8]))}
    return kind, shape


def built(drawn: tuple[str, dict[str, int]]) -> Transformer:
    """A model with random weights, in double precision: a difference is a mistake then, and not rounding."""
    model = convert(random_hf(*TINY[drawn[0]], drawn[1]))
    return replace(model.to(None, torch.float64), tokenizer=Tokenizer(Numbers()), name=drawn[0])


@st.composite
def pairs(draw: Any) -> tuple[list[int], list[list[int]], int]:
    """Lengths of prompts, the positions in which each pair differs, and a seed: what ``prompts`` takes."""
    lengths = draw(st.lists(st.integers(2, 8), min_size=1, max_size=5))
    differ = [sorted(draw(st.sets(st.integers(0, length - 1), min_size=1, max_size=3))) for length in lengths]
    return lengths, differ, draw(st.integers(0, 1000))


graphs = st.builds(Graph, st.integers(1, 4), st.integers(1, 3), st.booleans())


@st.composite
def scored(draw: Any) -> Scores:
    """Random scores, with ties in half of the cases."""
    graph = draw(graphs)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    values = torch.randn(graph.mask.shape, generator=generator)
    if draw(st.booleans()):
        values = (2 * values).round() / 2
    recipe = Recipe(method=draw(st.text(max_size=5)), steps=draw(st.integers(1, 9)))
    return Scores(graph, values * graph.mask, recipe)


@often(3, 30)
@given(shapes(), pairs(), st.sampled_from(sorted(PATHS)), st.integers(1, 3), st.integers(1, 5))
def test_scores_equal_the_plain_reference(shape, drawn, method, steps, batch_size):
    model, task = built(shape), prompts(*drawn)
    expected = reference.scores(model, task, PATHS[method](steps))
    options = {"steps": steps} if "steps" in METHODS[method].defaults else {}
    found = attribute(model, task, method, batch_size=batch_size, **options).values
    assert torch.allclose(found.double(), expected, rtol=0, atol=1e-5 * float(expected.abs().max()) + 1e-12)


@often(3, 30)
@given(shapes(), pairs(), st.floats(0, 1), st.integers(0, 1000), st.integers(1, 5))
def test_circuits_run_as_the_plain_reference_does(shape, drawn, share, seed, batch_size):
    model, task = built(shape), prompts(*drawn)
    everything = model.graph.mask
    masks = [random_mask(model.graph, share, seed), everything, everything & False]
    expected = [reference.patched_metric(model, task, mask) for mask in masks]
    assume(abs(float(expected[1].mean() - expected[2].mean())) > 1e-2)  # else there is no behaviour to keep
    found = evaluate(model, [circuit_of(model.graph, x) for x in masks], task, batch_size=batch_size)
    for result, values in zip(found, expected, strict=True):
        assert torch.allclose(result.circuit_values.double(), values, rtol=1e-4, atol=1e-4)
    _, whole, none = found
    assert whole.faithfulness == pytest.approx(1, abs=1e-3)
    assert none.faithfulness == pytest.approx(0, abs=1e-3)


@often(30, 300)
@given(graphs, st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**32))
def test_pruning_is_idempotent_and_monotone_and_leaves_connected_nodes(graph, share, part, seed):
    large = random_mask(graph, share, seed)
    small = large & random_mask(graph, part, seed + 1)
    kept = pruned(graph, large)
    assert torch.equal(pruned(graph, kept), kept)
    assert not (kept & ~large).any()
    assert not (pruned(graph, small) & ~kept).any()
    writes, reads = kept.any(1), torch.zeros(graph.n_sources + 1, dtype=torch.bool)
    reads[graph.node_of_target[kept.any(0)]] = True
    assert torch.equal(writes[1:], reads[1:-1]), "a node that writes an edge has to read one, and back"
    # The definition, taken literally: while a node has edges on one side alone, take them.
    left, before = large.clone(), None
    while before is None or not torch.equal(left, before):
        before = left.clone()
        fed = torch.zeros(graph.n_sources + 1, dtype=torch.bool)
        fed[graph.node_of_target[left.any(0)]] = True
        fed[0] = True
        heard = torch.cat([left.any(1), torch.ones(1, dtype=torch.bool)])
        left &= fed[:-1, None] & heard[graph.node_of_target]
    assert torch.equal(left, kept)


@often(12, 200)
@given(scored(), st.data())
def test_selections_nest_and_have_the_size_that_was_asked_for(scores, data):
    n_edges = scores.graph.n_edges
    small, large = sorted(data.draw(st.tuples(st.integers(1, n_edges), st.integers(1, n_edges))))
    for how in RANKINGS:
        order = rank(scores, how, sizes=[small, large])
        assert torch.equal(rank(scores, how, sizes=[small]).edges, order.edges[:small])
        one, two = (order.circuit(n, prune=False) for n in (small, large))
        assert (len(one), len(two)) == (small, large)
        assert two.edges[:small] == one.edges
        assert set(select(scores, small, selection=how).edges) <= set(select(scores, large, selection=how).edges)
    reached = {scores.graph.n_sources}  # greedy is connected to logits from its first edge on
    for flat in rank(scores, "greedy", largest=large).edges.tolist():
        source, target = divmod(flat, scores.graph.n_targets)
        assert int(scores.graph.node_of_target[target]) in reached
        reached.add(source)
    sizes = scores.values.flatten()[rank(scores).edges].abs()
    assert (sizes.diff() <= 0).all()


@often(12, 200)
@given(scored(), st.data())
def test_saving_and_loading_is_the_identity(scores, data):
    n = data.draw(st.integers(1, scores.graph.n_edges))
    circuit = select(scores, n, selection=data.draw(st.sampled_from(RANKINGS)))
    with tempfile.TemporaryDirectory() as folder:
        scores.save(Path(folder, "scores.safetensors"))
        circuit.save(Path(folder, "circuit.json"))
        same, again = (load_scores(Path(folder, "scores.safetensors")), load_circuit(Path(folder, "circuit.json")))
    assert (same.graph, same.recipe, same.facts) == (scores.graph, scores.recipe, scores.facts)
    assert torch.equal(same.values, scores.values)
    assert (again.graph, again.record) == (circuit.graph, circuit.record)
    assert torch.equal(again.index, circuit.index)
    assert torch.equal(again.scores, circuit.scores)
