"""``gradpath ls`` as a user types it."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("what", ["models", "tasks", "methods", "selections"])
def test_ls_lists(run, what):
    plain, as_json = run("ls", what), run("ls", what, "--json")
    assert plain.code == as_json.code == 0
    names = [row["name"] for row in as_json.json[what]]
    assert all(name in plain.out for name in names)
    assert {"models": "smollm2", "tasks": "ioi", "methods": "eap-gp", "selections": "greedy"}[what] in names


def test_ls_models_says_what_each_family_supports(run):
    rows = {row["name"]: row for row in run("ls", "models", "--json").json["models"]}
    assert {"smollm2", "gemma3-270m", "gpt2", "llama", "mistral", "gpt_neox", "qwen2", "qwen3"} <= rows.keys()
    assert {"gemma2", "gemma3", "gemma3_text", "phi", "olmo2"} <= rows.keys()
    assert "parallel" in rows["gpt_neox"]["supports"]
    assert "soft caps" in rows["gemma2"]["about"]


def test_find_tells_edges_apart_by_where_they_are(run, model_folder, tmp_path):
    common = ["--model", model_folder, "--examples", 4, "--method", "eap", "--edges", 60]
    ran = run("find", *common, "--positions", "span", "--out", tmp_path / "out", "--json")
    assert ran.code == 0, ran.err
    summary = ran.json
    assert list(summary["positions"]) == ["before", "subject again", "between", "end"]
    assert sum(summary["positions"].values()) == summary["edges_kept"]
    assert summary["selection"] == "top"
    assert {file.name for file in (tmp_path / "out").iterdir()} >= {"positions.png", "positions.svg"}
    again = run("eval", tmp_path / "out" / "circuit.json", "--examples", 4, "--json")
    assert again.json["circuit"] == pytest.approx(summary["circuit"], rel=1e-4)
    assert again.json["edges_total"] == summary["edges_total"]
    shown = run("show", tmp_path / "out" / "circuit.json", "--out", tmp_path / "c.svg")
    assert shown.code == 0, shown.err
    told = run("find", *common, "--positions", "span")
    assert "at subject again" in told.out
    refused = run("find", *common, "--positions", "span", "--how", "refined")
    assert refused.code == 2
    assert "cannot select edges at positions" in refused.error


def test_ls_alone_says_what_can_be_listed(run):
    ran = run("ls")
    assert ran.code == 0
    for name in ("models", "tasks", "methods", "selections", "metrics", "ablations", "formats"):
        assert name in ran.out
        assert run("ls", name).code == 0


def test_lists_have_no_markup_and_a_fixed_order(run):
    for name in ("methods", "selections", "metrics"):
        assert "``" not in run("ls", name).out
    methods = [row["name"] for row in run("ls", "methods", "--json").json["methods"]]
    assert methods[:4] == ["eap", "nap", "clean-corrupted", "eap-ig"]
