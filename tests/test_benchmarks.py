"""Benchmarks run: each of them for a moment, on models that are as small as can be. Nothing is timed."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch
from small_models import prompts, tiny_model
from tiny_folder import save_tiny
from transformers import GPT2Config

import gradpath as gp
from gradpath.evaluation.result import Difference

FOLDER = Path(__file__).parents[1] / "benchmarks"
PEERS = {"peers", "peer_auto_circuit"}  # need packages of their own
NAMES = sorted(file.stem for file in FOLDER.glob("*.py") if file.stem not in PEERS)


@pytest.fixture
def benchmark(monkeypatch):
    """A function that imports a benchmark by name, with GPT-2 tiny."""
    monkeypatch.syspath_prepend(FOLDER)

    def tiny(**options):
        small = {"n_layer": 2, "n_head": 2, "n_embd": 16, "bos_token_id": 0, "eos_token_id": 0}
        return GPT2Config(**{**small, **{k: v for k, v in options.items() if k == "vocab_size"}})

    def load(name):
        module = importlib.import_module(name)
        if hasattr(module, "GPT2Config"):
            monkeypatch.setattr(module, "GPT2Config", tiny)
        return module

    threads = torch.get_num_threads()
    before = set(sys.modules)
    yield load
    torch.set_num_threads(threads)
    for name in set(sys.modules) - before:
        if name in NAMES:
            del sys.modules[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_finds_everything_that_it_imports(benchmark, name):
    module = benchmark(name)
    assert callable(getattr(module, "main", None)) or name == "freeze"


def test_freeze_selects_and_measures_with_todays_keywords(benchmark, monkeypatch):
    freeze = benchmark("freeze")
    model = tiny_model("gpt2")
    monkeypatch.setattr(freeze, "tiny", lambda kind: model)
    monkeypatch.setattr(freeze, "names", lambda what: ["top"])
    monkeypatch.setattr(freeze, "product", lambda *lists: [("gpt2", "eap-ig")])
    monkeypatch.setattr(freeze, "ABLATIONS", freeze.ABLATIONS[:1])
    monkeypatch.setattr(freeze, "pairs", lambda seed: prompts([6, 7], [[1], [2]]))
    freeze.circuits_and_results()
    assert {f"{part}/gpt2/eap-ig corrupted/top" for part in ("circuits", "results")} < freeze.found.keys()
    assert all(re.fullmatch("[0-9a-f]{16}", value) for value in freeze.found.values()), "an error is not a number"
    with pytest.raises(TypeError):
        freeze.record("what changed", lambda: gp.select(how="top"))


@pytest.mark.slow
def test_costs_are_measured(benchmark, monkeypatch, capsys):
    cost = benchmark("cost")
    for name, value in {"TURNS": 1, "MORE": 14, "MORE_TURNS": 1}.items():
        monkeypatch.setattr(cost, name, value)
    monkeypatch.setattr(cost.importlib.util, "find_spec", lambda name: None)  # no SmolLM2
    monkeypatch.setattr(cost, "fastest", lambda contenders, turns=1: {x: (f(), 1.0)[1] for x, f in contenders.items()})
    cost.main()
    lines = capsys.readouterr().out.splitlines()
    assert {"eap-ig (5)", cost.REFINED, cost.REFINED_ALL} <= {line[:24].strip() for line in lines}


@pytest.mark.slow
def test_the_profile_files_all_work(benchmark, monkeypatch, capsys):
    breakdown = benchmark("breakdown")
    monkeypatch.setattr(breakdown, "TURNS", 1)
    breakdown.main()
    assert "| eap-ig |" in capsys.readouterr().out


@pytest.mark.slow
def test_memory_and_growth_are_measured(benchmark):
    assert benchmark("memory").peak("eap") >= 0
    growth = benchmark("growth")
    model = growth.model()
    for sizes, make in growth.TIMES.values():
        make(model, sizes[0])()
    for sizes, work in growth.MEMORY.values():
        work(model, sizes[0])


@pytest.mark.slow
def test_two_versions_of_refined_are_compared(benchmark, tmp_path, monkeypatch):
    compared = benchmark("refined")
    for name, value in {"HELD_OUT": 4, "SMALLEST": 2, "SPARSITIES": (0.9, 0.8)}.items():
        monkeypatch.setattr(compared, name, value)
    row = compared.measure(gp.load_model(str(save_tiny(tmp_path))), "ioi", examples=4, seed=0)
    runs = {"commit": "abc", "tasks": {"ioi, seed 0": row}}
    lines = compared.tables(runs, runs)
    assert sum("+0.000 [+0.000, +0.000]" in line for line in lines) == 6  # for each size a row and two means
    assert sum(line.startswith("| mean, over runs |") for line in lines) == 2
    new, old = [{"x": 1.0}, {"x": 0.0}], [{"x": 0.0}, {"x": 0.0}]
    spread = compared.over_runs(lambda ours, theirs: Difference(ours[0]["x"] - theirs[0]["x"], 0.0, 0.0), new, old)
    assert (spread.value, spread.low, spread.high) == (0.5, 0.0, 1.0)


@pytest.mark.slow
def test_functions_are_listed_in_the_order_of_their_first_calls(benchmark, monkeypatch, capsys, tmp_path):
    hops = benchmark("hops")
    folder = save_tiny(tmp_path)
    monkeypatch.setenv("GRADPATH_CACHE", str(tmp_path / "cache"))
    visits = hops.trace(["find", "--model", str(folder), "--task", "ioi", "--examples", "4", "--edges", "20", "--json"])
    names = [visit.name for visit in visits]
    assert names.index("attribute_at_steps") < names.index("score_batch") < names.index("evaluate_many")
    assert len(set(visits)) == len(visits)
    inside = [visit.name for visit in visits if visit.in_attribution]
    assert "score_batch" in inside
    assert "evaluate_many" not in inside
    a, b = hops.Visit("a.py", "f", False), hops.Visit("b.py", "g", False)
    assert hops.summary("x", [a, b, b._replace(name="h"), a]) == "x: 4 functions in 2 files, 2 changes of file"


def test_long_prompts_are_measured(benchmark, capsys):
    benchmark("long_prompts").measure(tiny_model("gpt2"), 2, 8)
    assert capsys.readouterr().out.startswith("2 of 8 tokens: eap-ig")


@pytest.mark.slow
def test_a_large_model_is_made_and_measured(benchmark, monkeypatch, capsys):
    large = benchmark("large")
    for name, value in {"LAYERS": 2, "HEADS": 2, "WIDTH": 16, "VOCAB": 50}.items():
        monkeypatch.setattr(large, name, value)
    large.main()
    assert "refined" in capsys.readouterr().out


@pytest.mark.slow
def test_many_examples_are_run(benchmark, monkeypatch):
    load = benchmark("load")
    monkeypatch.setattr(load, "EXAMPLES", 200)
    monkeypatch.setattr(load, "BATCH", 20)
    assert set(load.many_examples()) == {"attribute", "evaluate"}
    load.pairs(3)


@pytest.mark.slow
def test_a_page_is_made_for_the_browser(benchmark):
    assert benchmark("page").report(30).chosen.edges == 30


def test_choices_of_experts_are_compared(benchmark):
    """Equal prompts would give 0, and routing that ignores its input, too."""
    assert 0.1 < benchmark("routing").share_of_changes(tiny_model("mixtral")) < 0.5
