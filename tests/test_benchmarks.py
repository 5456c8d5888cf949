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
def test_functions_are_listed_in_the_order_of_their_first_calls(benchmark, monkeypatch, capsys, tmp_path):
    hops = benchmark("hops")
    folder = save_tiny(tmp_path)
    monkeypatch.setenv("GRADPATH_CACHE", str(tmp_path / "cache"))
    visits, calls = hops.trace(
        ["find", "--model", str(folder), "--task", "ioi", "--examples", "4", "--edges", "20", "--json"]
    )
    assert calls[str(hops.ROOT / "recipe.py"), "read_record"] == 0
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


def test_choices_of_experts_are_compared(benchmark):
    """Equal prompts would give 0, and routing that ignores its input, too."""
    assert 0.1 < benchmark("routing").share_of_changes(tiny_model("mixtral")) < 0.5
