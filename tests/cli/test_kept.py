"""``find`` without ``--out``: what it computed is kept, and ``--out`` writes it without computing again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from covering import some

import gradpath as gp
from gradpath import pipeline
from gradpath.pipeline import found

TYPED = ("--task", "ioi", "--examples", "4", "--edges", "40", "--how", "top")


@pytest.fixture
def computed(monkeypatch) -> list[str]:
    """The attributions that were run."""
    runs, attribute = list[str](), pipeline.attribute_at_steps

    def counted(model, task, method, options, **others):
        runs.append(method.name)
        return attribute(model, task, method, options, **others)

    monkeypatch.setattr(pipeline, "attribute_at_steps", counted)
    return runs


@pytest.fixture
def first(run, model_folder, computed):
    return run("find", "--model", model_folder, *TYPED)


def entries() -> list[Path]:
    return sorted((found.cache_folder() / "find").iterdir())


def test_the_same_command_with_out_writes_what_was_computed(run, model_folder, computed, first, tmp_path):
    assert "without computing again" in first.out
    assert first.out.strip().endswith("--out out/ioi")
    done = run("find", "--model", model_folder, *TYPED, "--out", tmp_path / "out", "--json")
    assert computed == ["eap-ig"]
    assert "nothing was computed again" in done.err
    written = {file.name for file in (tmp_path / "out").iterdir()}
    assert written == {"scores.safetensors", "circuit.json", "report.html"}
    again = run("find", "--model", model_folder, *TYPED, "--how", "top", "--json").json
    different = {name for name in again if again[name] != done.json[name]}
    assert different <= {"seconds"}
    assert len(gp.load_circuit(tmp_path / "out" / "circuit.json")) == again["edges_kept"]


OTHERS = [("--seed", "1"), ("--edges", "41"), ("--steps", "4"), ("--batch-size", "3"), ("--ablation", "zero")]
FILES = ["circuit.json", "kept.json", "scores.safetensors", "report.html"]


@pytest.mark.parametrize("more", some(OTHERS, OTHERS[:1]))
def test_another_command_computes(run, model_folder, computed, first, tmp_path, more):
    done = run("find", "--model", model_folder, *TYPED, *more, "--out", tmp_path / "out")
    assert done.code == 0
    assert len(computed) == 2


def test_another_model_under_the_same_name_computes(run, model_folder, computed, first, tmp_path, monkeypatch):
    from gradpath.cli.options import ModelOptions

    load = ModelOptions.load

    def changed(options):
        model = load(options)
        model.layers[1].w_out[0, 0] += 1e-3
        return replace(model)  # whose digest is not known yet

    monkeypatch.setattr(ModelOptions, "load", changed)
    done = run("find", "--model", model_folder, *TYPED, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert len(computed) == 2


@pytest.mark.filterwarnings("default::gradpath.errors.GradpathWarning")
@pytest.mark.parametrize("name", some(FILES, FILES[:1]))
def test_a_damaged_entry_is_computed_again(run, model_folder, computed, first, tmp_path, name):
    [entry] = entries()
    whole = (entry / name).read_bytes()
    for damaged in (whole[: len(whole) // 2], whole.replace(b"ioi", b"sva"), None):
        if damaged is None:
            (entry / name).unlink()
        else:
            (entry / name).write_bytes(damaged)
        before = len(computed)
        done = run("find", "--model", model_folder, *TYPED, "--out", tmp_path / "out")
        assert done.code == 0
        assert len(computed) == before + 1
        assert "nothing was computed again" not in done.err


@pytest.mark.filterwarnings("default::gradpath.errors.GradpathWarning")
def test_a_cache_that_cannot_be_written_does_not_stop_the_command(run, model_folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(found, "cache_folder", lambda: tmp_path / "file")
    done = run("find", "--model", model_folder, *TYPED)
    assert done.code == 0
    assert "could not be cached" in done.err
    assert "give a folder with --out" in done.out


def test_only_the_latest_stay(run, model_folder, monkeypatch):
    monkeypatch.setattr(found, "MOST", 2)
    for seed in range(3):
        run("find", "--model", model_folder, *TYPED, "--seed", seed)
    seeds = {json.loads((entry / "kept.json").read_text())["summary"]["seed"] for entry in entries()}
    assert seeds == {1, 2}


def test_a_method_of_ones_own_is_not_kept(run, model_folder):
    from gradpath.attribution.methods import METHODS

    @gp.path("mine")
    def mine(start, steps: int = 1):
        yield start.clean

    try:
        done = run("find", "--model", model_folder, *TYPED, "--method", "mine")
    finally:
        METHODS.remove("mine")
    assert done.code == 0
    assert "give a folder with --out" in done.out
    assert not (found.cache_folder() / "find").exists()
