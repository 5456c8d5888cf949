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


def test_lists_have_no_markup_and_a_fixed_order(run):
    for name in ("methods", "selections", "metrics"):
        assert "``" not in run("ls", name).out
    methods = [row["name"] for row in run("ls", "methods", "--json").json["methods"]]
    assert methods[:4] == ["eap", "clean-corrupted", "eap-ig", "eap-gp"]
