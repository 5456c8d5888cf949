"""``gp.test`` passes the true circuits of compiled models, and says what is wrong with spoiled ones."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random

import pytest
import torch
from launching import run_here
from scipy.stats import beta

import gradpath as gp
from gradpath.errors import GradpathWarning, InputError
from gradpath.evaluation.result import Result
from gradpath.graph import Graph, pruned
from gradpath.paper.compiled import load_compiled
from gradpath.report import verdict_report
from gradpath.report.payload import page_of
from gradpath.scores import Scores
from gradpath.selection import rank
from gradpath.sweep import Limits
from gradpath.verdict import NAMES
from gradpath.verdict.checks import Check, CircuitUnderTest, _sufficiency, equivalence, limit_of, transfer
from gradpath.verdict.effects import upper_bounds
from gradpath.verdict.optional import rivals, specificity
from gradpath.verdict.random_circuits import random_circuits_like
from gradpath.verdict.statistics import (
    Ratio,
    all_of,
    bounds,
    difference_bounds,
    enough_examples,
    mean_overlap,
    needed_edges,
    rank_test,
    sign_test,
    within,
)

load = cache(load_compiled)


@cache
def verdict_on(name, level, *edges):
    own = load(name, level)
    return gp.test(own.model, gp.Circuit.from_edges(own.model, edges), own.all_pairs)


def under_test(own, circuit, task, found_on=None):
    return CircuitUnderTest(own.model, circuit, task, torch.Generator(), Limits(), mean_over=task, found_on=found_on)


@pytest.mark.parametrize(("name", "level"), [("pattern", "hidden"), ("induction", "curved")])
def test_a_true_circuit_passes(name, level):
    own = load(name, level)
    verdict = verdict_on(name, level, *own.kinds)
    assert verdict.passed, verdict
    assert verdict.sufficiency.value == pytest.approx(0, abs=1e-3)
    assert verdict.sufficiency.null > 0.5
    assert verdict.necessity.value == pytest.approx(0, abs=1e-3)
    assert verdict.necessity.details["moved"] == pytest.approx(1, abs=1e-3)
    assert "corrupting only the circuit loses 1.000 (limit 0.8)" in verdict.necessity.about
    assert verdict.minimality.value == 1
    assert (verdict.stability.value, verdict.stability.passed) == (None, None)
    assert verdict.sufficiency.details["p"] == 0.05
    assert "19 connected random circuits of its size and shape" in verdict.sufficiency.about
    assert verdict.verdict == "passes all 4 tests"


def test_a_circuit_with_a_missing_edge_fails():
    first, _, *others = load("pattern", "hidden").kinds
    missing = verdict_on("pattern", "hidden", first, *others)
    assert not missing.passed
    assert missing.equivalence.passed is False
    assert "fails" in missing.verdict


def test_a_circuit_with_idle_edges_is_not_minimal():
    own = load("pattern", "hidden")
    graph = own.model.graph
    idle = [edge for u, v in graph.mask.nonzero().tolist() if (edge := graph.edge(u, v)) not in own.kinds][40:44]
    larger = verdict_on("pattern", "hidden", *own.kinds, *idle)
    assert larger.sufficiency.decision != "no"  # in so small a model, some random circuits are perfect, too
    assert larger.equivalence.passed
    assert larger.minimality.passed is False
    assert set(larger.minimality.details["not_needed"]) == set(idle)


def test_a_random_circuit_fails_what_a_circuit_is_for():
    own = load("pattern", "hidden")
    scores = gp.attribute(own.model, own.task, "eap")
    random = gp.select(scores, len(own.kinds), selection="random", prune=False)
    verdict = gp.test(own.model, random, own.all_pairs)
    failed = {name for name, check in verdict.checks.items() if check.passed is False}
    assert failed >= {"sufficiency", "equivalence", "necessity"}
    assert verdict.sufficiency.decision == "no"


def test_a_backup_outside_of_the_circuit_shows_in_necessity():
    own = load("two-copies", "hidden")
    copies = [edge for edge, kind in own.kinds.items() if kind == "redundant"]
    heads = sorted({edge.split("->")[1].partition("<")[0] for edge in copies if edge.startswith("input")})
    one = [edge for edge in own.kinds if heads[1] not in edge]
    verdict = verdict_on("two-copies", "hidden", *one)
    assert verdict.sufficiency.value == pytest.approx(0, abs=1e-3)
    assert verdict.equivalence.passed
    assert verdict.necessity.passed is False
    assert verdict.necessity.details["moved"] == pytest.approx(0, abs=1e-3)
    both = verdict_on("two-copies", "hidden", *own.kinds)
    assert both.necessity.passed
    assert both.necessity.details["moved"] == pytest.approx(1, abs=1e-3)
    assert set(both.minimality.details["not_needed"]) == set(copies)  # each has a backup inside of the circuit


def test_a_circuit_that_can_be_found_again_is_stable_and_transfers():
    own = load("pattern")
    scores = gp.attribute(own.model, own.task, "exact")
    circuit = gp.select(scores, len(own.kinds), selection="top")
    verdict = gp.test(own.model, circuit, own.held_out, found_on=own.task)
    assert verdict.stability.passed
    assert verdict.stability.value == pytest.approx(1)
    assert verdict.stability.null < 0.2
    assert verdict.transfer.details["enough"] == 2 * len(own.held_out)  # no failure among 16 examples is not enough


def test_a_circuit_that_another_sample_would_not_give_is_not_stable():
    own = load("parity")
    scores = gp.attribute(own.model, own.task, "eap")
    circuit = gp.select(scores, 6, selection="random", prune=False)
    unlike = replace(circuit, recipe=circuit.recipe.changed(selection="top"))
    verdict = gp.test(own.model, unlike, own.held_out, found_on=own.task)
    assert verdict.stability.passed is False
    assert verdict.stability.details["with_circuit"] < 0.5
    assert verdict.stability.details["circuits"] == 100


def test_the_command_prints_a_screenful_or_one_object(tmp_path):
    load("pattern", "hidden").save(tmp_path)
    command = [
        "test",
        tmp_path / "circuit.json",
        "--model",
        tmp_path,
        "--data",
        tmp_path / "pairs.csv",
        "--examples",
        30,
    ]
    shown = run_here(*command).out
    assert "The circuit passes sufficiency, equivalence, necessity and minimality; undecided: transfer." in shown
    assert len(shown.splitlines()) < 12
    page = tmp_path / "page.html"
    verdict = run_here(*command, "--all", "--json", "--out", page).json
    assert verdict["necessity"]["about"] in page.read_text()
    assert f"{verdict['task']} in {verdict['model']}" in page.read_text()
    refused = run_here(*command, "--out", tmp_path / "verdict.pdf")
    assert refused.code == 2
    assert "--out has to end in .html, got verdict.pdf" in refused.error
    names = (*NAMES, "specificity", "rivals")
    assert {*names, "verdict"} <= verdict.keys()
    assert all({"value", "null", "decision", "passed"} <= verdict[name].keys() for name in names)
    assert {"edges", "measured", "estimated", "bound", "correlation"} <= verdict["effects"].keys()


def test_too_few_examples_and_another_model_are_refused_in_one_sentence():
    own, other = load("pattern", "hidden"), load("count")
    with pytest.raises(InputError, match="at least 10 examples: 'pattern' has 4"):
        gp.test(own.model, own.circuit, own.task[:4])
    with pytest.raises(InputError, match="the circuit is of another model"):
        gp.test(other.model, own.circuit, other.task)
    with pytest.raises(InputError, match="it has no edges"):
        verdict_on("pattern", "hidden")


def test_a_circuit_that_fits_one_kind_of_prompt_does_not_transfer():
    own = load("pattern", "hidden")
    edges = list(own.kinds)
    partial = gp.Circuit.from_edges(own.model, edges[:1] + edges[2:])
    result = gp.evaluate(own.model, partial, own.all_pairs)
    fits = ((result.circuit_values - result.clean_values).abs() < 1e-3).tolist()
    easy, hard = (own.all_pairs.take([i for i, x in enumerate(fits) if x == wanted]) for wanted in (True, False))
    assert min(len(easy), len(hard)) >= 10
    with pytest.warns(GradpathWarning, match=f"{len(easy)} of the {len(easy)} examples to test on were attributed"):
        verdict = gp.test(own.model, partial, easy, found_on=easy, reworded=hard)
    assert "other examples" not in verdict.transfer.about
    assert f"of which {len(easy)} of {len(easy)} were attributed" in verdict.transfer.about
    assert verdict.equivalence.passed
    assert verdict.transfer.passed is False
    assert verdict.transfer.value == verdict.transfer.details["reworded"] < 0.5
    assert "on other templates" in verdict.transfer.about
    true = gp.Circuit.from_edges(own.model, edges)
    for circuit, reworded in ((partial, None), (true, hard)):
        check = transfer(under_test(own, circuit, easy, easy), gp.evaluate(own.model, circuit, easy), reworded)
        assert check.decision == "yes" or check.details["enough"] <= 60  # there are few examples


def test_a_circuit_is_specific_if_other_tasks_lose_less_without_it():
    own = load("first-is-last")  # compares the first token, by a head, with the last: each matters to some pairs
    head = gp.Circuit.from_edges(own.model, ["input->a0.h0<v>", "a0.h0->m0"])
    kept = [gp.patch(own.model, own.all_pairs, edges=x) for x in (head.edges, ["input->m0"])]
    by_head, by_last = (((x.circuit_values - x.corrupted_values).abs() < 0.1).tolist() for x in kept)
    first, last = (
        replace(own.all_pairs.take([i for i in range(40) if a[i] and not b[i]]), name=name)
        for a, b, name in ((by_head, by_last, "first"), (by_last, by_head, "last"))
    )
    specific = specificity(under_test(own, head, first), [last])
    assert (specific.decision, specific.value, specific.null) == ("yes", pytest.approx(1), pytest.approx(0, abs=1e-6))
    assert specific.details["most"] == "last"
    assert "of 1 other tasks that the model does, last loses most, 0.000 (difference +1.000 [" in specific.about
    assert specificity(under_test(own, head, last), [first]).decision == "no"
    assert specificity(under_test(own, head, first), [last, first]).decision == "undecided"
    undone = replace(last, clean=last.corrupted, corrupted=last.clean)
    assert specificity(under_test(own, head, first), [undone]).value is None


@pytest.mark.parametrize(("name", "shared", "nodes"), [("two-copies", 1 / 2, 2 / 3), ("chain", 1, 1)])
def test_a_rival_shares_what_has_no_second_copy(name, shared, nodes):
    own = load(name, "hidden")
    circuit = gp.select(gp.attribute(own.model, own.task, steps=20), len(own.kinds), selection="top")
    if name == "two-copies":
        head = circuit.edges[-1].split("->")[0]
        keep = torch.tensor([head not in edge for edge in circuit.edges])
        circuit = replace(circuit, index=circuit.index[keep], scores=circuit.scores[keep], n_requested=4)
    check = rivals(under_test(own, circuit, own.held_out, own.task), gp.evaluate(own.model, circuit, own.held_out))
    assert (check.value, check.details["nodes"]) == (shared, pytest.approx(nodes))
    assert check.passed is None
    if name == "chain":
        assert check.about == "none was found: with at most 3 of its 4 edges, circuits are less faithful"
    else:
        assert set(check.details["rival"]) == set(own.kinds) - {e for e in circuit.edges if own.kinds[e] == "redundant"}
        assert check.details["faithfulness"] == pytest.approx(1)


def test_all_adds_two_tests_and_rivals_decide_nothing():
    own = load("pattern")
    circuit = gp.select(gp.attribute(own.model, own.task, "exact"), len(own.kinds), selection="top")
    verdict = gp.test(own.model, circuit, own.held_out, found_on=own.task, all=True)
    assert [*verdict.checks] == [*NAMES, "specificity", "rivals"]
    assert verdict.specificity.about == "needs another built-in task that the model does"
    assert verdict.rivals.value == 1
    assert limit_of("rivals", verdict.rivals) == ""
    assert "rivals" not in verdict.verdict
    assert verdict.to_json()["rivals"]["decision"] == "undecided"


def test_effects_are_those_of_patching_and_the_bound_finds_a_missing_edge():
    own = load("pattern", "hidden")
    edges, task = list(own.kinds), own.all_pairs
    whole = verdict_on("pattern", "hidden", *edges).effects
    model, circuit = own.model, gp.Circuit.from_edges(own.model, edges)
    result = gp.evaluate(model, circuit, task)
    for edge, measured in zip(whole.edges, whole.measured, strict=True):
        without = gp.evaluate(model, circuit.without(edge), task)
        expected = (result.circuit - without.circuit) / (result.clean - result.corrupted)
        assert measured == pytest.approx(expected, abs=1e-5)
    assert whole.estimated[whole.edges.index("m1->logits")] == pytest.approx(1, abs=1e-4)  # the metric is linear there
    assert whole.correlation > 0.9
    assert whole.bound == pytest.approx(0, abs=1e-5)  # nothing else matters in a compiled model
    spoiled = verdict_on("pattern", "hidden", edges[0], *edges[2:]).effects
    assert spoiled.bound > 0.3
    assert spoiled.bound_edge == edges[1]


def test_the_bound_is_that_of_welchs_test():
    member = torch.tensor([[True] * 10 + [False] * 30, ([True] + [False] * 3) * 10])
    values = torch.arange(40, dtype=torch.float64)
    first, second = upper_bounds(member, values).tolist()
    inside, outside = values[:10], values[10:]
    # By hand: an error of sqrt(3.5), with 37.87 degrees of freedom, whose quantile is 1.6861.
    error = (inside.var() / 10 + outside.var() / 30).sqrt()
    assert first == pytest.approx(float(20 + 1.6861 * error), abs=2e-4)
    assert second < first


def test_effects_of_a_metric_without_a_gradient_are_measured_alone():
    own = load("pattern", "hidden")
    task = replace(own.all_pairs, metric=lambda x, y: (x.gather(1, y[:, :1]) > x.gather(1, y[:, 1:]))[:, 0].float())
    effects = gp.test(own.model, gp.Circuit.from_edges(own.model, own.kinds), task).effects
    assert (effects.estimated, effects.correlation) == (None, None)
    assert max(effects.measured) > 0.5


def made(circuit, *, corrupted=0.0, has_answers=True):
    clean = torch.ones(len(circuit))
    return Result(clean, clean * corrupted, circuit, edges_requested=5, edges_kept=5, has_answers=has_answers)


def test_equivalence_is_shown_refuted_or_says_how_many_examples_it_takes():
    noise = torch.tensor([0.5, -0.5]).repeat(8)
    shown, refuted = equivalence(made(torch.ones(16) - 0.01)), equivalence(made(0.1 + noise))
    few = equivalence(made(0.95 + noise))
    assert (shown.passed, refuted.passed, few.passed) == (True, False, None)
    assert few.decision == "undecided"
    assert f"not enough examples to tell: about {few.details['enough']} would do" in few.about
    assert equivalence(made((0.95 + noise).repeat(few.details["enough"] // 16))).decision == "yes"
    assert equivalence(made(torch.ones(10))).decision == "undecided"  # one in five could fail, and none be among ten
    at_margin = equivalence(made(0.8 + noise))
    assert "enough" not in at_margin.details
    assert at_margin.about.endswith("; undecided")


def test_nothing_is_tested_where_the_model_does_not_do_the_task():
    own = load("pattern", "hidden")
    task = replace(own.all_pairs, clean=own.all_pairs.corrupted, corrupted=own.all_pairs.clean, spans=None)
    verdict = gp.test(own.model, own.circuit, task)
    assert verdict.result.does_task == "no"
    assert verdict.passed is None
    assert {check.decision for check in verdict.checks.values()} == {"undecided"}
    assert verdict.verdict == "the model does not do this task: faithfulness means nothing here"
    assert "does not do this task" in repr(verdict)
    assert verdict.to_json()["does_task"] == "no"
    assert verdict.to_json()["effects"] is None
    page = page_of(verdict_report(own.circuit, verdict))
    assert page["undone"]
    assert page["verdict"]["sentence"] == "The model does not do this task: faithfulness means nothing here"
    assert page["verdict"]["checks"] == []


def test_a_circuit_that_beats_chance_but_keeps_little_is_not_sufficient():
    weak, none = made(0.05 + torch.linspace(0, 0.01, 30)), made(torch.zeros(30))
    check = _sufficiency(weak, weak, [none] * 19)
    assert (check.details["p"], check.decision) == (0.05, "no")
    assert "(floor 0.5)" in check.about


def test_every_test_says_what_it_takes_to_pass():
    limits = [limit_of(name, Check(0.5, 0.6, "no", "")) for name in NAMES]
    assert limits == ["≥ 0.5, p ≤ 0.05", "within ±0.2", "< 0.2, p ≤ 0.05", "≥ 0.9", "≥ 0.5", "within ±0.2"]
    assert limit_of("stability", Check(None, None, "undecided", "")) == ""


def test_bounds_of_failures_are_those_of_clopper_and_pearson():
    for failures in (0, 2):
        kept = torch.cat([torch.zeros(failures), torch.ones(20 - failures)])
        low, _ = bounds(Ratio(kept, torch.ones(20), most=1.0))
        exact = beta.ppf(0.05, 20 - failures, failures + 1)
        assert low == pytest.approx(exact, abs=0.01)
    low, high = difference_bounds(Ratio(kept, torch.ones(20)), Ratio(kept, torch.ones(20)))
    assert low < 0 < high
    assert -low == pytest.approx(high, abs=0.03)


def test_decisions_on_bounds_and_on_several_claims():
    bounds_and_decisions = {(0.9, 1.1): "yes", (0.7, 1.1): "undecided", (0.1, 0.7): "no", (1.3, 2.0): "no"}
    assert {x: within(*x, 0.8, 1.2) for x in bounds_and_decisions} == bounds_and_decisions
    claims = {("yes", "yes"): "yes", ("yes", "undecided"): "undecided", ("undecided", "no"): "no"}
    assert {x: all_of(x) for x in claims} == claims
    assert [rank_test(0.5, [0.4] * n + [1.0] * (19 - n))[1] for n in (0, 1, 9, 10)] == ["yes", *["undecided"] * 2, "no"]
    assert enough_examples(10, lambda times: "yes" if times >= 4 else "undecided") == 40
    assert enough_examples(10, lambda times: "undecided") is None


def test_needed_and_idle_edges_by_the_sign_test():
    assert sign_test(torch.tensor([8, 5, 0]), torch.tensor([0, 5, 0])).tolist() == pytest.approx(
        [2**-8, 0.623, 1], abs=1e-3
    )
    many = sign_test(torch.tensor([1100, 600, 100_000]), torch.tensor([0, 500, 100_000])).tolist()
    assert many == pytest.approx([0, 0.0014, 0.5], abs=1e-3)  # 2 ** 1100 is not a float
    worse, mixed, never = torch.ones(12), torch.tensor([1.0, -9.0] * 6), torch.zeros(12)
    decision, needed, idle = needed_edges(torch.stack([worse, mixed, never], 1), 0.9)
    assert decision == "no"
    assert needed.tolist() == [True, False, False]
    assert idle.tolist() == [False, False, True]
    assert needed_edges(torch.stack([worse] * 18 + [mixed] * 2, 1), 0.9)[0] == "yes"
    assert needed_edges(torch.stack([worse] * 17 + [mixed] * 3, 1), 0.9)[0] == "undecided"


def test_the_mean_overlap_is_that_of_all_pairs():
    members = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 0]], dtype=torch.bool)
    mean, low, high = mean_overlap(members)
    assert mean == pytest.approx((1 / 3 + 1 + 1 / 3) / 3)
    assert low < mean < high
    assert mean_overlap(members[[0, 2, 0]]) == (1, 1, 1)
    assert mean_overlap(members[:2])[1:] == (0, 1)


def random_paths(graph: Graph, n: int, seed: int) -> torch.Tensor:
    zeros = Scores(graph, torch.zeros(graph.mask.shape))
    return rank(zeros, f"random-paths+seed={seed}", sizes=[n])[:n].mask


@pytest.mark.parametrize("parallel", [False, True])
def test_random_circuits_are_connected_and_of_the_same_size_and_shape(parallel):
    graph = Graph(6, 4, parallel)
    mask = random_paths(graph, 20, 1)
    drawn = random_circuits_like(graph, mask, 19, Random(2))
    assert all(torch.equal(pruned(graph, x), x) for x in drawn)
    assert {int(x.sum()) for x in drawn} == {int(mask.sum())}
    assert not any(torch.equal(x, mask) for x in drawn)

    def into_layers(x):
        return torch.bincount(graph.layers_of_targets, weights=x.sum(0), minlength=7)

    assert sum(torch.equal(into_layers(x), into_layers(mask)) for x in drawn) >= 10
    assert sum(torch.equal(into_layers(random_paths(graph, 20, i)), into_layers(mask)) for i in range(19)) < 5
