"""Each experiment on a tiny model, from the command line to its files, against direct calls."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from gradpath import defaults
from gradpath.attribution.attribute import attribute
from gradpath.circuit import load_circuit
from gradpath.evaluation import evaluate, mib
from gradpath.paper import ABOUT, OWN_MODELS
from gradpath.selection import rank, select
from gradpath.study import method_options, method_recipe, words
from gradpath.study.faithfulness import RANDOM
from gradpath.tasks import load_task

TASKS = ("ioi", "greater-than")
FIGURES = {
    "faithfulness": ["faithfulness"],
    "steps": ["steps"],
    "saturation": [f"saturation-{task}" for task in TASKS],
    "circuit": [f"circuit-{task}" for task in TASKS],
}
ALONE = [name for name in ABOUT if name != "manual" and name not in OWN_MODELS]


@pytest.fixture(scope="module")
def splits(tiny):
    """The examples to attribute and to measure on, as a user would load them."""
    return {
        (task, split): load_task(task, tiny, n=6, seed=0, split=split) for task in TASKS for split in ("train", "test")
    }


def about(value: str, expected: float) -> None:
    assert float(value) == pytest.approx(expected, rel=1e-4, abs=1e-5, nan_ok=True)


def test_all_runs_every_experiment_and_leaves_out_what_makes_no_sense(everything):
    assert everything.ran.code == 0, everything.ran.err
    assert "skipped manual: the manual circuits are of GPT-2 small" in everything.ran.err
    for name in ALONE:
        assert everything.record(name)["title"] in everything.ran.out
        assert str(everything.out / f"{name}.csv") in everything.ran.out


@pytest.mark.parametrize("name", ALONE)
def test_experiment_writes_a_table_a_page_and_a_record_to_run_it_again(everything, name):
    record = everything.record(name)
    rows = everything.rows(name)
    assert rows
    assert len(rows) == len(record["rows"])
    assert set(record) >= {"command", "version", "versions", "commit", "seed", "model", "weights", "study"}
    assert set(record["times"]) == {"started", "seconds"}
    page = (everything.out / f"{name}.md").read_text()
    assert page.startswith(f"# {record['title']}\n")
    assert "tiny-gpt2" in record["title"]
    assert "\n|---|" in page


@pytest.mark.parametrize(("name", "stem"), [(name, stem) for name in FIGURES for stem in FIGURES[name]])
def test_experiment_draws_its_figures_as_png_and_svg(everything, name, stem):
    assert (everything.out / f"{stem}.png").read_bytes().startswith(b"\x89PNG")
    svg = ElementTree.parse(everything.out / f"{stem}.svg").getroot()
    text = " ".join(svg.itertext())
    assert "logits" in text if name == "circuit" else "tiny-gpt2" in text
    assert f"]({stem}.png)" in (everything.out / f"{name}.md").read_text()


def test_baselines_are_the_metrics_of_the_whole_model(everything, tiny, splits):
    for task in TASKS:
        (row,) = everything.rows("baselines", task=task)
        scores = attribute(tiny, splits[task, "train"], "eap")
        result = evaluate(tiny, select(scores, n=20), splits[task, "test"])
        about(row["clean"], result.clean)
        about(row["corrupted"], result.corrupted)
        assert float(row["clean_low"]) <= float(row["clean"]) <= float(row["clean_high"])
        assert (row["examples"], row["pairs_dropped"]) == ("6", "0")


@pytest.mark.parametrize("word", words(defaults.PAPER_METHODS))
@pytest.mark.parametrize("how", ["top", "greedy"])
def test_faithfulness_is_that_of_direct_calls(everything, tiny, splits, word, how):
    method = method_recipe(word)
    for task in TASKS:
        scores = attribute(tiny, splits[task, "train"], method.method, **method_options(method))
        for sparsity in (0.5, 0.8):
            result = evaluate(tiny, select(scores, sparsity=sparsity, selection=how), splits[task, "test"])
            (row,) = everything.rows("faithfulness", task=task, method=word, selection=how, sparsity=sparsity)
            about(row["faithfulness"], result.faithfulness)
            about(row["faithfulness_low"], result.interval[0])
            about(row["error"], result.error)
            assert (int(row["edges_requested"]), int(row["edges_kept"])) == (result.edges_requested, result.edges_kept)


@pytest.mark.parametrize("steps", [3, 4, 5])
def test_steps_are_those_of_direct_calls(everything, tiny, splits, steps):
    scores = attribute(tiny, splits["ioi", "train"], "eap-gp", steps=steps, stride="unit", outputs="all")
    result = evaluate(tiny, select(scores, sparsity=0.5), splits["ioi", "test"])
    (row,) = everything.rows("steps", task="ioi", method=defaults.PAPER_GP, steps=steps, sparsity=0.5)
    about(row["faithfulness"], result.faithfulness)


def test_runtime_counts_passes_and_measures_at_its_own_sparsity(everything, tiny, splits):
    passes = {"eap": ("2", "1"), "eap-ig": ("6", "5"), defaults.PAPER_GP: ("7", "10")}
    for row in everything.rows("runtime"):
        assert (row["forward_passes"], row["backward_passes"]) == passes[row["method"]]
        assert float(row["sparsity"]) == 0.975
    (row,) = everything.rows("runtime", task="ioi", method="eap-ig", selection="greedy")
    circuit = select(attribute(tiny, splits["ioi", "train"], "eap-ig"), sparsity=0.975, selection="greedy")
    about(row["faithfulness"], evaluate(tiny, circuit, splits["ioi", "test"]).faithfulness)


@pytest.mark.parametrize("word", words(defaults.PAPER_METHODS))
def test_saturation_points_add_up_to_the_method_s_score_of_the_edge(everything, tiny, splits, word):
    method = method_recipe(word)
    for task in TASKS:
        rows = everything.rows("saturation", task=task)
        own = [float(row["score"]) for row in rows if method.method in row["point_of"].split()]
        assert len(own) == (1 if method.method == "eap" else 5)
        scores = attribute(tiny, splits[task, "train"], method.method, **method_options(method))
        about(sum(own) / len(own), scores[rows[0]["edge"]])


def test_saturation_starts_at_the_clean_and_ends_at_the_corrupted_metric(everything):
    for task in TASKS:
        (baseline,) = everything.rows("saturation", task=task, path="line", at="0.0")
        (start,) = everything.rows("saturation", task=task, path="eap-gp", at="0.0")
        about(start["metric"], float(baseline["metric"]))
        line = everything.rows("saturation", task=task, path="line")
        largest = max(float(row["gradient"]) for row in line)
        for row in line:
            assert (row["saturated"] == "True") == (float(row["gradient"]) < 0.1 * largest)


def test_circuit_is_drawn_and_saved(everything, tiny, splits):
    for task in TASKS:
        saved = load_circuit(everything.out / f"circuit-{task}.json")
        scores = attribute(tiny, splits[task, "train"], "eap-gp", stride="unit", outputs="all")
        expected = select(scores, sparsity=0.5)
        assert set(saved.edges) == set(expected.edges)
        graph = (everything.out / f"circuit-{task}.dot").read_text()
        assert graph.startswith("digraph circuit {")
        assert graph.count("->") >= len(saved)


def test_a_circuit_without_edges_is_said_to_be_empty_and_not_drawn(run, tiny_folder, tmp_path):
    asked = ("--model", tiny_folder, "--tasks", "ioi", "--examples", 4, "--sparsities", "0.97", "--selection", "top")
    ran = run("reproduce", "circuit", *asked, "--out", tmp_path)
    assert ran.code == 0, ran.err
    saved = load_circuit(tmp_path / "circuit-ioi.json")
    drawn = (tmp_path / "circuit-ioi.png").exists()
    assert drawn == bool(len(saved))
    assert ("no edge is left after pruning" in ran.out) == (not drawn)


def test_curve_prints_one_object_and_keeps_nothing_without_out(run, tiny_folder, everything, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = ("--examples", 6, "--batch-size", 4, "--sparsities", "0.5,0.8", "--methods", "eap,eap-ig")
    ran = run("curve", "--model", tiny_folder, "--task", "ioi", *asked, "--selection", "top", "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)["experiments"]["curve"]
    assert found["files"] == []
    for row in found["rows"]:
        where = {name: row[name] for name in ("task", "method", "selection", "sparsity")}
        (same,) = everything.rows("faithfulness", **where)
        assert float(same["faithfulness"]) == row["faithfulness"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_curve_on_mib_s_grid_gives_its_areas_by_both_rankings(run, tiny, splits, tiny_folder, tmp_path):
    asked = ("--examples", 6, "--batch-size", 4, "--methods", "eap,eap-ig", "--grid", "mib", "--out", tmp_path)
    ran = run("curve", "--model", tiny_folder, "--task", "ioi", *asked, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)["experiments"]["curve"]["mib"]
    assert [(row["method"], row["selection"]) for row in found] == [
        (method, how) for how in ("top", "signed") for method in ("eap", "eap-ig")
    ]
    for row in found:
        scores = attribute(tiny, splits["ioi", "train"], row["method"])
        counts = [mib.edges_at(tiny.graph, fraction) for fraction in mib.FRACTIONS[:-1]]
        circuits = [rank(scores, row["selection"])[:n] for n in counts]
        expected = mib.areas_of(evaluate(tiny, circuits, splits["ioi", "test"]))
        about(row["cpr"], expected.cpr)
        about(row["cmd"], expected.cmd)
    written = json.loads((tmp_path / "curve.json").read_text())
    assert written["mib"] == found
    page = (tmp_path / "curve.md").read_text()
    assert f"{found[0]['cpr']:.3f} [" in page
    assert "CPR " in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_curve_with_an_ablation_is_that_of_direct_calls_and_shares_no_cell(run, tiny, splits, tiny_folder, tmp_path):
    asked = ("--examples", 6, "--methods", "eap", "--sparsities", "0.5", "--selection", "top", "--out", tmp_path)
    for name in ("corrupted", "mean-positional"):
        ran = run("curve", "--model", tiny_folder, "--task", "ioi", *asked, "--ablation", name, "--json")
        assert ran.code == 0, ran.err
        (row,) = json.loads(ran.out)["experiments"]["curve"]["rows"]
        train, test = splits["ioi", "train"], splits["ioi", "test"]
        circuit = select(attribute(tiny, train, "eap", ablation=name), sparsity=0.5)
        about(row["faithfulness"], evaluate(tiny, circuit, test, mean_over=train).faithfulness)
    assert "Ablation: mean-positional" in (tmp_path / "curve.md").read_text()
    assert len(list((tmp_path / "cells").glob("circuit-*"))) == 2 * (1 + len(RANDOM))
