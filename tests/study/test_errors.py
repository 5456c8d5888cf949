"""What cannot be done is said in one sentence, before any work, with the exit code of wrong usage."""

from __future__ import annotations

import json

import pytest
from tiny_folder import save_tiny


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["faithfullness"], "no experiment 'faithfullness'. Did you mean 'faithfulness'? Known: all, baselines"),
        (
            ["faithfulness", "--sparsities", "1.5"],
            "a sparsity is the share of edges left out, at least 0 and less than 1: got 1.5.",
        ),
        (["faithfulness", "--sparsities", "many"], "--sparsities is a list of numbers"),
        (["steps", "--steps", "0"], "--steps is a list of whole numbers above 0"),
    ],
)
def test_wrong_usage_is_refused_before_the_model_is_loaded(run, tmp_path, arguments, says):
    ran = run("reproduce", *arguments, "--model", tmp_path / "nowhere")
    assert ran.code == 2
    assert ran.error.startswith("gradpath: ")
    assert says in ran.error


def test_manual_is_refused_for_a_model_of_another_shape(run, tiny_folder, tmp_path):
    ran = run("reproduce", "manual", "--model", tiny_folder, "--out", tmp_path / "out")
    assert ran.code == 2
    assert "12 layers of 12 heads: tiny-gpt2 has 2 of 2. Give --model gpt2 or its folder." in ran.error
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_manual_compares_with_both_readings_of_a_circuit(run, shaped, tmp_path):
    asked = ("--tasks", "greater-than", "--examples", 2, "--methods", "eap", "--selection", "top")
    ran = run("reproduce", "manual", "--model", shaped, *asked, "--out", tmp_path, "--json")
    assert ran.code == 0, ran.err
    rows = json.loads(ran.out)["experiments"]["manual"]["rows"]
    assert {row["manual"] for row in rows} == {"greater_than", "greater_than_acdc"}
    every = [row for row in rows if row["edges_requested"] == max(row["edges_requested"] for row in rows)]
    for row, size in zip(every, (240, 235), strict=True):
        assert row["edges_kept"] == 32491
        assert (row["edge_recall"], row["node_recall"]) == (1, 1)
        assert row["edge_precision"] == pytest.approx(size / 32491)
    assert (tmp_path / "manual.png").exists()


def test_a_folder_of_another_model_is_not_written_over(run, everything, tmp_path):
    other = save_tiny(tmp_path / "other", layers=1)
    before = (everything.out / "baselines.csv").read_bytes()
    ran = run("reproduce", "baselines", "--model", other, "--examples", 6, "--out", everything.out)
    assert ran.code == 2
    assert "contains baselines of another model" in ran.error
    assert "Give another folder with --out." in ran.error
    assert (everything.out / "baselines.csv").read_bytes() == before
