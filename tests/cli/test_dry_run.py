"""What a run will take, before it is run: ``gradpath find --dry-run``."""

from __future__ import annotations

import shutil
import sys

import pytest
from covering import some
from launching import finished

import gradpath as gp
from gradpath.sweep import bytes_of_weights


@pytest.mark.parametrize("method", some(["eap", "eap-ig", "eap-gp", "clean-corrupted"], ["eap-gp"]))
def test_a_dry_run_counts_the_passes_that_the_run_makes_and_writes_nothing(run, model_folder, tmp_path, method):
    options = ("--model", model_folder, "--method", method, "--selection", "top", "--edges", 20, "--examples", 6)
    told = run("find", *options, "--dry-run", "--out", tmp_path / "out", "--json")
    assert told.code == 0, told.err
    assert not (tmp_path / "out").exists()
    made = run("find", *options, "--out", tmp_path / "out", "--json")
    assert told.json["forward_passes"] == pytest.approx(made.json["passes"]["forward"])
    # Integrated gradients take one backward pass per point; a path that follows gradients takes more.
    assert (
        told.json["points"] <= made.json["passes"]["backward"] < 2 * told.json["points"] or method == "clean-corrupted"
    )
    assert (told.json["examples"], told.json["examples_measured"]) == (6, 6)
    assert told.json["edges_total"] == made.json["edges_total"]


def test_a_configuration_is_enough(run, model_folder, tmp_path):
    model = gp.load_model(str(model_folder))
    shutil.copy(model_folder / "config.json", tmp_path)
    told = run("find", "--model", tmp_path, "--dry-run", "--json")
    assert told.code == 0, told.err
    assert told.json["weight_bytes"] == bytes_of_weights(model)
    assert told.json["edges_total"] == model.graph.n_edges
    assert told.json["tokens_assumed"]
    text = run("find", "--model", tmp_path, "--dtype", "bfloat16", "--dry-run").out
    assert "20 tokens assumed" in text
    assert "bfloat16" in text
    assert "No weight was read and nothing was written." in text
    half = run("find", "--model", tmp_path, "--dtype", "bfloat16", "--dry-run", "--json").json
    assert half["weight_bytes"] == told.json["weight_bytes"] / 2


def test_a_dry_run_takes_one_prompt_and_a_budget_and_refuses_what_the_run_would(run, model_folder):
    typed = ("--clean", "The cat sat on the", "--corrupted", "The dog sat on the", "--answer", " a")
    one = run("find", "--model", model_folder, *typed, "--dry-run", "--json").json
    assert (one["examples"], one["tokens"]) == (1, 6)
    free = run("find", "--model", model_folder, "--dry-run", "--json").json
    least = run("find", "--model", model_folder, "--dry-run", "--memory", "1KB", "--json").json
    assert least["cpu_bytes"] == least["gpu_bytes"] == free["least_bytes"] <= free["cpu_bytes"]
    assert "there is no task 'oii'" in run("find", "--model", model_folder, "--task", "oii", "--dry-run").err


PEAK = """
import resource, sys
from gradpath.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["eap", "eap-ig"])
def test_the_memory_of_a_run_is_what_was_said(run, tmp_path, method):
    """The peak of a process of its own, on SmolLM2, is within a factor of 1.5."""
    gp.load_model("smollm2")  # so that its first conversion is not counted
    options = ("--examples", 100, "--method", method, "--selection", "top", "--edges", 100)
    told = run("find", *options, "--dry-run", "--json").json["cpu_bytes"]
    ran = finished([sys.executable, "-c", PEAK, "find", *map(str, options), "--out", str(tmp_path)])
    assert ran.returncode == 0, ran.stderr
    assert told / 1.5 < int(ran.stderr.split()[-1]) < told * 1.5
