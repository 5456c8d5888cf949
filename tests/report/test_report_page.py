"""The page's text: what goes into it, how large it gets, and what is refused."""

from __future__ import annotations

import base64
import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from making import SMOLLM2, Maker
from small_models import tiny_model

from gradpath.errors import InputError
from gradpath.evaluation import evaluate
from gradpath.evaluation.mib import Areas
from gradpath.graph import pruned
from gradpath.prepared import PreparedBatches
from gradpath.report import MethodRun, circuit_report, evidence, render
from gradpath.report.page import SCRIPTS, render_comparison
from gradpath.report.payload import LIMIT, asset, connected_from, facts_of, page_of
from gradpath.selection import rank, select
from gradpath.tasks.task import Task
from gradpath.verdict.checks import FEWEST, Check
from gradpath.verdict.effects import Effects

CHECKS = {"equivalence": Check(-0.3, 0.2, "no", "off by -0.300 of the behaviour")}


def data_of(page: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    return content


def unpacked(column: str, dtype: str) -> list[Any]:
    values: list[Any] = np.frombuffer(base64.b64decode(column), dtype).tolist()
    return values


def names_in(value: Any) -> set[str]:
    """The names of fields anywhere in a page's JSON, except what it has as other files have it."""
    if isinstance(value, list):
        return set().union(*map(names_in, value))
    if not isinstance(value, dict):
        return set()
    found = set[str]()
    for name, part in value.items():
        if name not in ("recorded", "recipe", "notes", "checks", "effects"):
            found = found.union(*map(names_in, part.values() if name == "orders" else [part]))
        found.add(name)
    return found


def test_the_scripts_read_all_that_the_json_has(make: Maker) -> None:
    scores = make.scores()
    areas = {"top": Areas((0.5,) * 10, 0.75, (0.7, 0.8), 0.25, (0.2, 0.3))}
    effects = Effects(["input->m0", "m0->logits"], [0.1, 0.9], [0.2, 0.8], 0.05, "input->logits", 40)
    runs = [MethodRun(scores, make.curve(scores.n_edges), circuit=select(scores, 20), areas=areas)]
    report = replace(make.report(scores), runs=runs, checks=CHECKS, effects=effects, inside="no gradient")
    pages = render(report), render_comparison(select(scores, 20).compare(select(scores, 30)))
    names = set().union(*(names_in(data_of(page)) for page in pages))
    scripts = "".join(map(asset, SCRIPTS))
    assert len(names) > 60
    assert [name for name in names if not re.search(rf"\b{name}\b", scripts)] == []


def test_pruning_keeps_the_edges_whose_ends_are_connected(make: Maker) -> None:
    draw = random.Random(0)
    for shape, parallel in (((3, 4), False), ((6, 5), True)):
        scores = make.scores(*shape, ties=True, parallel=parallel)
        scores.values[0] *= 0.05  # few ways in: pruning has much to do
        graph = scores.graph
        for how in ("top", "greedy", "signed", "random"):
            order = rank(scores, how).edges
            connected = connected_from(graph, order)
            for n in draw.sample(range(1, graph.n_edges), 20):
                source, target = graph.unflattened(order[:n]).T
                kept = (connected[source] <= n) & (connected[graph.node_of_target[target]] <= n)
                expected = pruned(graph, graph.mask_of(order[:n]).view_as(graph.mask)).flatten()[order[:n]]
                assert torch.equal(kept, expected), (how, n)
            assert int(connected_from(graph, order[:0]).min()) == 1  # never


def test_page_holds_every_edge_of_a_small_model_and_cuts_what_no_selection_reaches(make: Maker) -> None:
    scores = make.scores()
    [run] = page_of(make.report(scores))["runs"]
    assert unpacked(run["edges"], "<u4") == scores.graph.mask.flatten().nonzero()[:, 0].tolist()
    assert unpacked(run["scores"], "<f4") == scores.values[scores.graph.mask].tolist()
    large = make.scores(*SMOLLM2)
    text = render(make.report(large))
    assert len(text) < 850_000
    [run] = data_of(text)["runs"]
    assert LIMIT <= len(unpacked(run["edges"], "<u4")) < large.n_edges
    assert run["orders"]["top"]["size"] == LIMIT
    assert (
        page_of(make.report(large, edges=40_000))["runs"][0]["orders"]["top"]["size"] == 40_000
    )  # as many as requested


def test_page_has_no_reference_to_the_network(make: Maker) -> None:
    page = render(make.report(make.scores()))
    without_namespaces = page.replace("http://www.w3.org/", "")
    assert "http://" not in without_namespaces
    assert "https://" not in without_namespaces
    assert "default-src 'none'" in page


def test_every_script_is_in_the_page_and_in_the_list() -> None:
    folder = Path(__file__).parents[2] / "src/gradpath/report/assets"
    assert sorted(SCRIPTS) == sorted(file.name for file in folder.glob("*.js"))


def test_scores_that_are_no_numbers_are_refused(make: Maker) -> None:
    scores = make.scores()
    circuit = select(scores, 30)
    scores.values[0, -1] = torch.nan
    with pytest.raises(InputError, match="1 scores of eap-gp are not finite numbers"):
        render(make.report(scores))
    with pytest.raises(InputError, match="not finite"):
        render(circuit_report(replace(circuit, scores=circuit.scores * torch.inf)))


def test_facts_have_labels() -> None:
    about = {
        "source": "pairs.csv",
        "metric": "logit-difference",
        "seed": 11,
        "method": "eap-ig",
        "batch_size": 7000,
        "cpu_seconds": 4.513,
        "bos": False,
        "plugins": {"mine.py": "b5e2"},
        "own_fact": {"a_b": [1, 2], "none": None},
        "passes": None,
    }
    assert facts_of("smollm2", "mine", about, {"pairs": "13 rows", "python": "3.11.7"}) == [
        ("Model", "smollm2"),
        ("Task", "mine"),
        ("Method", "EAP-IG"),
        ("Metric", "logit-difference"),
        ("Seed", "11"),
        ("Data from", "pairs.csv"),
        ("Pairs", "13 rows"),
        ("BOS token", "no"),
        ("CPU time", "4.5 s"),
        ("Batch size", "7,000"),
        ("Plug-ins", "mine.py"),
        ("Own fact", "a b: 1, 2"),
        ("Python", "3.11.7"),
    ]


def test_the_whole_verdict_is_suggested_unless_it_is_always_refused(make: Maker) -> None:
    report = replace(make.report(make.scores()), checks=CHECKS)
    few = page_of(replace(report, about={"examples measured": FEWEST - 1}))["verdict"]
    assert few["command"] == ""
    assert few["note"] == "gradpath test needs at least 10 examples to measure on, and here are 9: find it with more."
    enough = page_of(replace(report, about={"examples measured": FEWEST}))["verdict"]
    assert enough["command"] == "gradpath test circuit.json --out verdict.html"
    assert "Not tested here: sufficiency, necessity" in enough["note"]


def test_evidence_goes_from_the_best_kept_example_to_the_worst_with_tokens_and_answers() -> None:
    clean = [f"5 {i} 17 {i + 1}" for i in range(2, 12)]
    corrupted = [f"5 {i} 18 {i + 1}" for i in range(2, 12)]
    task, model = Task(clean, corrupted, torch.tensor([[i, i + 1] for i in range(2, 12)])), tiny_model("gpt2")
    circuit = select(Maker().scores(model.graph.n_layers, model.graph.n_heads), 20)
    result = evaluate(model, circuit, task)
    examples = evidence(PreparedBatches(model, task), result, 4)
    off = [abs((each.circuit or 0.0) - each.clean) for each in examples]
    errors = (result.circuit_values - result.clean_values).abs()
    assert off == sorted(off)
    assert (off[0], off[-1]) == pytest.approx((float(errors.min()), float(errors.max())))
    for one in examples:
        tokens = [text.strip() for text in one.clean_tokens]
        assert [text.strip() for text in one.corrupted_tokens] == [*tokens[:2], "18", tokens[3]]
        assert one.answer.strip() == tokens[1]
    own = Task(clean, corrupted, list(range(10)), metric=lambda logits, _: logits[:, 3])
    assert {each.answer for each in evidence(PreparedBatches(model, own), evaluate(model, circuit, own))} == {""}
